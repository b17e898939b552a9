"""Where sentence pairs come from: text files and tables here, `tmx` files, Parquet files and `hub` datasets. No torch.

Called by build-vocab, train and evaluate. A corpus is read as a stream, any number of times, and never held in memory.
Nothing is guessed: `NA`, `null` and a lone quote are text, and a row that is not whole is refused with its line.
"""

import codecs
import csv
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Literal, Protocol

from transformer_cli.config import DataConfig, HubDataset, MosesZip, Source, TableFile, TextFiles, TmxFile
from transformer_cli.data.files import LocalFile, Member, find_tmx, read_pairs_of_members
from transformer_cli.data.tmx import TmxCorpus
from transformer_cli.errors import UserError, one_of
from transformer_cli.text.lines import LONGEST_LINE, TextLines, newlines_to_spaces, open_bytes

COUNTED = 1_000_000  # lines without a counterpart that are counted: a small gzip file may hold very many

Columns = tuple[str, str]  # names of the source's and the target's
Rows = Iterator[tuple[str, str]]


class Corpus(Protocol):
    """Sentence pairs in a fixed order."""

    @property
    def notes(self) -> list[str]:
        """Return, for the user to see, what the last whole pass dropped (carriage returns, byte-order marks)."""

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all (source, target) texts; raise `UserError` with file and line at a faulty one, or where none is."""

    def content_hash(self) -> str:
        """Return a hash that changes whenever a pair changes, even in a file of the same name, size and date."""

    def describe(self) -> str:
        """Return where the pairs come from, in few words."""


def open_corpus(source: Source, source_language: str, target_language: str) -> Corpus:
    """Return the corpus that a source in a config names.

    Column names default to the language codes. Raises `UserError` for what shows without reading it all: no such file,
    an unknown kind of file, a missing column.
    """
    if isinstance(source, TextFiles):
        text = TextCorpus(source.source, source.target)
        text.check_kind()
        return text
    if isinstance(source, TmxFile | MosesZip):
        languages = (source.source_language or source_language, source.target_language or target_language)
        return (
            TmxCorpus(find_tmx(source.tmx), languages)
            if isinstance(source, TmxFile)
            else _open_moses(source, languages)
        )
    assert isinstance(source, TableFile | HubDataset)
    columns = (source.source_column or source_language, source.target_column or target_language)
    if columns[0] == columns[1]:
        where = source.dataset if isinstance(source, HubDataset) else source.file
        raise UserError(
            f"{where}: column {columns[0]!r} is both source and target; set source_column and target_column to two"
        )
    if isinstance(source, HubDataset):
        from transformer_cli.data.hub import open_dataset

        return open_dataset(source, columns)
    if source.file.lower().endswith(".parquet"):
        from transformer_cli.data.hub import open_parquet

        file = LocalFile(source.file)
        return open_parquet(file.path, columns, file.content_hash)
    return TableCorpus(source.file, columns)


def _open_moses(source: MosesZip, languages: Columns) -> "TextCorpus":
    pairs = read_pairs_of_members(source.moses, languages)
    if len(pairs) > 1:
        names = one_of([first.inner for first, _ in pairs], last="and")
        raise UserError(f"{source.moses}: has {len(pairs)} pairs of files ({names}, …); unpack it and name two files")
    return TextCorpus(*pairs[0])


def training_sources(data: DataConfig) -> dict[str, Any]:
    """Return `data.sources`; `UserError` where there are none, as in the config of an imported model."""
    if not data.sources:
        raise UserError("data.train: is null, as it is not known of an imported model; name a source of training pairs")
    return data.sources


def open_split(data: DataConfig, split: Literal["train", "valid", "test"]) -> Corpus:
    """Return the corpus that a split of the data names, which must be set: all sources of `data.train`, one after the
    other, whatever their tags and weights. Raises as `open_corpus` does.
    """
    if split == "train":
        sources = training_sources(data).values()
        corpora = [open_corpus(one, data.source_language, data.target_language) for one in sources]
        return corpora[0] if len(corpora) == 1 else JoinedCorpus(corpora)
    source = data.valid if split == "valid" else data.test
    assert source is not None, f"no data.{split}"
    return open_corpus(source, data.source_language, data.target_language)


class JoinedCorpus:
    """Several corpora, one after the other."""

    def __init__(self, corpora: Sequence[Corpus]):
        self.corpora = corpora

    @property
    def notes(self) -> list[str]:
        """Return what the last whole pass dropped."""
        return [note for corpus in self.corpora for note in corpus.notes]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs."""
        for corpus in self.corpora:
            yield from corpus.pairs()

    def content_hash(self) -> str:
        """Return a hash of all of them."""
        return hashlib.sha256(" ".join(["joined", *(one.content_hash() for one in self.corpora)]).encode()).hexdigest()

    def describe(self) -> str:
        """Return what they are, but for those beyond the third."""
        names = [corpus.describe() for corpus in self.corpora]
        return "; ".join(names[:3] + [f"and {len(names) - 3} more"] * (len(names) > 3))


