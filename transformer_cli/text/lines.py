"""Bytes to lines and back: the rules by which every file of text is read, and every line of output written.

Files are read with `read_lines`, text to translate with a lenient `TextLines`; whatever writes a line uses `one_line`.
"""

import codecs
import gzip
import weakref
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Self, TypeVar, cast

from transformer_cli.errors import UserError

Item = TypeVar("Item")

LONGEST_LINE = 1 << 24  # bytes: not a sentence; a file with a longer line is not text, or gzipped to fill the memory
_SPACES = str.maketrans(dict.fromkeys("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))


class TextLines:
    """The lines of a text: an iterator of `str` without line ends, in bounded memory whatever the text holds.

    Bytes are split on `\\n` only, and a last line without it counts. One trailing `\\r` and a leading byte-order mark
    are dropped and counted: `number` (of the line read last, from 1), `carriage_returns`, `byte_order_mark` and
    `invalid` are of the lines read so far. Raises `UserError` with name and line at damaged gzip data, at lines over
    `LONGEST_LINE` and at invalid UTF-8; where `lenient`, this becomes U+FFFD and is counted.
    """

    def __init__(self, stream: BinaryIO, name: str, *, lenient: bool = False) -> None:
        self.name = name
        self.number = 0
        self.carriage_returns = 0
        self.byte_order_mark = False
        self.invalid = 0
        self._stream = stream
        self._lenient = lenient

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            raw = self._stream.readline(LONGEST_LINE + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self.name}:{self.number + 1}: {read_fault(error, self._stream)}") from None
        if not raw:
            raise StopIteration
        self.number += 1
        if len(raw) > LONGEST_LINE:
            raise UserError(
                f"{self.name}:{self.number}: the line has more than {LONGEST_LINE:,} bytes, so it is not a sentence; "
                "check that the file is text"
            )
        raw = raw.removesuffix(b"\n")
        if self.number == 1 and raw.startswith(codecs.BOM_UTF8):
            self.byte_order_mark = True
            raw = raw[len(codecs.BOM_UTF8) :]
        if raw.endswith(b"\r"):
            self.carriage_returns += 1
            raw = raw[:-1]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if not self._lenient:
                raise UserError(f"{self.name}:{self.number}: {_encoding_fault(raw, error, self.number)}") from None
            self.invalid += 1
            return raw.decode("utf-8", errors="replace")

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_lines(path: str | Path) -> TextLines:
    """Open a text file, plain or gzip (by its name, `.gz`), for reading line by line, strictly; see `TextLines`.

    Raises `UserError` at once if there is no such file, it is a folder, or it may not be read.
    """
    stream = open_bytes(Path(path))
    lines = TextLines(stream, str(path))
    weakref.finalize(lines, stream.close)  # where reading stops half-way
    return lines


def with_bar(
    items: Iterable[Item], what: str, progress: bool, total: int | None = None, unit: str = "pairs"
) -> Iterator[Item]:
    """Yield what is read from a long text; `progress` shows a bar, on a terminal."""
    from tqdm import tqdm  # here: whatever translates reads lines too

    disable = None if progress else True  # None: where stderr is not a terminal
    return iter(tqdm(items, desc=what, total=total, unit=f" {unit}", unit_scale=True, disable=disable))


def with_tag(text: str, tag: str | None) -> str:
    """Return a source text with its tag before it, as models read it; one without a word gets none."""
    return f"{tag} {text}" if tag and text.strip() else text


def one_line(text: str) -> str:
    """Return the text as it may go out: every character that some program takes for a line end becomes a space."""
    return text.translate(_SPACES)


def newlines_to_spaces(text: str) -> str:
    """Return the text as a line of a text file could hold it: what ends a line there becomes a space."""
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text


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


def read_fault(error: Exception, stream: BinaryIO) -> str:
    """Return what to say of an error that reading met: damaged gzip data, or what the system says."""
    if isinstance(error, gzip.BadGzipFile) and "Not a gzipped file" in str(error):
        if not _begins_as_gzip(stream):
            return "is named .gz but holds no gzip data; rename or compress it"
        return (
            "other bytes follow the end of the gzip data; if all of the text is before them, leave them out "
            "(gzip -dc FILE | gzip > NEW.gz), else copy the file again"
        )
    if isinstance(error, EOFError):
        return "the gzip data ends too early; the file is cut off, copy it again"
    if isinstance(error, (gzip.BadGzipFile, zlib.error)):
        return "the gzip data is damaged; copy the file again"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _begins_as_gzip(stream: BinaryIO) -> bool:
    """Return whether the file under a gzip reader has any gzip data; False where it cannot be read again (a pipe)."""
    assert isinstance(stream, gzip.GzipFile)
    try:
        return stream.fileobj is not None and not stream.fileobj.seek(0) and stream.fileobj.read(2) == b"\x1f\x8b"
    except OSError:
        return False


def _encoding_fault(raw: bytes, error: UnicodeDecodeError, number: int) -> str:
    if number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "is UTF-16, not UTF-8; convert the file (iconv -f UTF-16 -t UTF-8)"
    return f"is not valid UTF-8 (byte {error.start + 1} of the line); convert the file (iconv) or fix the line"
