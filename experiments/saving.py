"""How long training stands still for a checkpoint: the copy in memory, and what writing it beside the updates costs.

    python experiments/saving.py [--device cuda] [--d-model 512] [--layers 6] [--threads 2] [--saves 5]

A model of the paper's base size on random ids, tfm's training step and its own `Saver`, in a temporary folder that is
removed at the end (`--folder` names the disk). For each save: the copy, until training continues; the write, until the
checkpoint is published, meanwhile updates continue and may be slower; and, by itself, a save that training waits for.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import torch

from transformer_cli.build import build_model
from transformer_cli.config import Config, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.loader import START, UpdateBatches
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder
from transformer_cli.text.build import build_codecs
from transformer_cli.training.averaging import MovingAverage
from transformer_cli.training.hardware import Precision, tune_process
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.saving import Learner, Saver, capture_random

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from contenders.matmul import synchronise
from contenders.train_tfm import model_config
from page import describe_run
from shape import Shape

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
LENGTH = 28  # tokens of a sentence: WMT's mean
SAVE_EVERY = 1000


def make_batch(tokens: int, vocabulary: int) -> Batch:
    ids = torch.randint(4, vocabulary, (tokens // LENGTH, 2, LENGTH - 1), generator=torch.Generator().manual_seed(1))
    return Batch.from_ids([(source, target) for source, target in ids.tolist()])


class Trained:
    """A model in training, and what saves it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        shape = Shape(options.layers, options.d_model, 4 * options.d_model, 8, options.vocabulary)
        device = torch.device(options.device)
        side = {"source": str(SAMPLE / "train.de"), "target": str(SAMPLE / "train.en")}
        config = Config.model_validate(
            {
                "data": {"source_language": "de", "target_language": "en", "train": side, "valid": side},
                "vocabulary": {"size": 2000},
                "training": {"keep_last": 1},
            }
        )
        codecs, _ = build_codecs(config, TextCorpus(side["source"], side["target"]).pairs)
        training = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=1e-4)
        torch.manual_seed(1)
        self.device = device
        model = build_model(model_config(shape), shape.vocabulary, shape.vocabulary).to(device)
        objective = TranslationObjective(model, shape.label_smoothing)
        optimizer, precision = build_optimizer(objective, training), Precision(options.precision, device)
        self.learner = Learner(objective, optimizer, precision, MovingAverage(model, None))
        update = UpdateBatches(START, [make_batch(options.batch_tokens, shape.vocabulary)])
        self.updates: Iterator[object] = train_steps(objective, optimizer, precision, training, repeat(update))
        run = RunFolder(folder)
        run.create()
        self.saver = Saver(run, config, codecs, CheckpointIndex())

    def step(self) -> float:
        """Seconds of one update."""
        began = time.perf_counter()
        next(self.updates)
        synchronise(self.device)
        self.learner.progress.step += 1
        return time.perf_counter() - began

    def save(self) -> float:
        """Return the seconds until training may continue."""
        began = time.perf_counter()
        self.saver.save(self.learner, [capture_random()])
        return time.perf_counter() - began


def measure(trained: Trained, saves: int) -> dict[str, float]:
    """Medians, in seconds."""
    for _ in range(2):
        trained.step()
    plain = [trained.step() for _ in range(3 * saves)]
    copies, writes, slower, waits = [], [], [], []
    for _ in range(saves):
        began = time.perf_counter()
        copies.append(trained.save())
        beside = []
        while trained.saver.is_busy():
            beside.append(trained.step())
        trained.saver.wait()
        writes.append(time.perf_counter() - began - copies[-1])
        slower.append(sum(beside) - len(beside) * statistics.median(plain))
        trained.step()
        began = time.perf_counter()
        trained.save()
        trained.saver.wait()
        waits.append(time.perf_counter() - began)
        plain.append(trained.step())
    figures = {"update": plain, "copy": copies, "write": writes, "slower": slower, "wait": waits}
    return {name: statistics.median(seconds) for name, seconds in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16", "auto"), default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=37000)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--folder", help="where the temporary folder is made")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_process(torch.device(options.device))
    with tempfile.TemporaryDirectory(prefix="tfm-saving-", dir=options.folder) as folder:
        trained = Trained(options, Path(folder) / "run")
        seconds = measure(trained, options.saves)
        trained.saver.close()
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    stall = seconds["copy"] + max(0.0, seconds["slower"])
    print(describe_run(options.threads, device=options.device))
    print(f"checkpoint            {size / 1e6:9,.0f} MB")
    for name, figure in (
        ("an update", seconds["update"]),
        ("the copy", seconds["copy"]),
        ("the write beside it", seconds["write"]),
        ("updates slower by", seconds["slower"]),
        ("stall, all in all", stall),
        ("if training waited", seconds["wait"]),
    ):
        print(f"{name:20}  {1000 * figure:9,.0f} ms")
    for name, lost in (("stall", stall), ("if it waited", seconds["wait"])):
        share = lost / (SAVE_EVERY * seconds["update"] + lost)
        print(f"{name:20}  {share:12.3%} of the time at save_every {SAVE_EVERY:,}")


if __name__ == "__main__":
    main()
