"""Which fonts show a text: DejaVu Sans, which matplotlib brings along, then fonts of the system for what it lacks.

Shaping and the order of right-to-left text are matplotlib's (3.11 and newer).
"""

import contextlib
import functools
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from matplotlib.font_manager import FontEntry, FontProperties, findSystemFonts, fontManager
from matplotlib.ft2font import FaceFlags, FT2Font
from matplotlib.textpath import text_to_path

from transformer_cli.text.words import JOINER

BASE = "DejaVu Sans"
SQUARE = "\u25aa"  # ▪
_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # categories that need no glyph
_JOINERS = "\u200c\u200d"  # part of how Persian and Indic words are written


class Fonts(NamedTuple):
    """Families that together show a text, and the characters that none of them has."""

    families: tuple[str, ...]
    missing: tuple[str, ...]


def fonts_for(text: str) -> Fonts:
    """The fonts to draw a text with. Looks at the system's fonts only where DejaVu Sans does not suffice."""
    base = _open(fontManager.ttflist, BASE)
    needed = {character for character in text if unicodedata.category(character) not in _INVISIBLE}
    return _search(frozenset(character for character in needed if not base.get_char_index(ord(character))))


@functools.cache
def _search(wanted: frozenset[str]) -> Fonts:
    families = [BASE]
    missing = set(wanted)
    if missing:
        _know_new_fonts()
    for entry in _by_preference(fontManager.ttflist, missing) if missing else []:
        font = _open([entry], entry.name)
        if found := {character for character in missing if font.get_char_index(ord(character))}:
            missing -= found
            families.append(entry.name)
        if not missing:
            break
    return Fonts(tuple(families), tuple(sorted(missing)))


def _know_new_fonts() -> None:
    """Let matplotlib know the fonts that were installed since it last looked."""
    known = {entry.fname for entry in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in known:
            try:
                fontManager.addfont(path)
            except (OSError, RuntimeError, ValueError, KeyError):
                continue  # not a font that matplotlib can read


def _by_preference(entries: Iterable[FontEntry], characters: Iterable[str]) -> list[FontEntry]:
    """Upright fonts of regular weight that can be drawn; Noto Sans first, in the script that the text is in.

    Chinese and Japanese share characters that they draw differently: kana tell the one, hangul Korean.
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
    return [entry for entry in sorted(plain.values(), key=rank) if _can_be_drawn(entry)]


def _can_be_drawn(entry: FontEntry) -> bool:
    try:
        return FaceFlags.SCALABLE in FT2Font(entry.fname, face_index=entry.index).face_flags
    except (OSError, RuntimeError):
        return False


def _open(entries: Iterable[FontEntry], name: str) -> FT2Font:
    entry = next(entry for entry in entries if entry.name == name and entry.style == "normal")
    return FT2Font(entry.fname, face_index=entry.index)


def missing_note(missing: Iterable[str]) -> str:
    """What to install so that these characters are shown, in one line."""
    characters = list(missing)
    names = {unicodedata.name(character, "").split(" ")[0] for character in characters}
    east_asian = names & {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC", "FULLWIDTH", "BOPOMOFO"}
    shown = " ".join(map(visible, characters[:5])) + (" …" if len(characters) > 5 else "")
    count = "1 character" if len(characters) == 1 else f"{len(characters):,} characters"
    package = "fonts-noto-cjk" if east_asian else "fonts-noto-core"
    return (
        f"no font here has {count} ({shown}), so boxes stand for them; install one that does, such as Noto "
        f"(apt-get install {package}), and plot again"
    )


@contextlib.contextmanager
def quiet_boxes() -> Iterator[None]:
    """Inside, matplotlib does not warn of each character that no font has: `missing_note` says it once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


@functools.lru_cache(10_000)  # a grid measures the same labels again and again
def text_width(text: str, points: float) -> float:
    """How wide a text is, in inches."""
    font = FontProperties(family=list(fonts_for(text).families), size=points)
    with quiet_boxes():
        return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def shorten(text: str, points: float, inches: float) -> str:
    """The text, with … for what does not fit into so many inches."""
    if text_width(text, points) <= inches:
        return text
    fits = 0
    for step in (256, 128, 64, 32, 16, 8, 4, 2, 1):
        while fits + step < len(text) and text_width(text[: fits + step] + "…", points) <= inches:
            fits += step
    return text[:fits].rstrip() + "…"


def visible(token: str) -> str:
    """A token as it can stand beside a picture: nothing in it that is not seen, or that turns the text around it.

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
    """A text as one visible line, with its spaces."""
    return " ".join(visible(word) for word in text.split())
