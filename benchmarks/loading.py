"""How long training waits for its data: the share of the time in which the next update's batches are not there yet.

    python benchmarks/loading.py [--corpus SOURCE TARGET] [--threads 2] [--updates 40] [--write]

Real text (the sample corpus, or one of your own), tfm's loader and its training step on this CPU, without and with
worker processes, without and with subword sampling. The measured updates lie around the end of the first epoch, so that
planning the next one is among them; the first few, in which workers start, are shown apart.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from contenders.train_tfm import model_config
from page import describe_run, report
from shape import Shape

from transformer_cli.build import build_model
from transformer_cli.config import Config, TrainingConfig
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.data.loader import Augmentation, CorpusBatches, Position, UpdateBatches, load_updates
from transformer_cli.text.build import build_codecs
from transformer_cli.training.hardware import Precision, tune_process
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective

SAMPLE = Path(__file__).parents[1] / "data" / "sample"
WARMUP = 3  # updates
MAX_LENGTH = 256


class Waited:
    """Hands updates on, and keeps how long each was waited for."""

    def __init__(self, updates: Iterator[UpdateBatches]) -> None:
        self.updates = updates
        self.seconds: list[float] = []

    def __iter__(self) -> Iterator[UpdateBatches]:
        while True:
            began = time.perf_counter()
            update = next(self.updates)
            self.seconds.append(time.perf_counter() - began)
            yield update


def measure(
    corpus: EncodedCorpus, shape: Shape, options: argparse.Namespace, workers: int, sampling: Augmentation | None
) -> str:
    """Train over the end of an epoch; a row of the table."""
    device = torch.device("cpu")
    torch.manual_seed(1)
    model = build_model(model_config(shape), shape.vocabulary, shape.vocabulary)
    objective = TranslationObjective(model, shape.label_smoothing)
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=1e-4)
    batches = CorpusBatches(corpus, options.batch_tokens, seed=1, augmentation=sampling)
    last = len(batches.plan(epoch=0))
    loaded = load_updates(
        batches,
        start=Position(0, max(0, last - WARMUP - options.updates // 2)),
        workers=workers,
    )
    waited = Waited(loaded)
    precision = Precision(options.precision, device)
    steps = train_steps(objective, build_optimizer(objective, config), precision, config, waited)
    seconds = []
    for _ in range(WARMUP + options.updates):
        began = time.perf_counter()
        next(steps)
        seconds.append(time.perf_counter() - began)
    steps.close()
    share = sum(waited.seconds[WARMUP:]) / sum(seconds[WARMUP:])
    cells = (
        str(workers),
        f"{sampling.subword_sampling:g}" if sampling else "off",
        f"{1000 * statistics.median(seconds[WARMUP:]):,.0f} ms",
        f"{1000 * statistics.median(waited.seconds[WARMUP:]):.2f} ms",
        f"{1000 * max(waited.seconds[WARMUP:]):.1f} ms",
        f"{1000 * waited.seconds[0]:,.0f} ms",
        f"{share:.2%}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sample = [str(SAMPLE / "train.de"), str(SAMPLE / "train.en")]
    parser.add_argument(
        "--corpus", nargs=2, metavar=("SOURCE", "TARGET"), default=sample, help="sentences, one per line"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=40, help="measured, of each row (default 40)")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument(
        "--vocabulary", type=int, default=2000, help="subwords; the sample corpus gives few (default 2000)"
    )
    parser.add_argument("--precision", choices=("fp32", "bf16", "auto"), default="auto")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_process(torch.device("cpu"))
    shape = Shape(vocabulary=options.vocabulary)
    source, target = options.corpus
    side = {"source": source, "target": target}
    config = Config.model_validate(
        {
            "data": {"source_language": "de", "target_language": "en", "train": side, "valid": side},
            "vocabulary": {"size": shape.vocabulary},
        }
    )
    text = TextCorpus(source, target)
    codecs, _ = build_codecs(config, text.pairs)
    rows = []
    with tempfile.TemporaryDirectory(prefix="tfm-loading-") as folder:
        corpus = encode_corpus(text, codecs, max_length=MAX_LENGTH, keep_text=True, cache_folder=Path(folder))
        for workers in (0, 2):
            for sampling in (None, Augmentation(codecs, MAX_LENGTH, subword_sampling=0.1)):
                rows.append(measure(corpus, shape, options, workers, sampling))
        lines = [
            describe_run(options.threads),
            f"{len(corpus):,} pairs, {options.vocabulary:,} subwords, `batch_tokens` {options.batch_tokens:,}, "
            f"{Precision(options.precision, torch.device('cpu')).name}; {options.updates} updates per row.",
            "",
            "| workers | subword sampling | an update | wait, median | longest | first of all | share of the time |",
            "| --: | --: | --: | --: | --: | --: | --: |",
            *rows,
        ]
    report(lines, options.write)


if __name__ == "__main__":
    main()
