"""What an update of several configs costs, side by side: CPU seconds, an update of each in turn.

    .venv/bin/python benchmarks/updates.py configs/multi30k_de_en_plain.yaml configs/multi30k_de_en.yaml \
        --set 'data.train={source: train.de, target: train.en}' … [--rounds 100] [--threads 1] [--rows 1 64]

Everything that an update of `tfm train` does, with the config's own data, model, objective and optimizer, from its
batches to its step. Each has batches of its own, so that none finds the kernels of another. The first config is what
the others are compared with; the ratio is the median of those of each round, whose updates run within a second. With
`--rows`, each config is trained with each of these numbers of rows, to multiples of which bfloat16 products on a CPU
are filled up; with 1 nothing is. All share oneDNN's kernels, so that those of full blocks have to make room for the
others, and the chunks of the loss are those of 64 rows: what full blocks gain is rather more.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import torch
from page import describe_run

from transformer_cli.config import load_config
from transformer_cli.config.presets import resolve_preset
from transformer_cli.data.size import measure_corpus
from transformer_cli.model import linear
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.distributed import SINGLE_PROCESS
from transformer_cli.training.hardware import tuned_process
from transformer_cli.training.loop import Update, train_steps
from transformer_cli.training.run import find_run_state, make_data, make_learner

WARM_UP = 5  # rounds


def updates(config_path: str, overrides: list[str], folder: Path) -> Generator[Update, None, None]:
    """The updates of a training of that config, with dropout as it is once it has risen."""
    asked = load_config(config_path, overrides)
    config, _ = resolve_preset(asked, measure_corpus)
    state = find_run_state(RunFolder(folder), asked, config, False, None)
    data = make_data(state, True, SINGLE_PROCESS)
    learner, _ = make_learner(state, data, torch.device("cpu"), True, SINGLE_PROCESS)
    batches = data.updates(learner.progress.position, 0, False, SINGLE_PROCESS)
    risen = config.training.dropout_warmup_steps
    return train_steps(learner.objective, learner.optimizer, learner.precision, config.training, batches, risen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all configs")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[linear.ROWS])
    options = parser.parse_args()
    if any(rows < 1 or (rows % 2 and rows > 1) for rows in options.rows):
        parser.error("--rows: takes 1 and even numbers")
    torch.set_num_threads(options.threads)
    kinds = list(itertools.product(options.configs, options.rows))
    seconds: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
    tokens: dict[tuple[str, int], int] = dict.fromkeys(kinds, 0)
    with tempfile.TemporaryDirectory(prefix="tfm-updates-") as name, tuned_process(torch.device("cpu")):
        trainings = {
            kind: updates(kind[0], [*options.set, f"training.seed={number + 1}"], Path(name) / str(number))
            for number, kind in enumerate(kinds)
        }
        for number in range(WARM_UP + options.rounds):
            for kind, training in trainings.items():
                linear.ROWS = kind[1]
                began = time.process_time()
                update = next(training)
                if number >= WARM_UP:
                    seconds[kind].append(time.process_time() - began)
                    tokens[kind] += update.target_tokens
            print(f"\rround {number + 1}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    print(describe_run(options.threads))
    print("\n| config | rows | CPU ms an update, median | quartiles | target tokens an update | ÷ the first |")
    print("| --- | --: | --: | --: | --: | --: |")
    first = seconds[kinds[0]]
    for kind, own in seconds.items():
        low, median, high = (1000 * value for value in statistics.quantiles(own, n=4))
        ratio = statistics.median(one / other for one, other in zip(own, first, strict=True))
        spread, size = f"{median:.0f} | {low:.0f}–{high:.0f}", f"{tokens[kind] / len(own):.0f}"
        print(f"| {kind[0]} | {kind[1]} | {spread} | {size} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
