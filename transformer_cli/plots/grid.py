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
LINE, LEAST_LINE = 0.16, 0.108  # that a line of labels takes, and the least height of a cell; with many tokens smaller
TALL, WIDE = 10.0, 14.0  # that all maps together take before their labels become smaller
TITLE = LINE + 0.06
LONGEST_LABEL = 1.5
GAP, CLOSE = 0.22, 0.08  # between two panels, with and without labels
MARGIN = 0.15
AXIS = 0.25  # for the name of an axis
BAR = 1.0  # height of the bar of colours
MAX_PIXELS = 40_000_000
LEAST_DPI = 100  # below, labels of 8 points cannot be read


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


def in_rows(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Return panels in rows of up to four: full rows where there can be, and the whole a little wider than high."""
    count = len(panels)
    widths = range(min(count, 2), min(count, 4) + 1)
    across = min(widths, key=lambda width: (-count % width, abs(width - 1.2 * count**0.5)))
    return [list(panels[start : start + across]) for start in range(0, count, across)]


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

    A panel's labels stand where its neighbour's to the left, or below, are not the same. x_label: of the lowest panels,
    y_labels: of each row. cell: inches across and down; None: as the labels need. Raises `UserError` where the picture
    would be too large to read; `fewer` says how to get a smaller one.
    """
    with style():
        shown = _once([[_visible(panel) for panel in row] for row in panels])
        every = [panel for row in panels for panel in row]
        sizes = _measure(every, len(panels), max(map(len, panels)), cell)
        lefts, tops, (right, bottom) = _places(shown, y_labels, sizes, 0.45 + 0.2 * len(lines) + TITLE)
        width = max(right + 0.2 + 0.65, 5.0)
        height = max(bottom, tops[0] + BAR + 0.1) + (AXIS if x_label else 0.0) + MARGIN
        figure = Figure(figsize=(width, height), dpi=_dpi(width, height, sizes.points, fewer))
        _write_head(figure, title, lines)
        for r, (row, y_label) in enumerate(zip(shown, y_labels, strict=True)):
            for c, panel in enumerate(row):
                h, w = panel.values.shape[0] * sizes.cell[1], panel.values.shape[1] * sizes.cell[0]
                axes = _axes(figure, lefts[c], tops[r], w, h, panel.name)
                image = axes.imshow(
                    panel.values,
                    cmap=colours.map,
                    vmin=colours.low,
                    vmax=colours.high,
                    aspect="auto",
                    interpolation="nearest",
                )
                _label(axes, panel, sizes, lined=bool(panels[r][c].labels[0]))
                if c == 0:
                    axes.set_ylabel(y_label, labelpad=4, loc="center" if text_width(y_label, 9) <= h else "top")
                if not any(c < len(below) for below in shown[r + 1 :]):
                    axes.set_xlabel(x_label, labelpad=4)
        bar = figure.colorbar(image, cax=_axes(figure, right + 0.2, tops[0], 0.12, BAR, "colours"))
        bar.set_label(colours.what, fontsize=8)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_linewidth(0.5)
    return figure


def _write_head(figure: Figure, title: str, lines: Sequence[str]) -> None:
    """Write the title and the lines below it, cut to the width of the figure."""
    width, height = figure.get_size_inches()
    room = 0.95 * (width - 2 * MARGIN)  # drawn pixel by pixel, letters are a little wider than measured
    bold = {"fontsize": 11, "fontweight": "bold"}
    texts: list[tuple[str, float, dict[str, Any]]] = [(title, 11 * 1.12, bold)]  # bold letters are wider
    texts += [(visible_line(line), 9, {"color": "#444444"}) for line in lines]
    for number, (text, points, look) in enumerate(texts):
        y = 1 - (0.22 + 0.2 * number + 0.04 * (number > 0)) / height
        figure.text(MARGIN / width, y, shorten(text, points, room), ha="left", va="center", **look)


def _visible(panel: Panel) -> Panel:
    rows, columns = panel.labels
    assert not rows or panel.values.shape == (len(rows), len(columns)), "a label for every cell"
    rows, columns = ([shorten(visible(one), POINTS, LONGEST_LABEL) for one in side] for side in panel.labels)
    return panel._replace(labels=(rows, columns))


def _once(panels: list[list[Panel]]) -> list[list[Panel]]:
    """Return the panels without the labels that the one to the left, or the one below, shows too."""
    found: list[list[Panel]] = []
    for r, row in enumerate(panels):
        found.append([])
        for c, panel in enumerate(row):
            rows, columns = panel.labels
            if c and rows == row[c - 1].labels[0]:
                rows = []
            if r + 1 < len(panels) and c < len(panels[r + 1]) and columns == panels[r + 1][c].labels[1]:
                columns = []
            found[-1].append(panel._replace(labels=(rows, columns)))
    return found


class _Layout(NamedTuple):
    """Of one figure; the same for all panels."""

    cell: tuple[float, float]  # across, down
    gap: tuple[float, float]  # between two panels
    points: float = POINTS  # of a label
    upright: bool = True  # column labels read from left to right


def _measure(panels: Sequence[Panel], down: int, across: int, cell: tuple[float, float] | None) -> _Layout:
    """Return the layout for panels of which so many stand below each other and beside each other."""
    rows, columns = (max(panel.values.shape[axis] for panel in panels) for axis in (0, 1))
    widest = _widest([label for panel in panels for label in _visible(panel).labels[1]], POINTS)
    if cell is not None:
        labelled = any(panel.labels[0] for panel in panels)
        return _Layout(cell, (GAP, TITLE + GAP) if labelled else (CLOSE, CLOSE), upright=widest + 0.06 <= cell[0])
    # A few tokens get larger cells; column labels stand upright where such cells are wide enough.
    line = max(LEAST_LINE, min(LINE, TALL / (down * rows), WIDE / (across * columns)))
    side = min(max(line, 2.0 / max(rows, columns)), 0.45)
    upright = widest + 0.06 <= max(side, min(0.36, 6.0 / columns))
    side = max(side, widest + 0.06) if upright else side
    side = max(side, _widest([panel.name for panel in panels], 9) / columns)
    return _Layout((side, side), (GAP, TITLE + GAP), POINTS * min(1.0, max(line, side) / LINE), upright)


def _places(
    shown: Sequence[Sequence[Panel]], y_labels: Sequence[str], sizes: _Layout, top: float
) -> tuple[list[float], list[float], tuple[float, float]]:
    """Return where each column of maps begins, where each row does, and where the last of both end, with its labels."""
    lefts, tops, right = [], [], MARGIN + AXIS
    for c in range(max(map(len, shown))):
        column = [row[c] for row in shown if c < len(row)]
        left = _widest([label for panel in column for label in panel.labels[0]], sizes.points)
        lefts.append(right + (left + 0.1 if left else 0.0))
        right = lefts[-1] + max(panel.values.shape[1] for panel in column) * sizes.cell[0] + sizes.gap[0]
    for row, y_label in zip(shown, y_labels, strict=True):
        tops.append(top)
        # Labels of a panel that has none below it fall into the empty place there.
        below = [panel.labels[1] for panel in row]
        wide = _widest([label for labels in below for label in labels], sizes.points)
        label = 0.0 if not wide or not all(below) else LINE if sizes.upright else wide + 0.1
        height = max(panel.values.shape[0] for panel in row) * sizes.cell[1] + label
        top += max(height, text_width(y_label, 9)) + sizes.gap[1]
    return lefts, tops, (right - sizes.gap[0], top - sizes.gap[1])


def _widest(labels: Sequence[str], points: float) -> float:
    return max((text_width(label, points) for label in labels), default=0.0)


def _dpi(width: float, height: float, points: float, fewer: str) -> float:
    least = LEAST_DPI * POINTS / points
    dpi = min(DPI, int((MAX_PIXELS / (width * height)) ** 0.5))
    if dpi < least or max(width, height) * dpi > 2**16 - 1:
        size = f"{width * least:,.0f} × {height * least:,.0f} pixels"
        raise UserError(f"the picture would have {size}, too many to look at; {fewer}")
    return dpi


def _axes(figure: Figure, left: float, top: float, width: float, height: float, name: str) -> Axes:
    """Axes at a place counted from the upper left corner."""
    w, h = figure.get_size_inches()
    return figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h), label=name)


def _label(axes: Axes, panel: Panel, sizes: _Layout, lined: bool) -> None:
    (row_labels, column_labels), (rows, columns) = panel.labels, panel.values.shape
    axes.set_title(panel.name if panel.title is None else panel.title, pad=3, loc="left" if lined else "center")
    turned = 0 if sizes.upright else 90
    axes.set_xticks(range(len(column_labels)), column_labels, rotation=turned, fontsize=sizes.points)
    axes.set_yticks(range(len(row_labels)), row_labels, fontsize=sizes.points)
    axes.grid(False)
    if lined:
        axes.vlines(np.arange(0.5, columns - 1), -0.5, rows - 0.5, color="white", linewidth=0.5)
        axes.hlines(np.arange(0.5, rows - 1), -0.5, columns - 0.5, color="white", linewidth=0.5)
    axes.tick_params(length=0, pad=2)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#888888", linewidth=0.6)
