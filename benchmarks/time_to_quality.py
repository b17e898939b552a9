"""How soon a training reaches a BLEU: target tokens, updates and seconds, for a list of configs and seeds.

    .venv/bin/python benchmarks/time_to_quality.py WORK plain=configs/multi30k_de_en_plain.yaml \
        best=configs/multi30k_de_en.yaml --set 'data.train={source: train.de, target: train.en}' … [--seeds 1 2 3]
        [--goals 30 36 38 40] [--every 100] [--threads 1] [--picture docs/images/time-to-quality.svg]

Each config is trained to its end with each seed, and validated after every so many updates by greedy search over the
validation set. A goal is reached at the first validation with that BLEU. Seconds are those of updates alone, without
validations and checkpoints; compare them within one run of this program only. WORK gets the run folders; what is there
is not trained again, and a training that was interrupted continues; tokens and seconds of up to 49 updates before that
are not counted. For a config with `training.patience`, which counts validations, keep --every near its validate_every.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from page import ROOT, describe_run

LOGGED = 50  # updates between two lines with tokens and speed


@dataclass(frozen=True)
class Point:
    """A validation: what it found, and what had gone into the model by then."""

    updates: int
    tokens: int  # of targets, padding not included
    seconds: float
    bleu: float


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("configs", nargs="+", metavar="NAME=CONFIG")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all configs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--goals", nargs="+", type=float, default=[30, 36, 38, 40])
    parser.add_argument("--every", type=int, default=100, help=f"updates, a multiple of {LOGGED}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if options.every % LOGGED:
        parser.error(f"--every must be a multiple of {LOGGED}, after which tokens and speed are noted")
    named = dict(one.split("=", 1) for one in options.configs)
    options.work.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[list[Point]]] = {name: [] for name in named}
    for seed in options.seeds:  # seed after seed, so that a slow hour of the machine falls on all configs
        for name, config in named.items():
            run = options.work / f"{name}-{seed}"
            train(
                run,
                config,
                [*options.set, f"training.seed={seed}", f"training.validate_every={options.every}"],
                options,
            )
            curves[name].append(read_curve(run))
    print("\n".join([*table(curves, options.goals), "", describe_run(options.threads)]))
    if options.picture:
        draw(curves, options.picture)
    return 0


def train(run: Path, config: str, changes: Sequence[str], options: argparse.Namespace) -> None:
    """Train to the end, or continue where it was interrupted; nothing where it is finished."""
    changes = [*changes, f"training.log_every={LOGGED}"]
    arguments = ["train", config, "--out", str(run), "--quiet", *(part for one in changes for part in ("--set", one))]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": str(ROOT)}
    with run.with_suffix(".log").open("a") as log:
        command = [sys.executable, "-m", "transformer_cli", *arguments]
        if subprocess.run(command, stdout=log, stderr=log, env=environment, check=False).returncode:
            raise SystemExit(f"the training of {run} failed; see {log.name}")


def read_curve(run: Path) -> list[Point]:
    """Return the validations of a run in their order."""
    tokens, seconds, points = 0, 0.0, []
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "target_tokens" in event:
            tokens += event["target_tokens"]
            seconds += event["target_tokens"] / event["target_tokens_per_second"]
        if "valid_bleu" in event:
            points.append(Point(event["step"], tokens, seconds, event["valid_bleu"]))
    return points


def reached(curve: Sequence[Point], goal: float) -> Point | None:
    """Return the first validation with so much BLEU."""
    return next((point for point in curve if point.bleu >= goal), None)


def table(curves: dict[str, list[list[Point]]], goals: Sequence[float]) -> Iterator[str]:
    """Yield a line for each config and goal: the mean over the seeds, the least and the most."""
    yield "| config | BLEU on `val`, greedy | seeds that reach it | updates | target tokens, millions | seconds |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, runs in curves.items():
        for goal in goals:
            found = [point for point in (reached(curve, goal) for curve in runs) if point]
            cells = [
                spread([point.updates for point in found], "{:,.0f}"),
                spread([point.tokens / 1e6 for point in found], "{:.2f}"),
                spread([point.seconds for point in found], "{:,.0f}"),
            ]
            yield f"| {name} | {goal:g} | {len(found)} of {len(runs)} | " + " | ".join(cells) + " |"
        best = [max(point.bleu for point in curve) for curve in runs]
        yield f"| {name} | best: {spread(best, '{:.2f}')} | | | | |"


def spread(values: Sequence[float], form: str) -> str:
    """Return the mean, the least and the most."""
    if not values:
        return "–"
    middle, low, high = (form.format(value) for value in (mean(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low}–{high})"


def draw(curves: dict[str, list[list[Point]]], path: Path) -> None:
    """Draw BLEU against target tokens, a line a seed."""
    from matplotlib.figure import Figure

    from transformer_cli.plots.style import add_title, line_look, style

    with style():
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        for number, (name, runs) in enumerate(curves.items()):
            for seed, curve in enumerate(runs):
                tokens = [point.tokens / 1e6 for point in curve]
                label = None if seed else name
                axes.plot(tokens, [point.bleu for point in curve], label=label, **line_look(number))
        axes.set_xlabel("target tokens, millions")
        axes.set_ylabel("BLEU on the validation set, greedy")
        axes.legend()
        add_title(figure, "Quality against what was read")
    figure.savefig(path)


if __name__ == "__main__":
    sys.path.append(str(ROOT))
    sys.exit(main())