def dropped(lines: TextLines) -> list[str]:
    """Return what reading a file dropped from its text, in words."""
    notes = []
    if lines.carriage_returns:
        count = lines.carriage_returns
        notes.append(f"{lines.name}: dropped the carriage return at the end of {count:,} line{'s' * (count != 1)}")
    if lines.byte_order_mark:
        notes.append(f"{lines.name}: dropped the byte-order mark at its beginning")
    return notes


def count_lines(before: int, rest: Iterable[str]) -> str:
    """Return how many lines a file has, as a message says it: those before, and what is left, counted up to a bound."""
    more = sum(1 for _ in islice(rest, COUNTED))
    return f"{before + more:,}" if more < COUNTED else f"over {before + more:,}"


# --- two text files --------------------------------------------------------------------------------------------------


def _file(place: str | Path | Member) -> LocalFile | Member:
    return place if isinstance(place, Member) else LocalFile(place)


class TextCorpus:
    """Two text files, line n of the one translating line n of the other."""

    def __init__(self, source: str | Path | Member, target: str | Path | Member):
        self.source, self.target = _file(source), _file(target)
        self.notes: list[str] = []

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs; raise `UserError` for unequal line counts, no lines, invalid UTF-8."""
        sources, targets = self.source.lines(), self.target.lines()
        number = 0
        for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
            if source is None:
                raise self._unequal(self.source, self.target, number, targets)
            if target is None:
                raise self._unequal(self.target, self.source, number, sources)
            yield source, target
        if not number:
            raise UserError(f"{self.source.name}: is empty, as is {self.target.name}; they need one sentence per line")
        self.notes = [*dropped(sources), *dropped(targets)]

    def check_kind(self) -> None:
        """Raise `UserError` for a file that is paired with itself, and for one that is markup, not lines of text."""
        for path in (self.source.path, self.target.path):
            if kind := _markup(path):
                raise UserError(
                    f"{path}: is {kind}, not text with one sentence per line; {_TO_TEXT.get(kind, _ANYHOW)}"
                )
        if os.path.samefile(self.source.path, self.target.path):
            raise UserError(
                f"{self.target.path}: is the same file as the source, {self.source.path}; the target is another text "
                "file, whose line n translates line n of the source"
            )

    @staticmethod
    def _unequal(
        shorter: LocalFile | Member, longer: LocalFile | Member, number: int, rest: Iterator[str]
    ) -> UserError:
        return UserError(
            f"{longer.name}:{number}: has no counterpart: {shorter.name} has {number - 1:,} lines and {longer.name} "
            f"{count_lines(number, rest)}; both need the same number, line by line"
        )

    def content_hash(self) -> str:
        """Return a hash of the bytes of both files."""
        return hashlib.sha256(f"text {self.source.content_hash()} {self.target.content_hash()}".encode()).hexdigest()

    def describe(self) -> str:
        """Return both paths."""
        return f"{self.source.name}, {self.target.name}"


_ANYHOW = "write the source sentences to one text file and their translations, in the same order, to another"
_TO_TEXT = {
    "TMX": "name it so: {tmx: NAME.tmx}, or give it to tfm init",
    "JSON": "one object per line is read as a table: {file: NAME.jsonl}, with source_column and target_column",
}
_JSON = re.compile(r'[\s\[]*\{\s*"(?:[^"\\]|\\.)*"\s*:')  # an object, in a list or not
_MARKUP = re.compile(  # followed by another tag: a sentence may begin with a tag, or be about one
    r"\s*(?:<\?xml\s[^>]*>|<!doctype\s[^>]*>|<(?:tmx|xliff|html|srcset|refset|tstset|mteval)\b[^>]*>)\s*[<\]]", re.I
)
_KIND = re.compile(r"<(?:!doctype\s+)?(tmx|xliff|html)\b", re.I)


def _markup(path: Path) -> str | None:
    """Return what a file is, by its first bytes, where it is markup: TMX, XLIFF, HTML, XML or JSON."""
    with suppress(OSError, EOFError, zlib.error), open_bytes(path) as file:  # what is damaged shows when it is read
        begin = file.read(4096)
        encoding = "utf-16" if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
        text = begin.decode(encoding, errors="replace").lstrip("\ufeff")
        if _JSON.match(text):
            return "JSON"
        if _MARKUP.match(text):
            kind = _KIND.search(text)
            return kind[1].upper() if kind else "XML"
    return None


# --- tables ----------------------------------------------------------------------------------------------------------

_KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class TableCorpus:
    """One TSV, CSV or JSONL file; a column of texts for each language."""

    def __init__(self, path: str | Path | Member, columns: Columns, separator: str = ","):
        """separator: what stands between the columns of a CSV file."""
        self.file, self.columns = _file(path), columns
        kinds: dict[str, Callable[[Iterator[str], str, Columns], Rows]]
        kinds = {".tsv": _tsv_rows, ".csv": partial(_csv_rows, separator=separator), ".jsonl": _jsonl_rows}
        suffix = Path(self.file.name.lower().removesuffix(".gz")).suffix
        if suffix not in kinds:
            known = one_of([*kinds, ".parquet"])
            raise UserError(
                f"{self.file.name}: unknown kind of table; its name must end in {known} (text tables also in .gz)"
            )
        self._rows, self._ends_lines = kinds[suffix], suffix == ".csv"
        self.notes: list[str] = []
        next(self.pairs())  # a missing column shows at once

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs; raise `UserError` for missing columns, rows that are not whole, no rows, invalid UTF-8."""
        where, lines = self.file.name, self.file.lines()
        empty = True
        for source, target in self._rows(lines, where, self.columns):
            empty = False
            yield newlines_to_spaces(source), newlines_to_spaces(target)
        if empty:
            raise UserError(f"{where}: has no rows; it needs at least one sentence pair")
        if self._ends_lines:
            lines.carriage_returns = 0  # RFC 4180 asks for them
        self.notes = dropped(lines)

    def content_hash(self) -> str:
        """Return a hash of the file's bytes and the names of the columns."""
        return hashlib.sha256(json.dumps(["table", self.file.content_hash(), self.columns]).encode()).hexdigest()

    def describe(self) -> str:
        """Return the path."""
        return self.file.name


