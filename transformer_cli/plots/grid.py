"""A grid of matrices with a token at every row and every column: what attention and masks are drawn as.

Cells have a fixed size, so that labels stay readable; the figure grows with them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from transformer_cli.errors import UserError
from transformer_cli.plots.style import DPI, shorten, text_width, visible, visible_line

POINTS = 8.0  # of a label
LINE = 0.16  # inches that a line of labels takes, and the least height of a cell
LONGEST_LABEL = 1.5  # inches
GAP = 0.25  # inches between two panels
LEAST_STEP = 1.7  # inches from one panel down to the next: room for the name of the axis
MARGIN = 0.15
MAX_PIXELS = 40_000_000
LEAST_DPI = 100  # below, labels cannot be read


@dataclass(frozen=True, eq=False)
class Panel:
    """One matrix of a grid."""

    title: str
    values: npt.NDArray[Any]  # (rows, columns)
    rows: Sequence[str]  # labels
    columns: Sequence[str]


@dataclass(frozen=True)
class _Sizes:
    """Of one figure, in inches; the same for all panels."""

    cell: float
    upright: bool  # column labels read from left to right
    left: float  # room for row labels
    below: float  # room for column labels
    rows: int  # cells of the largest panel
    columns: int

    @property
    def step(self) -> tuple[float, float]:
        """From one panel to the next, across and down."""
        down = LINE + self.rows * self.cell + self.below + GAP
        return self.left + self.columns * self.cell + GAP, max(down, LEAST_STEP)


def draw_grid(
    panels: Sequence[Sequence[Panel]],
    *,
    title: str,
    lines: Sequence[str],
    x_label: str,
    y_label: str,
    draw: Callable[[Axes, Panel], AxesImage],
    legend: Callable[[Figure, AxesImage, tuple[float, float, float, float]], None],
    fewer: str,
) -> Figure:
    """Rows of panels under a title and some lines of text.

    `draw` puts a panel's values into its axes; `legend` explains the colours in the place (left, bottom, width, height
    as fractions) that is kept for it. `fewer` says how to get a smaller picture, where this one would be too large to
    read: a `UserError`.
    """
    shown = [[_visible(panel) for panel in row] for row in panels]
    sizes = _measure([panel for row in shown for panel in row])
    across, down = sizes.step
    head = 0.45 + 0.2 * len(lines)
    axis = 0.25  # inches for the name of an axis
    right = MARGIN + axis + across * max(map(len, shown))  # of the panels
    width = max(right + 0.6, 4.0)
    height = head + down * len(shown) + axis
    figure = Figure(figsize=(width, height), dpi=_dpi(width, height, fewer))

    room = width - 2 * MARGIN
    _write(figure, MARGIN, 0.22, shorten(title, 11 * 1.12, room), fontsize=11, fontweight="bold")
    for number, line in enumerate(lines):
        _write(figure, MARGIN, 0.46 + 0.2 * number, shorten(visible_line(line), 9, room), fontsize=9, color="#444444")
    for r, row in enumerate(shown):
        for c, panel in enumerate(row):
            left = MARGIN + axis + c * across + sizes.left
            top = head + r * down + LINE + 0.06
            h, w = (size * sizes.cell for size in panel.values.shape)
            axes = figure.add_axes((left / width, 1 - (top + h) / height, w / width, h / height))
            image = draw(axes, panel)
            _label(axes, panel, sizes.upright)
            if c == 0:
                fits = text_width(y_label, 9) <= h
                axes.set_ylabel(y_label, labelpad=4, loc="center" if fits else "top")
            if r == len(shown) - 1:
                axes.set_xlabel(x_label, labelpad=4)
    place = (right - 0.05) / width, 1 - (head + LINE + 0.06 + 1.2) / height, 0.12 / width, 1.2 / height
    legend(figure, image, place)
    return figure


def _visible(panel: Panel) -> Panel:
    rows, columns = ([shorten(visible(label), POINTS, LONGEST_LABEL) for label in side] for side in _sides(panel))
    return Panel(panel.title, panel.values, rows, columns)


def _sides(panel: Panel) -> tuple[Sequence[str], Sequence[str]]:
    assert panel.values.shape == (len(panel.rows), len(panel.columns)), "a label for every row and every column"
    return panel.rows, panel.columns


def _measure(panels: Sequence[Panel]) -> _Sizes:
    rows, columns = max(len(panel.rows) for panel in panels), max(len(panel.columns) for panel in panels)
    widths = {label: text_width(label, POINTS) for panel in panels for side in _sides(panel) for label in side}
    widest_row = max(widths[label] for panel in panels for label in panel.rows)
    widest_column = max(widths[label] for panel in panels for label in panel.columns)
    # A few tokens get larger cells; column labels stand upright where such cells are wide enough.
    cell = min(max(LINE, 2.0 / max(rows, columns)), 0.45)
    upright = widest_column + 0.06 <= max(cell, min(0.36, 6.0 / columns))
    cell = max(cell, widest_column + 0.06) if upright else cell
    title = max(text_width(panel.title, 9) for panel in panels)
    return _Sizes(
        cell=max(cell, title / columns),
        upright=upright,
        left=widest_row + 0.1,
        below=LINE if upright else widest_column + 0.1,
        rows=rows,
        columns=columns,
    )


def _dpi(width: float, height: float, fewer: str) -> float:
    dpi = min(DPI, int((MAX_PIXELS / (width * height)) ** 0.5))
    if dpi < LEAST_DPI or max(width, height) * dpi > 2**16 - 1:
        size = f"{width * LEAST_DPI:,.0f} × {height * LEAST_DPI:,.0f} pixels"
        raise UserError(f"the picture would have {size}, too many to look at; {fewer}")
    return dpi


def _label(axes: Axes, panel: Panel, upright: bool) -> None:
    rows, columns = panel.values.shape
    axes.set_title(panel.title, pad=3)
    axes.set_xticks(range(columns), panel.columns, rotation=0 if upright else 90, fontsize=POINTS)
    axes.set_yticks(range(rows), panel.rows, fontsize=POINTS)
    axes.grid(False)
    axes.vlines(np.arange(0.5, columns - 1), -0.5, rows - 0.5, color="white", linewidth=0.5)
    axes.hlines(np.arange(0.5, rows - 1), -0.5, columns - 0.5, color="white", linewidth=0.5)
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#888888", linewidth=0.6)


def _write(figure: Figure, left: float, top: float, text: str, **look: Any) -> None:
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - top / height, text, ha="left", va="center", **look)
