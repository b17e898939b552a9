"""Bytes to lines and back: the rules by which every file of text is read, and every line of output written.

Corpora and evaluation read with `read_lines`, translation with `LineReader`; whatever writes a line uses `one_line`.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self, cast

from transformer_cli.errors import UserError

LONGEST_LINE = 1 << 24  # bytes: no sentence; what has a longer one is no text, or a gzip file made to fill the memory
_SPACES = str.maketrans(dict.fromkeys("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))


class TextLines:
    """The lines of one file, strictly: an iterator of `str` without line ends.

    Bytes are split on `\\n` only, and a last line without it counts. One trailing `\\r` and a leading byte-order mark
    are dropped and counted: `carriage_returns` and `byte_order_mark` are of the lines read so far. Raises `UserError`
    with file and line at invalid UTF-8, at damaged gzip data and at lines over `LONGEST_LINE`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.number = 0  # of the line read last, from 1
        self.carriage_returns = 0
        self.byte_order_mark = False
        self._file = open_bytes(self.path)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            raw = _read_line(self._file)
        except READ_ERRORS as error:
            self.close()
            raise UserError(f"{self.path}:{self.number + 1}: {read_fault(error)}") from None
        if not raw:
            self.close()
            raise StopIteration
        self.number += 1
        raw, carriage_return, byte_order_mark = _strip(raw, first=self.number == 1)
        self.carriage_returns += carriage_return
        self.byte_order_mark |= byte_order_mark
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.close()
            raise UserError(f"{self.path}:{self.number}: {_encoding_fault(raw, error, self.number == 1)}") from None

    def close(self) -> None:
        """Give the file back; reaching the end does it too."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def read_lines(path: str | Path) -> TextLines:
    """Open a text file, plain or gzip (by its name, `.gz`), for reading line by line; see `TextLines`.

    Raises `UserError` at once if there is no such file, it is a folder, or it may not be read.
    """
    return TextLines(path)


class LineReader:
    """The lines of a binary stream of text to translate: an iterator of `str` that refuses no text.

    Lines are split and stripped as in `TextLines`; invalid UTF-8 becomes U+FFFD. `lines`, `invalid`,
    `carriage_returns` and `byte_order_mark` are of the lines read so far. Raises one of `READ_ERRORS`.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.lines = 0
        self.invalid = 0
        self.carriage_returns = 0
        self.byte_order_mark = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        raw = _read_line(self._stream)
        if not raw:
            raise StopIteration
        raw, carriage_return, byte_order_mark = _strip(raw, first=self.lines == 0)
        self.lines += 1
        self.carriage_returns += carriage_return
        self.byte_order_mark |= byte_order_mark
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.invalid += 1
            return raw.decode("utf-8", errors="replace")


def one_line(text: str) -> str:
    """Return the text as it may go out: every character that some program takes for a line end becomes a space."""
    return text.translate(_SPACES)


def newlines_to_spaces(text: str) -> str:
    """Return the text as a line of a text file could hold it: what ends a line there becomes a space."""
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text


class LineTooLong(ValueError):
    """A line has more than `LONGEST_LINE` bytes."""


READ_ERRORS = (OSError, EOFError, zlib.error, LineTooLong)


def _read_line(stream: BinaryIO) -> bytes:
    """Read the next line with its end, in bounded memory whatever the stream holds."""
    raw = stream.readline(LONGEST_LINE + 1)
    if len(raw) > LONGEST_LINE:
        raise LineTooLong
    return raw


def _strip(raw: bytes, *, first: bool) -> tuple[bytes, bool, bool]:
    """Return the line without its end, and whether a `\\r` and a byte-order mark were dropped."""
    raw = raw.removesuffix(b"\n")
    byte_order_mark = first and raw.startswith(codecs.BOM_UTF8)
    if byte_order_mark:
        raw = raw[len(codecs.BOM_UTF8) :]
    carriage_return = raw.endswith(b"\r")
    return (raw[:-1] if carriage_return else raw), carriage_return, byte_order_mark


def open_bytes(path: Path) -> BinaryIO:
    """Open a text file for reading, decompressed if its name ends in `.gz`; `UserError` where that cannot be."""
    try:
        if path.suffix == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        return open(path, "rb")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; name a text file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_fault(error: Exception) -> str:
    """Return what to say of an error that reading met: damaged gzip data, or what the system says."""
    if isinstance(error, LineTooLong):
        return f"the line has more than {LONGEST_LINE:,} bytes, so it is not a sentence; check that the file is text"
    if isinstance(error, gzip.BadGzipFile) and "Not a gzipped file" in str(error):
        return "is named .gz but holds no gzip data; rename or compress it"
    if isinstance(error, EOFError):
        return "the gzip data ends too early; the file is cut off, copy it again"
    if isinstance(error, (gzip.BadGzipFile, zlib.error)):
        return "the gzip data is damaged; copy the file again"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _encoding_fault(raw: bytes, error: UnicodeDecodeError, first: bool) -> str:
    if first and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "is UTF-16, not UTF-8; convert the file (iconv -f UTF-16 -t UTF-8)"
    return f"is not valid UTF-8 (byte {error.start + 1} of the line); convert the file (iconv) or fix the line"
