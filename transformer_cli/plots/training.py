"""How training went: loss, BLEU and learning rate over the steps of one or several runs, from their metrics.jsonl.

`tfm plot training` and the demo call it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from transformer_cli.errors import UserError
from transformer_cli.plots.style import add_title, count_axis, distinct_names, isolated, line_look, style
from transformer_cli.storage.metrics import METRICS, Series, read_metrics

THIN = 0.8  # points of the line of the training loss


class _Panel(NamedTuple):
    title: str
    y_label: str
    height: float  # to that of the others
    keys: tuple[str, ...]


PANELS = (
    _Panel("loss", "nats per target token", 3.0, ("loss", "valid_loss")),
    _Panel("BLEU of the validation set, greedy search", "BLEU", 2.0, ("valid_bleu",)),
    _Panel("learning rate", "learning rate", 1.5, ("learning_rate",)),
)
Runs = Mapping[str, Mapping[str, Series]]  # by the run's name, then by its key


def training_figure(runs: Sequence[Path]) -> Figure:
    """Draw loss, BLEU (where it was measured) and learning rate above each other, over the same steps.

    A colour for each run, named below; training loss is the thin line, validation loss the one with dots. Raises
    `UserError` for a folder without metrics.
    """
    found = dict(zip(distinct_names(runs), [read_metrics(run) for run in runs], strict=True))
    for run, metrics in zip(runs, found.values(), strict=True):
        if not any(series.steps for series in metrics.values()):
            where = run / METRICS
            raise UserError(
                f"{where}: has no values yet; plot it when training has reached its first training.log_every"
            )
    panels = [panel for panel in PANELS if any(metrics[key].steps for metrics in found.values() for key in panel.keys)]
    heights = [panel.height for panel in panels]
    names = [isolated(name) for name in found]
    several = len(found) > 1
    with style():
        figure = Figure(figsize=(8, 1.2 + 1.1 * sum(heights) + 0.2 * several * len(found)), layout="constrained")
        add_title(figure, f"Training of {', '.join(names) if len(' '.join(names)) < 50 else f'{len(names)} runs'}")
        every = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        for panel, axes in zip(panels, every, strict=True):
            _draw(axes, panel, found)
        count_axis(every[-1], "step (update of the weights)")
        every[-1].set_xlim(left=0)
        figure.align_ylabels(every)
        if several:
            handles = [
                Line2D([], [], label=f"{name}: {_best(metrics)}", **line_look(number))
                for number, (name, metrics) in enumerate(zip(names, found.values(), strict=True))
            ]
            figure.legend(handles=handles, loc="outside lower center", fontsize=8)
    return figure


def _draw(axes: Axes, panel: _Panel, runs: Runs) -> None:
    """Draw the values of a panel for each run; those of validation have dots, and with one run a second colour."""
    for number, (name, metrics) in enumerate(runs.items()):
        labels = {"loss": "training", "valid_loss": "validation", "valid_bleu": _best(metrics), "learning_rate": name}
        for key in panel.keys:
            steps, values = metrics[key]
            validation = key.startswith("valid")
            marker = "o" if validation else "." if len(steps) == 1 else ""
            look = line_look(1 if validation and len(runs) == 1 else number)
            (line,) = axes.plot(steps, values, marker=marker, label=labels[key], **look)
            line.set_linewidth(THIN if key == "loss" else line.get_linewidth())
    axes.set_title(panel.title)
    axes.set_ylabel(panel.y_label)
    axes.yaxis.set_major_formatter("{x:g}")
    if "loss" in panel.keys:
        grey = "#666666"
        kinds = [Line2D([], [], color=grey, linewidth=THIN), Line2D([], [], color=grey, marker="o")]
        handles = kinds if len(runs) > 1 else axes.lines
        axes.legend(handles=handles, labels=["training", "validation"], fontsize=8, loc="upper right")
        return
    axes.set_ylim(bottom=0)
    if "valid_bleu" in panel.keys and len(runs) == 1:
        axes.legend(fontsize=8, loc="lower right")


def _best(metrics: Mapping[str, Series]) -> str:
    """Return the highest BLEU, and the first step that had it."""
    bleu = metrics["valid_bleu"]
    measured = [(value, -step) for step, value in zip(bleu.steps, bleu.values, strict=True) if value == value]
    if not measured:
        return "no BLEU"
    best, step = max(measured)
    return f"best BLEU {best:.1f}, step {-step:,}"
