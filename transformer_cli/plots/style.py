"""How all pictures look: matplotlib's settings, whatever the user's own are, a palette, fonts for every script, and
`save`, which writes PNG and SVG files."""

import contextlib
import functools
import io
import os
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, FontProperties, findfont, findSystemFonts, fontManager, get_font
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import atomic_write
from transformer_cli.text.tokenizers import JOINER

BASE = "DejaVu Sans"
SQUARE = "\u25aa"  # ▪
_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories that need no glyph
_JOINERS = "\u200c\u200d"  # part of how Persian and Indic words are written


class Fonts(NamedTuple):
    """Families that together show a text, for matplotlib to fall back on in their order, and what none of them has."""

    families: tuple[str, ...]
    missing: tuple[str, ...]  # characters


def fonts_for(text: str) -> Fonts:
    """Return the fonts to draw a text with. Looks at the system's fonts only where DejaVu Sans does not suffice."""
    shown = {character for character in text if unicodedata.category(character) not in _INVISIBLE}
    return _search(frozenset(_missing_in(get_font(findfont(FontProperties(family=[BASE]))), shown)))


def _missing_in(font: FT2Font, characters: Iterable[str]) -> set[str]:
    return {character for character in characters if not font.get_char_index(ord(character))}


@functools.cache
def _search(wanted: frozenset[str]) -> Fonts:
    families, missing = [BASE], set(wanted)
    if missing:
        _add_new_fonts()
    for entry in _by_preference(fontManager.ttflist, missing) if missing else []:
        try:
            still_missing = _missing_in(FT2Font(entry.fname, face_index=entry.index), missing)
        except (OSError, RuntimeError):
            continue  # removed since matplotlib looked
        if len(still_missing) < len(missing):
            families.append(entry.name)
            missing = still_missing
        if not missing:
            break
    return Fonts(tuple(families), tuple(sorted(missing)))