def _tsv_rows(lines: Iterator[str], where: str, columns: Columns) -> Rows:
    """Yield pairs from fields between tabs, without quoting; the first line names the columns."""
    first = next(lines, "")
    _check_separator(first, "\t", where, columns)
    header = first.split("\t")
    source, target = _find_columns(header, "\t", where, columns)
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        _check_width(fields, header, where, number)
        yield fields[source], fields[target]


def _csv_rows(lines: Iterator[str], where: str, columns: Columns, separator: str) -> Rows:
    """Yield pairs by RFC 4180: a field with a comma, a quote or a line break stands in quotes, its quotes doubled."""
    csv.field_size_limit(LONGEST_LINE)  # of the whole process; its default cuts off at 131,072 characters
    first, before = next(lines, ""), 0
    if first == f"sep={separator}":  # as spreadsheets write it, and hide it again
        first, before = next(lines, ""), 1
    _check_separator(first, separator, where, columns)
    reader = csv.reader((f"{line}\n" for line in chain([first], lines)), strict=True, delimiter=separator)
    number = 1
    blank = 0  # the first blank line; such may only end the file
    try:
        header = next(reader, [])
        source, target = _find_columns(header, separator, where, columns)
        while True:
            number = before + reader.line_num + 1  # where the row begins
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
    """Yield pairs from one JSON object a line; a dot in a column's name reaches into nested objects."""
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
            raise UserError(f'{where}:{number}: is not a JSON object; each line looks like {{"{columns[0]}": …}}')
        yield _text(row, columns[0], where, number), _text(row, columns[1], where, number)


def _text(row: dict[str, Any], column: str, where: str, line: int) -> str:
    """Return the text in a column; raise `UserError` where there is none."""
    value: Any = row
    for key in [column] if column in row else column.split("."):
        if not isinstance(value, dict) or key not in value:
            raise UserError(
                f"{where}:{line}: has no {column!r}, only {_names(row)}; add it, or set source_column and target_column"
            )
        value = value[key]
    if not isinstance(value, str):
        raise UserError(f"{where}:{line}: {column!r} is {_KINDS[type(value)]}, not text; fix or remove the row")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{where}:{line}: {column!r} holds half of a surrogate pair, which is not a character; fix it")
    return value


_SEPARATORS = {"\t": "tabs", ";": "semicolons", ",": "commas"}
_REMEDIES = {
    "\t": "rename it to .tsv",
    ",": "rename it to .csv",
    ";": "write it with commas, or make text files of it with tfm init",
}


def _check_separator(first: str, own: str, where: str, columns: Columns) -> None:
    """Raise `UserError` where the first line has its columns between others than the separators of such a file."""
    for other in [separator for separator in _SEPARATORS if separator != own]:
        names = {field.strip().strip('"') for field in first.split(other)}
        if {*columns} <= names or (other in first and own not in first and other != ","):  # commas are in sentences too
            raise UserError(
                f"{where}:1: its columns are separated by {_SEPARATORS[other]}, not {_SEPARATORS[own]}; "
                f"{_REMEDIES[other]}"
            )


def _find_columns(header: list[str], separator: str, where: str, columns: Columns) -> tuple[int, int]:
    """Return the places of both columns in the header."""
    for column in columns:
        if header.count(column) != 1:
            what = "no column" if column not in header else "more than one column"
            line = separator.join(columns).replace("\t", "<TAB>")
            raise UserError(
                f"{where}:1: {what} {column!r}; the first line names {_names(header)}; set source_column and "
                f"target_column, or, if that is a sentence pair, put a line with names before it: {line}"
            )
    return header.index(columns[0]), header.index(columns[1])


def _check_width(fields: list[str], header: list[str], where: str, line: int) -> None:
    if len(fields) != len(header):
        raise UserError(
            f"{where}:{line}: has {len(fields)} columns where the first line has {len(header)}; fix the row"
        )


def _names(names: Iterable[str]) -> str:
    """Return names of columns for a message, shortened where there are many."""
    text = ", ".join(repr(name) for name in names if name) or "none"
    return text if len(text) <= 200 else text[:199] + "…"
