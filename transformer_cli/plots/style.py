"""How all pictures look: one set of matplotlib's settings, whatever the user's own are, and a palette."""

import contextlib
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from transformer_cli.plots.fonts import visible_line

DPI = 150  # of PNG files, where that does not make them too large
# Okabe and Ito's colours: told apart with any kind of colour blindness. (Their yellow is too light for lines.)
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LONGEST_NAME = 60  # characters of a config's or a run's name
DASHES = ("-", "--", ":", "-.")  # one after the other where there are more lines than colours

_SETTINGS: dict[Any, Any] = {
    "figure.dpi": DPI,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.parse_math": False,  # a token may hold dollar signs
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.0,
    "legend.frameon": False,
    "svg.fonttype": "path",  # looks the same wherever it is shown, with or without our fonts
    "svg.hashsalt": "transformer-cli",  # the same picture has the same bytes
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Inside, matplotlib's settings are its defaults with ours; after it, as before."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def line_look(number: int) -> dict[str, Any]:
    """Colour and dashes of the line `number`, from 0."""
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": DASHES[number // len(PALETTE) % len(DASHES)]}


def add_title(figure: Figure, text: str) -> None:
    """What the whole picture shows, above it."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")


def count_axis(axes: Axes, name: str) -> None:
    """The x axis counts something: whole numbers, with commas."""
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(whole_numbers())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def whole_numbers() -> MaxNLocator:
    """Ticks at whole and round numbers only."""
    return MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)


def plain_numbers(axes: Axes) -> None:
    """The y axis shows 0.0005 and not 5 with a factor somewhere else."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path; the whole path where others end alike. Shortened from the left where it is long."""
    names = [path.absolute().name for path in paths]
    chosen = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    short = [name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}" for name in chosen]
    return [visible_line(name) for name in (short if len({*short}) == len({*chosen}) else chosen)]


def isolated(name: str) -> str:
    """A name that turns no text around it, though it be written from right to left."""
    turns = any(unicodedata.bidirectional(character) in ("R", "AL") for character in name)
    return f"\u2068{name}\u2069" if turns else name