def _add_new_fonts() -> None:
    """Let matplotlib know the fonts that were installed since it last looked."""
    known = {entry.fname for entry in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in known:
            with contextlib.suppress(OSError, RuntimeError, ValueError, KeyError):  # a font that it cannot read
                fontManager.addfont(path)


def _by_preference(entries: Iterable[FontEntry], characters: Iterable[str]) -> list[FontEntry]:
    """Return an upright font of regular weight of each family; Noto Sans first, in the script that the text is in.

    Chinese and Japanese share characters that they draw differently: kana show Japanese, hangul Korean.
    """
    scripts = {unicodedata.name(character, "").split(" ")[0] for character in characters}
    variant = "JP" if scripts & {"HIRAGANA", "KATAKANA"} else "KR" if "HANGUL" in scripts else "SC"

    def rank(entry: FontEntry) -> tuple[bool, bool, bool, str, str]:
        foreign = entry.name.startswith("Noto") and "CJK" in entry.name and not entry.name.endswith(f"CJK {variant}")
        odd = any(word in entry.name for word in ("Serif", "Mono", "Condensed"))
        return odd, not entry.name.startswith("Noto Sans"), foreign, entry.name, entry.fname

    plain: dict[str, FontEntry] = {}
    for entry in entries:
        # The last resort has a box for every character, and says nothing by it.
        regular = entry.style == "normal" and entry.weight in (400, "normal", "regular")
        if regular and not entry.name.startswith(("Last Resort", ".LastResort")):
            plain.setdefault(entry.name, entry)
    return sorted(plain.values(), key=rank)


def missing_note(characters: Sequence[str]) -> str:
    """Return what to install so that these characters are shown, in one line."""
    shown = " ".join(map(visible, characters[:5])) + (" …" if len(characters) > 5 else "")
    count = "1 character" if len(characters) == 1 else f"{len(characters):,} characters"
    return (
        f"no font here has {count} ({shown}), so boxes stand for them; install one that does, such as Noto "
        "(apt-get install fonts-noto-core fonts-noto-cjk), and plot again"
    )


@functools.lru_cache(10_000)  # a grid measures the same labels again and again
def text_width(text: str, points: float) -> float:
    """Return the width of a text in inches."""
    font = FontProperties(family=list(fonts_for(text).families), size=points)
    return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def shorten(text: str, points: float, inches: float) -> str:
    """Return the text, with … for what does not fit into so many inches."""
    if text_width(text, points) <= inches:
        return text
    fits = 0
    for step in (256, 128, 64, 32, 16, 8, 4, 2, 1):
        while fits + step < len(text) and text_width(text[: fits + step] + "…", points) <= inches:
            fits += step
    return text[:fits].rstrip() + "…"


def visible(token: str) -> str:
    """Return a token as a label: nothing in it that is not seen, or that turns the text around it.

    The joiner of word tokens becomes a square that DejaVu Sans has.
    """
    token = token.replace(JOINER, SQUARE)
    shown = "".join(
        character if character.isprintable() or character in _JOINERS else f"<U+{ord(character):04X}>"
        for character in token
    )
    blank = "".join("␣" if character.isspace() else character for character in shown)
    return "\u25cc" + blank if blank and unicodedata.combining(blank[0]) else blank


def visible_line(text: str) -> str:
    """Return a text as one visible line, with its spaces."""
    return " ".join(visible(word) for word in text.split())


DPI = 150  # of PNG files, where that does not make them too large
# Okabe and Ito's colours: distinct with any kind of colour blindness. (Their yellow is too light for lines.)
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LONGEST_NAME = 60  # characters of a config's or a run's name
DASHES = ("-", "--", ":", "-.")  # one after the other where there are more lines than colours

_SETTINGS: dict[Any, Any] = {
    "figure.dpi": DPI,
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
    "lines.markersize": 4.0,
    "legend.frameon": False,
    "svg.fonttype": "path",  # looks the same wherever it is shown, with or without our fonts
    "svg.hashsalt": "transformer-cli",  # the same picture has the same bytes
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Set matplotlib to its defaults with our settings, for drawing, measuring and saving; after it, all is as before.

    No warning comes of each character that no font has: `save` says it once.
    """
    with matplotlib.style.context(_SETTINGS, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def line_look(number: int) -> dict[str, Any]:
    """Return colour and dashes of the line `number`, from 0."""
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": DASHES[number // len(PALETTE) % len(DASHES)]}


def add_title(figure: Figure, text: str) -> None:
    """Write above a picture what it shows."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")


def count_axis(axes: Axes, name: str) -> None:
    """Name an x axis that counts something: whole numbers, with commas."""
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(whole_numbers())
    axes.xaxis.set_major_formatter("{x:,.0f}")


def whole_numbers() -> MaxNLocator:
    """Return ticks at whole and round numbers only."""
    return MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or the whole path where others end alike; long ones lose their beginning."""
    names = [path.absolute().name for path in paths]
    chosen = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    short = [name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}" for name in chosen]
    return [visible_line(name) for name in (short if len({*short}) == len({*chosen}) else chosen)]


def isolated(name: str) -> str:
    """Return a name that turns no text around it, though it be written from right to left."""
    turns = any(unicodedata.bidirectional(character) in ("R", "AL") for character in name)
    return f"\u2068{name}\u2069" if turns else name


FORMATS = (".png", ".svg")
SOFTWARE = "transformer-cli"  # in each PNG: who drew it


def check_picture(path: str | Path) -> None:
    """Raise `UserError` where the name is not that of a PNG or SVG file."""
    suffix = Path(path).suffix
    if suffix.lower() not in FORMATS:
        ends = f"ends in {suffix}" if suffix else "has no suffix"
        raise UserError(f"{path}: {ends}, but a picture is a .png or a .svg file; name it so")


def check_free(path: Path) -> None:
    """Raise `UserError` where a picture that nobody gave a name would replace a file that is no PNG of ours."""
    if os.path.isfile(path) and SOFTWARE.encode() not in path.read_bytes()[:4096]:
        raise UserError(f"{path}: is there already, and tfm did not draw it; move it, or let the picture go elsewhere")


def save(figure: Figure, path: str | Path) -> list[str]:
    """Write the picture; return what the user should know of it (characters that no font has).

    Raises `UserError` for a name that is neither PNG's nor SVG's, and `OSError` where it cannot be written.
    """
    check_picture(path)
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    fonts = fonts_for("".join(sorted({character for text in texts for character in text.get_text()})))
    for text in texts:
        text.set_fontfamily(list(fonts.families))
    content = io.BytesIO()
    with style():
        kind = Path(path).suffix.lower().removeprefix(".")
        metadata = {"png": {"Software": SOFTWARE}, "svg": {"Date": None}}[kind]  # no time of day
        figure.savefig(content, format=kind, dpi="figure", metadata=metadata)
    try:
        atomic_write(os.path.realpath(path), content.getvalue())
    except OSError as error:
        error.filename = str(path)  # not the temporary one's name
        raise
    return [missing_note(fonts.missing)] if fonts.missing else []
