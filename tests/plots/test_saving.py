"""Files are PNG or SVG by their suffix, whole or not at all, and the same for the same picture."""

import errno
import html
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from transformer_cli.errors import UserError
from transformer_cli.plots.attention import attention_figure
from transformer_cli.plots.diagrams import positions_figure
from transformer_cli.plots.style import save, style

WORDS = ["▁ein", "$a$x_1^2$", "السلام", "שלום", "<&>", "a--b"]


def test_a_png_has_the_size_of_the_figure(tmp_path: Path, make_attention: Any) -> None:
    figure = attention_figure(make_attention(1, 2, WORDS))
    tokens = [text for text in figure.findobj(Text) if isinstance(text, Text) and "$" in text.get_text()]
    assert len(tokens) > 3
    assert not any(text.get_parse_math() for text in tokens)
    assert save(figure, tmp_path / "a.PNG") == []
    content = (tmp_path / "a.PNG").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    size = struct.unpack(">II", content[16:24])
    assert size == pytest.approx(figure.get_size_inches() * figure.dpi, abs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.PNG"]


def test_an_svg_holds_the_tokens_and_needs_no_font(tmp_path: Path, make_attention: Any) -> None:
    save(attention_figure(make_attention(1, 1, WORDS)), tmp_path / "a.svg")
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))  # noqa: S314  (our own file)
    root = ElementTree.parse(tmp_path / "a.svg", parser).getroot()  # noqa: S314
    assert root.tag.endswith("svg")
    notes = [html.unescape(element.text or "").strip() for element in root.iter() if callable(element.tag)]
    for word in (*WORDS[:-1], "a- -b", "</s>", "source token", "attention weight"):
        assert word in notes
    assert not [element for element in root.iter() if str(element.tag).endswith("}text")]


@pytest.mark.medium
@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_the_same_picture_has_the_same_bytes_whatever_the_users_settings(name: str, tmp_path: Path) -> None:
    save(positions_figure(8, 10), tmp_path / name)
    first = (tmp_path / name).read_bytes()
    with matplotlib.rc_context({"font.size": 30, "savefig.dpi": 20, "savefig.bbox": "tight", "lines.linewidth": 9}):
        save(positions_figure(8, 10), tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    for broken in ("matplotlib.figure.Figure.savefig", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, fail)
            with pytest.raises(OSError, match="full") as caught:
                save(Figure(), path)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "message"), [("a.pdf", "ends in .pdf"), ("a", "no suffix"), (".png", "no suffix"), ("a.png.gz", ".gz")]
)
def test_other_suffixes_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        save(Figure(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_character_without_a_font_is_one_note_and_no_warning(tmp_path: Path) -> None:
    with style():
        figure = Figure()
        figure.text(0.1, 0.1, "\U0001cd00\U0001cd01")
        figure.text(0.1, 0.5, "\U0001cd00")
    notes = save(figure, tmp_path / "a.png")
    assert len(notes) == 1
    assert "2 characters" in notes[0]
