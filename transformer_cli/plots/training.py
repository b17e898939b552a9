"""How training went: loss, BLEU and learning rate over the steps of one or several runs, from their metrics.jsonl."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from transformer_cli.errors import UserError
from transformer_cli.plots.style import (
    add_title,
    check_picture,
    count_axis,
    distinct_names,
    isolated,
    line_look,
    plain_numbers,
    save,
    style,
)
from transformer_cli.storage.publishing import MANIFEST
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder

LARGEST = 1e12  # a step or a figure above it is no one's
THIN = 0.8  # points of the line of the training loss
KEYS = ("loss", "valid_loss", "valid_bleu", "learning_rate")


@dataclass
class Series:
    """A figure over the steps; NaN where it was no number."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def append(self, step: int, value: float) -> None:
        """One more point."""
        self.steps.append(step)
        self.values.append(value)


Runs = Mapping[str, Mapping[str, Series]]  # by the run's name, then by one of KEYS


def read_metrics(run: Path) -> dict[str, Series]:
    """What `metrics.jsonl` of a run folder tells of `KEYS`. A half-written last line (of a kill) is left out.

    Raises `UserError` where there is no such file, nothing in it, or anything else.
    """
    path = _metrics_path(run)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    metrics = {key: Series() for key in KEYS}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        event = _parse(line, f"{path}:{number}")
        for key in KEYS:
            if key in event:
                value = event[key]
                metrics[key].append(event["step"], math.nan if value is None else float(value))
    if not any(series.steps for series in metrics.values()):
        raise UserError(f"{path}: tells nothing yet; plot it when training has reached its first training.log_every")
    return metrics


def _metrics_path(run: Path) -> Path:
    path = RunFolder(run).metrics.path
    if not os.path.exists(run):
        raise UserError(f"{run}: no such folder; give a run folder, as tfm train made it")
    if not os.path.isdir(run):
        raise UserError(f"{run}: is a file; give a run folder, as tfm train made it")
    if not os.path.exists(path):
        if (run / WEIGHTS).exists() or (run / MANIFEST).exists():
            raise UserError(f"{run}: is a single model, which does not tell of its training; give the run folder")
        raise UserError(f"{run}: has no {path.name}, so it tells of no training; give the run folder of a training")
    return path


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(
            f"{where}: is no JSON, so the file is damaged; remove this line, or copy the file again"
        ) from None
    step = event.get("step") if isinstance(event, dict) else None
    values = [event.get(key) for key in KEYS] if isinstance(event, dict) else []
    whole = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < LARGEST
    if not whole or not all(value is None or _is_number(value) for value in values):
        raise UserError(f"{where}: is no event of a training; remove this line, or copy the file again")
    return dict(event)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST  # type: ignore[arg-type]


def training_figure(runs: Sequence[Path]) -> Figure:
    """Panels above each other, over the same steps: loss, BLEU (where it was measured) and learning rate.

    A colour for each run, named below; training loss is the thin line, validation loss the one with dots. Raises
    `UserError` for a folder that tells nothing.
    """
    found = dict(zip(distinct_names(runs), [read_metrics(run) for run in runs], strict=True))
    parts = [
        name
        for name, keys in (("loss", ("loss", "valid_loss")), ("BLEU", ("valid_bleu",)), ("rate", ("learning_rate",)))
        if any(metrics[key].steps for metrics in found.values() for key in keys)
    ]
    draw = {"loss": _draw_loss, "BLEU": _draw_bleu, "rate": _draw_rate}
    heights = [{"loss": 3, "BLEU": 2, "rate": 1.5}[part] for part in parts]
    with style():
        figure = Figure(
            figsize=(8, 1.2 + 1.1 * sum(heights) + 0.2 * (len(found) > 1) * len(found)), layout="constrained"
        )
        names = [isolated(name) for name in found]
        add_title(
            figure, f"Training of {', '.join(names)}" if len(" ".join(names)) < 50 else f"Training of {len(names)} runs"
        )
        panels = figure.subplots(len(parts), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        for part, axes in zip(parts, panels, strict=True):
            draw[part](axes, found)
        count_axis(panels[-1], "step (update of the weights)")
        panels[-1].set_xlim(left=0)
        figure.align_ylabels(panels)
        if len(found) > 1:
            _name_runs(figure, found)
    return figure


def _draw_loss(axes: Axes, runs: Runs) -> None:
    for number, metrics in enumerate(runs.values()):
        train, valid = metrics["loss"], metrics["valid_loss"]
        marker = "." if len(train.steps) == 1 else ""
        axes.plot(train.steps, train.values, linewidth=THIN, marker=marker, label="training", **line_look(number))
        look = line_look(number if len(runs) > 1 else 1)
        axes.plot(valid.steps, valid.values, marker="o", label="validation", **look)
    axes.set_title("loss")
    axes.set_ylabel("nats per target token")
    plain_numbers(axes)
    handles = (
        axes.lines
        if len(runs) == 1
        else [
            Line2D([], [], color="#666666", linewidth=THIN, label="training"),
            Line2D([], [], color="#666666", marker="o", label="validation"),
        ]
    )
    axes.legend(handles=list(handles), fontsize=8, loc="upper right")


def _draw_bleu(axes: Axes, runs: Runs) -> None:
    for number, metrics in enumerate(runs.values()):
        bleu = metrics["valid_bleu"]
        look = line_look(number if len(runs) > 1 else 1)
        axes.plot(bleu.steps, bleu.values, marker="o", label=_best(metrics), **look)
    axes.set_title("BLEU of the validation set, greedy search")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    if len(runs) == 1:
        axes.legend(fontsize=8, loc="lower right")


def _draw_rate(axes: Axes, runs: Runs) -> None:
    for number, (name, metrics) in enumerate(runs.items()):
        rate = metrics["learning_rate"]
        marker = "." if len(rate.steps) == 1 else ""
        axes.plot(rate.steps, rate.values, marker=marker, label=name, **line_look(number))
    axes.set_title("learning rate")
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0)
    plain_numbers(axes)


def _best(metrics: Mapping[str, Series]) -> str:
    """The highest BLEU, and the first step that had it."""
    bleu = metrics["valid_bleu"]
    measured = [(value, -step) for step, value in zip(bleu.steps, bleu.values, strict=True) if value == value]
    if not measured:
        return "no BLEU"
    best, step = max(measured)
    return f"best BLEU {best:.1f}, step {-step:,}"


def _name_runs(figure: Figure, runs: Runs) -> None:
    """The colour of each run, below all panels."""
    handles = [
        Line2D([], [], label=f"{isolated(name)}: {_best(metrics)}", **line_look(number))
        for number, (name, metrics) in enumerate(runs.items())
    ]
    figure.legend(handles=handles, loc="outside lower center", fontsize=8)


def plot_training(runs: Sequence[Path], out: str | Path) -> list[str]:
    """Write the picture of some runs; return what the user should know of it. Raises `UserError`."""
    check_picture(out)
    return save(training_figure(runs), out)
