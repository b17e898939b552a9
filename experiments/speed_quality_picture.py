"""The picture of `speed_quality.py`: BLEU against sentences per second, one panel per batch size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from transformer_cli.plots.style import add_title, line_look, style

PANEL = 5.2, 4.2  # inches


@dataclass(frozen=True)
class Point:
    """A model decoded in one way."""

    label: str
    group: str  # points of one group are joined by a line
    slow: float  # sentences per second: quartiles and median
    speed: float
    fast: float
    bleu: float  # the mean over the seeds, the least and the most
    worst: float
    best: float


def draw(panels: Mapping[int, Sequence[Point]], baseline: str) -> Figure:
    """By batch size the points; dashed lines go through the baseline, and the dotted one is at twice its speed."""
    with style():
        figure = Figure(figsize=(PANEL[0] * len(panels), PANEL[1]), layout="constrained")
        rows = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (batch, points) in zip(rows, panels.items(), strict=True):
            _panel(axes, points, baseline)
            axes.set_title(f"in batches of {batch} sentences" if batch > 1 else "one sentence at a time")
        rows[0].set_ylabel("BLEU")
        add_title(figure, "BLEU against speed")
    return figure


def _panel(axes: Axes, points: Sequence[Point], baseline: str) -> None:
    """Points with quartiles and spread; the higher and the further right, the better."""
    base = next(point for point in points if point.label == baseline)
    axes.axhline(base.bleu, color="#888888", linestyle="--", linewidth=0.8)
    axes.axvline(base.speed, color="#888888", linestyle="--", linewidth=0.8)
    axes.axvline(2 * base.speed, color="#888888", linestyle=":", linewidth=0.8)
    for times in (1, 2):
        axes.annotate(
            f"{times}×", (times * base.speed, 1), (3, -8), ("data", "axes fraction"), "offset points", color="#666666"
        )
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.group, []).append(point)
    for number, members in enumerate(groups.values()):
        look = line_look(number)
        axes.errorbar(
            [point.speed for point in members],
            [point.bleu for point in members],
            xerr=[[point.speed - point.slow for point in members], [point.fast - point.speed for point in members]],
            yerr=[[point.bleu - point.worst for point in members], [point.best - point.bleu for point in members]],
            marker="o",
            elinewidth=0.8,
            **look,
        )
        for point in members:
            axes.annotate(
                point.label, (point.speed, point.bleu), (4, 4), textcoords="offset points", color=look["color"]
            )
    axes.set_xscale("log")
    axes.margins(y=0.12)
    low, high = min(point.slow for point in points), max(point.fast for point in points)
    axes.set_xlim(low / 1.4, high * max(2.0, (high / low) ** 0.45))  # with room for the last label
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("sentences per second (logarithmic)")
