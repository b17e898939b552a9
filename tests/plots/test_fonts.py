"""Every script is legible: the right fonts, joined and ordered letters, and one note where no font will do."""

from collections.abc import Iterator

import pytest
from matplotlib.font_manager import FontEntry, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.textpath import text_to_path

from transformer_cli.plots import style as fonts
from transformer_cli.plots.style import BASE, fonts_for, missing_note, shorten, style, text_width, visible


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with no fonts but DejaVu Sans."""
    own = [entry for entry in fontManager.ttflist if entry.name == BASE]
    monkeypatch.setattr(fontManager, "ttflist", own)
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: [])
    fonts._search.cache_clear()
    yield
    fonts._search.cache_clear()


def test_what_dejavu_has_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_add_new_fonts", lambda: pytest.fail("looked for fonts"))
    assert fonts_for("Straße ▁Ελλάδα русский السلام שָׁלוֹם ▪ … → \u200c \u3000 \n") == ((BASE,), ())


@pytest.mark.usefixtures("bare")
def test_characters_that_no_font_has_are_named_with_what_to_install() -> None:
    found = fonts_for("私は Bob 中文")
    assert found.families == (BASE,)
    assert set(found.missing) == set("私は中文")
    assert "4 characters" in missing_note(found.missing)
    assert "fonts-noto-core fonts-noto-cjk" in missing_note(found.missing)
    with style():
        assert text_width("中文", 8) > 0  # and no warning


@pytest.mark.usefixtures("bare")
def test_a_font_installed_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import get_data_path

    path = f"{get_data_path()}/fonts/ttf/STIXGeneral.ttf"
    base = next(entry.fname for entry in fontManager.ttflist if entry.style == "normal" and entry.weight == 400)
    lacking = sorted(set(FT2Font(path).get_charmap()) - set(FT2Font(base).get_charmap()))
    character = next(chr(code) for code in lacking if chr(code).isprintable() and not 0xE000 <= code < 0xF900)
    assert fonts_for(f"a{character}").missing == (character,)
    monkeypatch.setattr(fonts, "findSystemFonts", lambda: ["/no/such/font.ttf", path])
    fonts._search.cache_clear()
    assert fonts_for(f"a{character}") == ((BASE, "STIXGeneral"), ())


@pytest.mark.usefixtures("bare")
def test_a_font_removed_meanwhile_is_passed_over() -> None:
    fontManager.ttflist.append(FontEntry(fname="/no/such/font.ttf", name="Noto Sans", style="normal", weight=400))
    assert fonts_for("中") == ((BASE,), ("中",))


def test_chinese_and_japanese_get_the_glyphs_of_their_own() -> None:
    names = ["Mincho Serif", "Other Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Last Resort", "Noto Sans"]
    entries = [FontEntry(name=name, weight=400) for name in names] + [FontEntry(name="Bold", weight=700)]

    def order(text: str) -> list[str]:
        return [entry.name for entry in fonts._by_preference(entries, text)]

    assert order("中文") == ["Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Other Sans", "Mincho Serif"]
    assert order("日本の")[:3] == ["Noto Sans", "Noto Sans CJK JP", "Noto Sans CJK SC"]


def outlines(text: str) -> list[tuple[float, ...]]:
    from matplotlib.font_manager import FontProperties

    corners, _ = text_to_path.get_text_path(FontProperties(family=[BASE]), text)
    return [tuple(corner) for corner in corners]


def test_arabic_is_joined_and_hebrew_runs_from_right_to_left() -> None:
    word = "سلام"
    assert text_width(word, 10) < 0.9 * sum(text_width(letter, 10) for letter in word)
    left_to_right = "\u202d"
    assert outlines("שלום") == outlines(left_to_right + "שלום"[::-1])
    assert outlines("שלום") != outlines(left_to_right + "שלום")


def test_long_texts_are_cut_to_their_room() -> None:
    for text in ("Donaudampfschifffahrtsgesellschaft", "WWW " * 100):
        for inches in (0.3, 1.0, 3.0):
            cut = shorten(text, 8, inches)
            assert text_width(cut, 8) <= inches
            assert cut == text or (cut.endswith("…") and text.startswith(cut[:-1]))
    assert shorten("short", 8, 1.0) == "short"


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("▁Hund", "▁Hund"),
        ("a\u202eb", "a<U+202E>b"),
        ("\uffed.", "\u25aa."),
        ("\t", "<U+0009>"),
        ("\u3000", "<U+3000>"),
        (" ", "␣"),
        ("\u0301", "\u25cc\u0301"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("", ""),
    ],
)
def test_labels_show_what_is_not_seen(token: str, label: str) -> None:
    assert visible(token) == label
