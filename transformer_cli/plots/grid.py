"""A grid of maps under a title, with a bar of colours: what attention, masks and entropies are drawn as.

All sizes are in inches: labels stay readable, and the figure grows with what it shows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from transformer_cli.errors import UserError
from transformer_cli.plots.style import DPI, shorten, style, text_width, visible, visible_line

POINTS = 8.0  # of a label
LINE = 0.16  # that a line of labels takes, and the least height of a cell
TITLE = LINE + 0.06
LONGEST_LABEL = 1.5
GAP, CLOSE = 0.25, 0.08  # between two panels, with and without labels
MARGIN = 0.15
AXIS = 0.25  # for the name of an axis
BAR = 1.0  # height of the bar of colours
MAX_PIXELS = 40_000_000
LEAST_DPI = 100  # below, labels cannot be read


class Panel(NamedTuple):
    """One map of a grid."""

    name: str
    values: npt.NDArray[Any]  # (rows, columns)
    labels: tuple[Sequence[str], Sequence[str]] = ((), ())  # of rows and columns; none: the map has no ticks
    title: str | None = None  # above it; None: its name


class Colours(NamedTuple):
    """What the colours of a grid mean."""

    what: str
    map: str | Colormap
    low: float
    high: float


def draw_grid(
    panels: Sequence[Sequence[Panel]],
    *,
    title: str,
    lines: Sequence[str],
    x_label: str,
    y_labels: Sequence[str],
    colours: Colours,
    cell: tuple[float, float] | None = None,
    fewer: str = "",
) -> Figure:
    """Draw rows of panels under a title and some lines of text; the last axes of the figure are the bar of colours.

    x_label: of the lowest panels, y_labels: of each row. cell: inches across and down; None: as the labels need. Raises
    `UserError` where the picture would be too large to read; `fewer` says how to get a smaller one.
    """
    with style():
        shown = [[_visible(panel) for panel in row] for row in panels]
        every = [panel for row in shown for panel in row]
        rows, columns = (max(panel.values.shape[axis] for panel in every) for axis in (0, 1))
        sizes = _measure(every, rows, columns, cell)
        longest_name = max(text_width(label, 9) for label in y_labels)
        across = sizes.left + columns * sizes.cell[0] + sizes.gap[0]
        down = max(rows * sizes.cell[1] + sizes.below, longest_name) + sizes.gap[1]
        top = 0.45 + 0.2 * len(lines) + TITLE
        right = MARGIN + AXIS + across * max(map(len, shown)) - sizes.gap[0] + 0.2
        width = max(right + 0.65, 5.0)
        height = top + max(down * len(shown) - sizes.gap[1], BAR) + AXIS + 0.2
        figure = Figure(figsize=(width, height), dpi=_dpi(width, height, fewer))

        room = 0.95 * (width - 2 * MARGIN)  # drawn pixel by pixel, letters are a little wider than measured
        bold = {"fontsize": 11, "fontweight": "bold"}
        texts: list[tuple[str, float, dict[str, Any]]] = [(title, 11 * 1.12, bold)]  # bold letters are wider
        texts += [(visible_line(line), 9, {"color": "#444444"}) for line in lines]
        for number, (text, points, look) in enumerate(texts):
            y = 1 - (0.22 + 0.2 * number + 0.04 * (number > 0)) / height
            figure.text(MARGIN / width, y, shorten(text, points, room), ha="left", va="center", **look)
        for r, (row, y_label) in enumerate(zip(shown, y_labels, strict=True)):
            for c, panel in enumerate(row):
                h, w = panel.values.shape[0] * sizes.cell[1], panel.values.shape[1] * sizes.cell[0]
                axes = _axes(figure, MARGIN + AXIS + c * across + sizes.left, top + r * down, w, h, panel.name)
                image = axes.imshow(
                    panel.values,
                    cmap=colours.map,
                    vmin=colours.low,
                    vmax=colours.high,
                    aspect="auto",
                    interpolation="nearest",
                )
                _label(axes, panel, sizes.upright)
                if c == 0:
                    axes.set_ylabel(y_label, labelpad=4, loc="center" if text_width(y_label, 9) <= h else "top")
                if r == len(shown) - 1:
                    axes.set_xlabel(x_label, labelpad=4)
        bar = figure.colorbar(image, cax=_axes(figure, right, top, 0.12, BAR, "colours"))
        bar.set_label(colours.what, fontsize=8)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_linewidth(0.5)
    return figure


def _visible(panel: Panel) -> Panel:
    rows, columns = panel.labels
    assert not rows or panel.values.shape == (len(rows), len(columns)), "a label for every cell"
    rows, columns = ([shorten(visible(one), POINTS, LONGEST_LABEL) for one in side] for side in panel.labels)
    return panel._replace(labels=(rows, columns))


class _Layout(NamedTuple):
    """Of one figure; the same for all panels."""

    cell: tuple[float, float]  # across, down
    gap: tuple[float, float]  # between two panels
    left: float = 0.0  # room for row labels
    below: float = 0.0  # room for column labels
    upright: bool = True  # column labels read from left to right


def _measure(panels: Sequence[Panel], rows: int, columns: int, cell: tuple[float, float] | None) -> _Layout:
    """Return the layout for panels of up to so many rows and columns."""
    widest_row, widest_column = (
        max((text_width(label, POINTS) for panel in panels for label in panel.labels[side]), default=0.0)
        for side in (0, 1)
    )
    if cell is not None and not widest_row:
        return _Layout(cell, gap=(CLOSE, CLOSE))
    # A few tokens get larger cells; column labels stand upright where such cells are wide enough.
    side = min(max(LINE, 2.0 / max(rows, columns)), 0.45)
    upright = widest_column + 0.06 <= (cell[0] if cell else max(side, min(0.36, 6.0 / columns)))
    if cell is None:
        side = max(side, widest_column + 0.06) if upright else side
        side = max(side, max(text_width(panel.name, 9) for panel in panels) / columns)
        cell = side, side
    below = LINE if upright else widest_column + 0.1
    return _Layout(cell, (GAP, TITLE + GAP), widest_row + 0.1, below, upright)


def _dpi(width: float, height: float, fewer: str) -> float:
    dpi = min(DPI, int((MAX_PIXELS / (width * height)) ** 0.5))
    if dpi < LEAST_DPI or max(width, height) * dpi > 2**16 - 1:
        size = f"{width * LEAST_DPI:,.0f} × {height * LEAST_DPI:,.0f} pixels"
        raise UserError(f"the picture would have {size}, too many to look at; {fewer}")
    return dpi


def _axes(figure: Figure, left: float, top: float, width: float, height: float, name: str) -> Axes:
    """Axes at a place counted from the upper left corner."""
    w, h = figure.get_size_inches()
    return figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h), label=name)


def _label(axes: Axes, panel: Panel, upright: bool) -> None:
    (row_labels, column_labels), (rows, columns) = panel.labels, panel.values.shape
    axes.set_title(panel.name if panel.title is None else panel.title, pad=3, loc="left" if row_labels else "center")
    axes.set_xticks(range(len(column_labels)), column_labels, rotation=0 if upright else 90, fontsize=POINTS)
    axes.set_yticks(range(len(row_labels)), row_labels, fontsize=POINTS)
    axes.grid(False)
    if row_labels:
        axes.vlines(np.arange(0.5, columns - 1), -0.5, rows - 0.5, color="white", linewidth=0.5)
        axes.hlines(np.arange(0.5, rows - 1), -0.5, columns - 0.5, color="white", linewidth=0.5)
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#888888", linewidth=0.6)
