"""Parquet files and Hugging Face datasets, through the `datasets` package (an extra). Called by corpora.py."""

import glob
import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformer_cli.config import HubDataset
from transformer_cli.errors import UserError
from transformer_cli.text.lines import newlines_to_spaces

NEEDS = "Parquet files and hub datasets need the package datasets; run: pip install 'transformer-cli[datasets]'"
try:
    import pyarrow as pa  # which comes with it
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ModuleNotFoundError:
    raise UserError(NEEDS) from None

NO_ROWS = "has no rows; it needs at least one sentence pair"
_ROWS = 1000  # read at once


Columns = tuple[str, str]  # names of the source's and the target's


def open_parquet(path: Path, columns: Columns, file_hash: Callable[[], str]) -> "DatasetCorpus":
    """Open a Parquet file, streamed: it is never copied into a cache, where an old copy could outlive an edit."""
    try:
        rows = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: is damaged or not a Parquet file ({_brief(error)}); copy it again") from None
    if not rows:  # which `datasets` stumbles over
        raise UserError(f"{path}: {NO_ROWS}")
    where = str(path)
    dataset = _load(where, path="parquet", data_files=glob.escape(where), split="train", streaming=True)
    return DatasetCorpus(dataset, where, columns, file_hash)


def open_dataset(source: HubDataset, columns: Columns) -> "DatasetCorpus":
    """Open a dataset of the hub, downloaded once and mapped from disk, or a local folder of files."""
    where = f"{source.dataset}, split {source.split}"
    folder = os.path.isdir(source.dataset)
    # A folder is streamed, so that every edit is seen; only slices of splits (`train[:1000]`) need a mapped copy.
    streaming = folder and source.split.isidentifier()
    dataset = _load(
        where,
        path=source.dataset,
        name=source.name,
        split=source.split,
        revision=None if folder else source.revision,
        streaming=streaming,
    )
    return DatasetCorpus(dataset, where, columns)


class DatasetCorpus:
    """A dataset of `datasets`; a column of texts for each language, where a dot reaches into a nested column."""

    def __init__(self, dataset: Any, where: str, columns: Columns, file_hash: Callable[[], str] | None = None):
        """`file_hash` hashes the file behind the dataset; where there is none, the texts themselves are hashed."""
        self.where, self.columns = where, columns
        self.notes: list[str] = []
        self._dataset, self._file_hash = dataset, file_hash
        next(self._texts(), None)  # a missing column shows at once

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs; raise `UserError` for a row without a text, or no rows."""
        empty = True
        for sources, targets in self._texts():
            empty = False
            yield from zip(sources, targets, strict=True)
        if empty:
            raise UserError(f"{self.where}: {NO_ROWS}")

    def content_hash(self) -> str:
        """Return a hash of the file where there is one, else of all texts."""
        if self._file_hash is not None:
            return hashlib.sha256(json.dumps(["parquet", self._file_hash(), self.columns]).encode()).hexdigest()
        digest = hashlib.sha256(b"dataset")
        for sources, targets in self._texts():
            digest.update("\n".join([*sources, *targets, ""]).encode())
        return digest.hexdigest()

    def describe(self) -> str:
        """Return the file, or the dataset with its split."""
        return self.where

    def _texts(self) -> Iterator[tuple[list[str], list[str]]]:
        """Yield source and target texts of some rows at a time."""
        row = 0
        for rows in self._tables():
            sources, targets = (self._column(rows, name, row) for name in self.columns)
            yield sources, targets
            row += rows.num_rows

    def _tables(self) -> Iterator[pa.Table]:
        try:
            yield from self._dataset.with_format("arrow").iter(batch_size=_ROWS)
        except Exception as error:  # of any of the readers that `datasets` has for its many formats
            raise UserError(f"{self.where}: cannot be read: {_brief(error)}; check the files") from None

    def _column(self, rows: pa.Table, name: str, row: int) -> list[str]:
        path = [name] if name in rows.column_names else name.split(".")
        names = rows.column_names
        column: Any = None
        for key in path:
            if key not in names:
                known = _brief(", ".join(map(repr, names)) or "none")
                raise UserError(f"{self.where}: no column {name!r}, only {known}; set source_column and target_column")
            column = rows.column(key) if column is None else pc.struct_field(column, key)
            names = [field.name for field in column.type] if pa.types.is_struct(column.type) else []
        if pa.types.is_null(column.type) or column.null_count:
            first = pc.index(column.is_null(), True).as_py()
            raise UserError(f"{self.where}: row {row + first + 1}: {name!r} is null, not text; remove the row")
        if str(column.type) not in ("string", "large_string", "string_view"):
            raise UserError(f"{self.where}: column {name!r} holds {column.type}, not text; name another column")
        return [newlines_to_spaces(text) for text in column.to_pylist()]


def _load(where: str, **arguments: Any) -> Any:
    """Call `datasets.load_dataset`, quietly; raise `UserError` where the package or the dataset is missing."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"{where}: {NEEDS}") from None
    for logger in ("datasets", "huggingface_hub"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # what matters comes as an exception
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        if not arguments["streaming"]:
            return datasets.load_dataset(**arguments)
        with tempfile.TemporaryDirectory() as locks:  # streaming keeps nothing else in its cache
            return datasets.load_dataset(**arguments, cache_dir=locks)
    except ConnectionError as error:
        raise UserError(
            f"{where}: cannot be downloaded: {_brief(error)}; check name and network, or use local files, such as "
            "--set 'data.train={source: train.de, target: train.en}'"
        ) from None
    except Exception as error:  # `datasets` and the hub client raise dozens of kinds
        raise UserError(f"{where}: cannot be loaded: {_brief(error)}; check name and split") from None


def _brief(what: Exception | str) -> str:
    """Return an error's message, or another text, on one line of at most 300 characters."""
    text = " ".join(str(what).split()) or type(what).__name__
    return text if len(text) <= 300 else text[:299] + "…"
