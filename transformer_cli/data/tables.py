"""TSV, CSV and JSONL files with named columns, plain or .gz, read line by line. Called by corpora.py.

Nothing is guessed: `NA`, `null` and a lone quote are text, and a row that is not whole is refused with its line.
"""

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from transformer_cli.data.corpora import LocalFile, dropped
from transformer_cli.errors import UserError, one_of
from transformer_cli.text.lines import LONGEST_LINE, read_lines

_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}

Columns = tuple[str, str]
Rows = Iterator[tuple[str, str]]


class TableCorpus:
    """One TSV, CSV or JSONL file; a column of texts for each language."""

    def __init__(self, path: str | Path, columns: Columns):
        self.file, self.columns = LocalFile(path), columns
        name = self.file.path.name.lower().removesuffix(".gz")
        kinds: dict[str, Callable[[Iterator[str], str, Columns], Rows]]
        kinds = {".tsv": _tsv_rows, ".csv": _csv_rows, ".jsonl": _jsonl_rows}
        suffix = Path(name).suffix
        if suffix not in kinds:
            known = one_of([*kinds, ".parquet"])
            raise UserError(f"{path}: unknown kind of table; its name must end in {known} (text tables also in .gz)")
        self._rows = kinds[suffix]
        self.notes: list[str] = []
        next(self.pairs())  # a missing column shows at once

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Raises `UserError` for missing columns, rows that are not whole, no rows, invalid UTF-8."""
        where = str(self.file.path)
        lines = read_lines(self.file.path)
        empty = True
        for source, target in self._rows(lines, where, self.columns):
            empty = False
            yield newlines_to_spaces(source), newlines_to_spaces(target)
        if empty:
            raise UserError(f"{where}: has no rows; it needs at least one sentence pair")
        if self._rows is _csv_rows:
            lines.carriage_returns = 0  # RFC 4180 asks for them
        self.notes = dropped(lines)

    def content_hash(self) -> str:
        """Of the file's bytes and the names of the columns."""
        return hashlib.sha256(json.dumps(["table", self.file.content_hash(), self.columns]).encode()).hexdigest()

    def describe(self) -> str:
        """The path."""
        return str(self.file.path)


def _tsv_rows(lines: Iterator[str], where: str, columns: Columns) -> Rows:
    """Fields between tabs, no quoting; the first line names the columns."""
    header = next(lines, "").split("\t")
    source, target = _find_columns(header, where, columns)
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        _check_width(fields, header, where, number)
        yield fields[source], fields[target]


def _csv_rows(lines: Iterator[str], where: str, columns: Columns) -> Rows:
    """RFC 4180: fields between commas; one with a comma, a quote or a line break stands in quotes, quotes doubled."""
    csv.field_size_limit(LONGEST_LINE)  # of the whole process; its default cuts off at 131,072 characters
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    number = 1
    blank = 0  # the first blank line; such may only end the file
    try:
        header = next(reader, [])
        source, target = _find_columns(header, where, columns)
        while True:
            number = reader.line_num + 1  # where the row begins
            fields = next(reader, None)
            if fields is None:
                return
            if not fields:
                blank = blank or number
                continue
            if blank:
                _check_width([], header, where, blank)
            _check_width(fields, header, where, number)
            yield fields[source], fields[target]
    except csv.Error as error:
        raise UserError(
            f"{where}:{number}: the row that begins here is not valid CSV ({error}); "
            "a field with a quote in it must stand in quotes, with its own quotes doubled"
        ) from None


def _jsonl_rows(lines: Iterator[str], where: str, columns: Columns) -> Rows:
    """One JSON object a line; a dot in a column's name reaches into nested objects."""
    blank = 0  # the first blank line; such may only end the file
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            raise UserError(f"{where}:{blank}: is not valid JSON (the line is blank); each line holds one object")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            raise UserError(f"{where}:{number}: is not valid JSON ({reason}); each line holds one object") from None
        if not isinstance(row, dict):
            raise UserError(f'{where}:{number}: is no JSON object; each line looks like {{"{columns[0]}": …}}')
        yield _text(row, columns[0], where, number), _text(row, columns[1], where, number)


def _text(row: dict[str, Any], column: str, where: str, line: int) -> str:
    """The text in a column; raises `UserError` where there is none."""
    value: Any = row
    for key in [column] if column in row else column.split("."):
        if not isinstance(value, dict) or key not in value:
            raise UserError(
                f"{where}:{line}: has no {column!r}, only {quoted(row)}; add it, or set source_column and target_column"
            )
        value = value[key]
    if not isinstance(value, str):
        raise UserError(f"{where}:{line}: {column!r} is {_KINDS[type(value)]}, not text; mend or remove the row")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{where}:{line}: {column!r} holds half of a surrogate pair, which is no character; mend it")
    return value


def newlines_to_spaces(text: str) -> str:
    """A text as a line of a text file could hold it: what ends a line there becomes a space."""
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text


def quoted(names: Iterable[str]) -> str:
    """Names of columns for a message, shortened where there are many."""
    text = ", ".join(repr(name) for name in names if name) or "none"
    return text if len(text) <= 200 else text[:199] + "…"


def _find_columns(header: list[str], where: str, columns: Columns) -> tuple[int, int]:
    """The places of both columns in the header."""
    for column in columns:
        if header.count(column) != 1:
            what = "no column" if column not in header else "more than one column"
            raise UserError(
                f"{where}:1: {what} {column!r}; the first line names {quoted(header)}; set source_column, target_column"
            )
    return header.index(columns[0]), header.index(columns[1])


def _check_width(fields: list[str], header: list[str], where: str, line: int) -> None:
    if len(fields) != len(header):
        raise UserError(
            f"{where}:{line}: has {len(fields)} columns where the first line has {len(header)}; mend the row"
        )
