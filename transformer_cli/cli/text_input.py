"""The lines to translate: of arguments, a file or stdin, with what was odd in them and how far the reading is.

`tfm translate` calls it.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.text.lines import LineReader


class TextInput:
    """An iterator of lines. Raises `UserError` with name and line where the rest cannot be read."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        from transformer_cli.text.lines import LineReader

        self.reader = LineReader(stream)
        self.name = name
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        from transformer_cli.text.lines import READ_ERRORS, read_fault

        try:
            yield from self.reader
        except READ_ERRORS as error:
            raise UserError(f"{self.name}:{self.reader.lines + 1}: {read_fault(error)}") from None

    @property
    def is_typed(self) -> bool:
        """Whether somebody sits at a terminal and waits for each answer."""
        return self.name == "stdin" and self._stream.isatty()

    def estimate(self) -> int | None:
        """About how many lines there are in all, from how much of the file was read; None: no telling.

        Of a compressed file the compressed bytes count.
        """
        try:
            descriptor = self._stream.fileno()
            size = os.fstat(descriptor).st_size
            plain = isinstance(self._stream, io.BufferedReader)
            position = self._stream.tell() if plain else os.lseek(descriptor, 0, os.SEEK_CUR)
        except OSError:
            return None  # a pipe, a terminal, arguments
        return round(self.reader.lines * size / position) if position and size else None

    @property
    def warnings(self) -> list[str]:
        """What was odd in the lines read so far, a sentence each."""
        return _warnings(self.reader)


@contextlib.contextmanager
def open_input(text: Sequence[str] | None, path: Path | None) -> Iterator[TextInput]:
    """Arguments, else the file, else stdin."""
    if text:
        yield TextInput(io.BytesIO(b"".join(os.fsencode(argument) + b"\n" for argument in text)), "TEXT")
    elif path is None or str(path) == "-":
        if sys.stdin is None:
            raise UserError("stdin is closed; give TEXT, or a file with --input")
        yield TextInput(cast(BinaryIO, sys.stdin.buffer), "stdin")
    else:
        from transformer_cli.text.lines import open_bytes

        with open_bytes(path) as stream:
            yield TextInput(stream, str(path))


def _warnings(reader: "LineReader") -> list[str]:
    found = []
    if reader.invalid:
        found.append(f"{_lines(reader.invalid)} held invalid UTF-8: what could not be read became U+FFFD")
    if reader.carriage_returns:
        found.append(f"{_lines(reader.carriage_returns)} ended in a carriage return, which was dropped")
    if reader.byte_order_mark:
        found.append("the text began with a byte-order mark, which was dropped")
    return found


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"
