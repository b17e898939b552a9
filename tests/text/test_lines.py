"""Lines: what counts as one, what is refused, what goes out."""

import gzip
import io
import os
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.errors import UserError
from transformer_cli.text import lines as module
from transformer_cli.text.lines import TextLines, one_line, read_lines

# The machine may have much else to do.
PATIENT = settings(max_examples=50)
BOM = b"\xef\xbb\xbf"
LINES = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=8), max_size=8)


def write(folder: Path, content: bytes, name: str = "text.de") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@PATIENT
@given(lines=LINES, last_ends=st.booleans(), zipped=st.booleans())
def test_lines_are_what_stands_between_newlines(folder: Path, lines: list[str], last_ends: bool, zipped: bool) -> None:
    content = "\n".join(lines) + ("\n" if last_ends and lines else "")
    expected = content.removesuffix("\n").split("\n") if content else []
    marked = bool(expected) and expected[0].startswith("\ufeff")
    expected = [expected[0].removeprefix("\ufeff"), *expected[1:]] if expected else []
    path = write(folder, content.encode(), "text.gz" if zipped else "text")
    read = read_lines(path)
    assert list(read) == [line.removesuffix("\r") for line in expected]
    assert read.carriage_returns == sum(line.endswith("\r") for line in expected)
    assert read.byte_order_mark == marked
    reader = TextLines(io.BytesIO(content.encode()), "stdin", lenient=True)
    assert list(reader) == [line.removesuffix("\r") for line in expected]
    assert (reader.carriage_returns, reader.byte_order_mark) == (read.carriage_returns, marked)
    assert reader.invalid == 0
    assert reader.number == len(expected)


@PATIENT
@given(content=st.binary(max_size=60) | st.lists(st.sampled_from([b"\n", b"\r", BOM, b"\xff", b"a"])).map(b"".join))
def test_a_reader_of_any_bytes_gives_as_many_lines(content: bytes) -> None:
    reader = TextLines(io.BytesIO(content), "stdin", lenient=True)
    read = list(reader)
    assert len(read) == reader.number == content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))
    for line in read:
        line.encode()  # is valid text
    assert reader.invalid <= len(read)


def test_a_reader_replaces_and_counts_invalid_utf8() -> None:
    reader = TextLines(io.BytesIO(b"caf\xe9\nfine\n\xc3\n"), "stdin", lenient=True)
    assert list(reader) == ["caf\ufffd", "fine", "\ufffd"]
    assert reader.invalid == 2


def test_only_one_carriage_return_and_one_mark_are_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, BOM + BOM + b"a\r\r\n" + BOM + b"b\r\n\r\n")
    assert list(read_lines(path)) == ["\ufeffa\r", "\ufeffb", ""]


def test_invalid_utf8_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, b"good\nbad \xe9\n")
    lines = read_lines(path)
    assert next(lines) == "good"
    with pytest.raises(UserError, match=rf"^{path}:2: is not valid UTF-8 \(byte 5 ") as caught:
        next(lines)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("surrogate", [b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\xaf"])
def test_what_only_looks_like_utf8_is_refused(tmp_path: Path, surrogate: bytes) -> None:
    with pytest.raises(UserError, match=":1: is not valid UTF-8"):
        list(read_lines(write(tmp_path, surrogate)))


def test_utf16_is_called_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=":1: is UTF-16"):
        list(read_lines(write(tmp_path, "Häuser\n".encode("utf-16"))))


def test_only_the_first_line_tells_of_utf16(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r":2: is not valid UTF-8 \(byte 1 "):
        list(read_lines(write(tmp_path, b"good\n\xff\xfe\n")))


def test_files_that_cannot_be_opened_are_refused_at_once(tmp_path: Path) -> None:
    for path, fault in [
        (tmp_path / "none", "no such file"),
        (tmp_path / "none.gz", "no such file"),
        (tmp_path, "is a folder"),
        (tmp_path / ("n" * 300), "cannot be read: File name too long"),
    ]:
        with pytest.raises(UserError, match=f": {fault}"):
            read_lines(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\n")
    path.chmod(0)
    with pytest.raises(UserError, match="Permission denied"):
        read_lines(path)


def test_damaged_gzip_data_is_refused_with_file_and_line(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(3000).hex().encode() + b"\n")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content, fault in [
        (b"no gzip\n", "is named .gz but holds no gzip data"),
        (whole[:-100], "ends too early"),
        (bytes(flipped), "damaged|not valid UTF-8"),
        (whole[:-6] + b"\0\0\0\0\0\0", "damaged"),
        (whole + b"junk", "other bytes follow the end of the gzip data"),
        (gzip.compress(b"no line end") + b"junk", "other bytes follow"),
        (gzip.compress(b"a\n" * 100_000) + b"\x1e\x8b", "other bytes follow"),
        (gzip.compress(b"") + b"junk", "other bytes follow"),
        (whole + whole[:5], "ends too early"),
    ]:
        path = tmp_path / "text.gz"
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"^{path}:\d+: .*({fault})"):
            list(read_lines(path))


def test_gzip_data_may_have_parts_and_padding(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\n") + bytes(512))
    assert list(read_lines(path)) == ["a", "bc"]


def test_a_file_is_given_back(tmp_path: Path) -> None:
    path = write(tmp_path, b"a\nb\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        half_read = read_lines(path)
        assert next(half_read) == "a"
        del half_read
        with read_lines(path) as lines:
            next(lines)
        with pytest.raises(ValueError, match="closed"):
            next(lines)


@PATIENT
@given(st.text())
def test_what_goes_out_is_one_line(text: str) -> None:
    out = one_line(text + "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029x")
    assert len(out.splitlines()) == 1
    assert len(out) == len(text) + 11
    assert all(a == b for a, b in zip(text, out, strict=False) if len(f"x{a}x".splitlines()) == 1)


@pytest.mark.parametrize("name", ["text.de", "text.de.gz"])
def test_a_line_without_an_end_is_given_up(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 100)
    content = b"short\n" + b"a" * 99 + b"\n"
    good, bad = write(tmp_path, content, name), write(tmp_path, content + b"a" * 101, "bad." + name)
    assert len(list(read_lines(good))) == len(list(TextLines(io.BytesIO(content), "stdin", lenient=True))) == 2
    with pytest.raises(UserError, match=r"bad.*:3: the line has more than 100 bytes"):
        list(read_lines(bad))
    reader = TextLines(io.BytesIO(content + b"a" * 101), "stdin", lenient=True)
    with pytest.raises(UserError, match=r"stdin:3: the line has more than 100 bytes"):
        list(reader)
    assert reader.carriage_returns == reader.invalid == 0
