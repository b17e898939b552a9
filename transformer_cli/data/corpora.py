"""Where sentence pairs come from: two text files here, tables and hub datasets in their own modules. No torch.

Called by build-vocab, train and evaluate. A corpus is read as a stream, any number of times, and never held in memory.
"""

import hashlib
import os
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Protocol

from transformer_cli.config import HubDataset, TableFile, TextFiles
from transformer_cli.errors import UserError
from transformer_cli.text.lines import TextLines, read_lines

COUNTED = 1_000_000  # lines without a counterpart that are counted: a small gzip file may hold very many


class Corpus(Protocol):
    """Sentence pairs in a fixed order."""

    @property
    def notes(self) -> list[str]:
        """What the last whole pass dropped from the text (carriage returns, byte-order marks), for the user to see."""

    def pairs(self) -> Iterator[tuple[str, str]]:
        """All (source, target) texts; raises `UserError` with file and line where one is faulty, or there is none."""

    def content_hash(self) -> str:
        """Changes whenever a pair changes, even in a file of the same name, size and date."""

    def describe(self) -> str:
        """Where the pairs come from, in few words."""


def open_corpus(source: TextFiles | TableFile | HubDataset, source_language: str, target_language: str) -> Corpus:
    """The corpus that a config's `data.train`, `data.valid` or `data.test` names.

    Column names default to the language codes. Raises `UserError` for what shows without reading it all: no such file,
    an unknown kind of file, a missing column.
    """
    if isinstance(source, TextFiles):
        return TextCorpus(source.source, source.target)
    columns = (source.source_column or source_language, source.target_column or target_language)
    if isinstance(source, HubDataset):
        from transformer_cli.data.hub import open_dataset

        return open_dataset(source, columns)
    if source.file.lower().endswith(".parquet"):
        from transformer_cli.data.hub import open_parquet

        return open_parquet(source.file, columns)
    from transformer_cli.data.tables import TableCorpus

    return TableCorpus(source.file, columns)


class TextCorpus:
    """Two text files, line n of the one translating line n of the other."""

    def __init__(self, source: str | Path, target: str | Path):
        self.source, self.target = LocalFile(source), LocalFile(target)
        self.notes: list[str] = []

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Raises `UserError` for unequal line counts, no lines, invalid UTF-8."""
        sources, targets = read_lines(self.source.path), read_lines(self.target.path)
        number = 0
        for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
            if source is None:
                raise self._unequal(self.source, self.target, number, targets)
            if target is None:
                raise self._unequal(self.target, self.source, number, sources)
            yield source, target
        if not number:
            raise UserError(f"{self.source.path}: is empty, as is {self.target.path}; they need one sentence a line")
        self.notes = [*dropped(sources), *dropped(targets)]

    @staticmethod
    def _unequal(shorter: "LocalFile", longer: "LocalFile", number: int, rest: Iterator[str]) -> UserError:
        more = sum(1 for _ in islice(rest, COUNTED))
        lines = f"{number + more:,}" if more < COUNTED else f"over {number + more:,}"
        return UserError(
            f"{longer.path}:{number}: has no counterpart: {shorter.path} has {number - 1:,} lines and {longer.path} "
            f"{lines}; both need the same number, line by line"
        )

    def content_hash(self) -> str:
        """Of the bytes of both files."""
        return hashlib.sha256(f"text {self.source.content_hash()} {self.target.content_hash()}".encode()).hexdigest()

    def describe(self) -> str:
        """Both paths."""
        return f"{self.source.path}, {self.target.path}"


class LocalFile:
    """A file that will be read more than once. Raises `UserError` where there is no such thing."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._hashed: tuple[tuple[int, ...], str] | None = None
        if os.path.exists(self.path) and not os.path.isfile(self.path) and not os.path.isdir(self.path):
            raise UserError(
                f"{path}: is a pipe or device, and it is read more than once; write the text to a file first"
            )
        read_lines(self.path).close()

    def content_hash(self) -> str:
        """sha256 of the bytes, taken once for as long as the file stays untouched."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if self._hashed is None or self._hashed[0] != state:
                    self._hashed = (state, hashlib.file_digest(file, "sha256").hexdigest())
                return self._hashed[1]
        except OSError as error:
            raise UserError(f"{self.path}: cannot read it: {error.strerror}") from None


def dropped(lines: TextLines) -> list[str]:
    """What reading a file dropped from its text, in words."""
    notes = []
    if lines.carriage_returns:
        count = lines.carriage_returns
        notes.append(f"{lines.path}: dropped the carriage return at the end of {count:,} line{'s' * (count != 1)}")
    if lines.byte_order_mark:
        notes.append(f"{lines.path}: dropped the byte-order mark at its beginning")
    return notes
