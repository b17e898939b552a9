"""Encoded corpora: token ids in one memory-mapped Arrow file, kept in a cache for training and evaluation.

What was encoded once is not encoded again. A file is used only where its bytes are those that were written, and it
appears only once it is whole. Only the lengths of the sentences live in memory; ids (texts for subword sampling, links
for guided attention) are read from the mapped file.
"""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from functools import cached_property
from io import BufferedIOBase, BufferedRandom
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from transformer_cli.data.corpora import Corpus
from transformer_cli.errors import UserError
from transformer_cli.storage.holding import clean
from transformer_cli.storage.publishing import atomic_file
from transformer_cli.text.alignments import AlignedPair, token_links
from transformer_cli.text.build import in_chunks, map_in_order
from transformer_cli.text.codec import Codecs
from transformer_cli.text.lines import with_bar

Pair = tuple[str, str] | AlignedPair
Ids = npt.NDArray[np.integer[Any]]

FORMAT = 1  # raised whenever the same corpus would be encoded into other bytes
CHUNK_PAIRS = 4096  # encoded at a time, one record batch of the file
_COUNTS = (b"left_out_empty", b"left_out_long")


class LinkedCorpus(Protocol):
    """A `Corpus` whose pairs come with links of their words."""

    @property
    def notes(self) -> list[str]: ...
    def pairs(self) -> Iterator[AlignedPair]: ...
    def content_hash(self) -> str: ...
    def describe(self) -> str: ...


class EncodedChunk(NamedTuple):
    """Some neighbouring pairs of a corpus."""

    rows: pa.RecordBatch
    left_out_empty: int
    left_out_long: int


class PairEncoder:
    """Encodes one chunk of pairs after another; picklable, so that every worker has one."""

    def __init__(self, codecs: Codecs, max_length: int, keep_text: bool, linked: bool = False):
        """linked: each pair is an `AlignedPair`, whose links are kept too."""
        self.codecs, self.max_length, self.keep_text, self.linked = codecs, max_length, keep_text, linked
        ids = pa.list_(pa.uint16() if codecs.most_ids(max_length) <= 1 << 16 else pa.int32())
        fields = [("source_ids", ids), ("target_ids", ids)]
        texts = [("source_text", pa.string()), ("target_text", pa.string())] if keep_text else []
        links = [("links", pa.list_(pa.int32()))] if linked else []  # target place, source place, target place, …
        self.schema = pa.schema(fields + texts + links)

    def __call__(self, pairs: list[Pair]) -> EncodedChunk:
        """Leave out pairs with a side of nothing but white space, or of too many tokens; encode the others."""
        filled = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
        sources, targets = self.codecs.encode_pairs([pair[0] for pair in filled], [pair[1] for pair in filled])
        lengths = np.array([(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]).reshape(-1, 2)
        empty = lengths.min(axis=1, initial=self.max_length) == 0  # the codec drops control characters, for example
        long = ~empty & (lengths.max(axis=1, initial=0) > self.max_length)
        kept = np.flatnonzero(~empty & ~long).tolist()
        kind = self.schema.field("source_ids").type
        columns = [_lists([side[row] for row in kept], kind) for side in (sources, targets)]
        if self.keep_text:
            columns += [_texts(filled[row][side] for row in kept) for side in (0, 1)]
        if self.linked:
            columns.append(self._links([filled[row] for row in kept], lengths[kept]))
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return EncodedChunk(rows, len(pairs) - len(filled) + int(empty.sum()), int(long.sum()))

    def _links(self, pairs: list[Pair], lengths: npt.NDArray[np.int64]) -> pa.ListArray:
        """Return the links of each pair between its tokens; `lengths` (pairs, 2) are their numbers."""
        rows = []
        for pair, both in zip(pairs, lengths.tolist(), strict=True):
            assert isinstance(pair, AlignedPair)
            rows.append(token_links(self.codecs, pair, both).flatten().tolist())
        return _lists(rows, self.schema.field("links").type)


# Not by `pa.array`, which first imports pandas where that is installed: a second.


def _offsets(rows: Sequence[Sized]) -> npt.NDArray[np.int32]:
    """Return where each row begins and the last one ends, when they stand in one array."""
    return np.cumsum([0, *map(len, rows)], dtype=np.int32)


def _lists(rows: list[list[int]], kind: pa.ListType) -> pa.ListArray:
    offsets = _offsets(rows)
    values = np.fromiter(chain.from_iterable(rows), np.dtype(str(kind.value_type)), count=int(offsets[-1]))
    return pa.ListArray.from_arrays(_array(offsets), _array(values), type=kind)


def _array(values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def _texts(texts: Iterable[Any]) -> pa.StringArray:
    rows = [text.encode() for text in texts]
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(_offsets(rows)), pa.py_buffer(b"".join(rows)))


def _write_chunks(file: BinaryIO, chunks: Iterable[EncodedChunk], schema: pa.Schema) -> None:
    """Write all chunks, then the counts of what was left out, on an empty last record batch."""
    empty = long = 0
    with pa.ipc.new_file(file, schema) as writer:
        for chunk in chunks:
            writer.write_batch(chunk.rows)
            empty += chunk.left_out_empty
            long += chunk.left_out_long
        counts = dict(zip(_COUNTS, (str(empty), str(long)), strict=True))
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
        writer.write_batch(nothing, custom_metadata=counts)


class _Column(NamedTuple):
    """One column of all record batches, lists of numbers or text as UTF-8: places in the mapped file."""

    offsets: npt.NDArray[np.int64]  # (chunks,) where each chunk's begin, in numbers of 4 bytes
    values: npt.NDArray[np.int64]  # (chunks,) where each chunk's begin, in `items`
    items: npt.NDArray[Any]  # the file as numbers of their kind


class EncodedCorpus:
    """The pairs of a corpus as token ids, numbered from 0. Picklable: another process maps the same file."""

    def __init__(self, path: str | Path):
        """Map the file; raises `pa.ArrowInvalid`, `ValueError` or `OSError` where it is not whole."""
        self.path = Path(path)
        file = pa.memory_map(str(self.path)).read_buffer()
        reader = pa.ipc.open_file(file)
        names = reader.schema.names
        self.has_texts, self.has_links = "source_text" in names, "links" in names
        chunks = []  # where the offsets and the values of each column are, in bytes
        counts = [0]  # pairs in each chunk, after none
        metadata: Any = None
        for number in range(reader.num_record_batches):
            rows, metadata = reader.get_batch_with_custom_metadata(number)
            if rows.num_rows:
                chunks.append([_find_column(column, file.address) for column in rows.columns])
                counts.append(rows.num_rows)
        if metadata is None or not all(name in metadata for name in _COUNTS):
            raise ValueError(f"{self.path} ends without its counts")
        self.left_out_empty, self.left_out_long = (int(metadata[name]) for name in _COUNTS)
        self._starts = np.cumsum(counts)  # (chunks + 1,) the number of each chunk's first pair, and of all pairs
        self._numbers = _view(file, np.dtype(np.int32))
        self._columns = {}
        for place, field in enumerate(reader.schema):
            kind = np.dtype(np.uint8 if field.type == pa.string() else str(field.type.value_type))
            places = np.array([chunk[place] for chunk in chunks], dtype=np.int64).reshape(-1, 2)
            self._columns[field.name] = _Column(places[:, 0] // 4, places[:, 1] // kind.itemsize, _view(file, kind))

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedCorpus, (self.path,)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def key(self) -> str:
        """Return a hash of the corpus's text, the vocabularies and the options: of all that the ids depend on."""
        return self.path.stem

    def ids(self, pair: int) -> tuple[Ids, Ids]:
        """Return the source and target ids of a pair, without specials."""
        source, target = self._values(pair, "source_ids", "target_ids")
        return source, target

    def ids_of(self, pairs: npt.NDArray[np.integer[Any]]) -> list[tuple[Ids, Ids]]:
        """Return the same of many pairs, as int64. They lie anywhere in the file, and are fetched together: what one
        would wait for, waits for no other."""
        if not 0 <= pairs.min(initial=0) <= pairs.max(initial=0) < len(self):
            raise IndexError(f"a pair that is none of {len(self)}")
        chunks = np.searchsorted(self._starts, pairs, side="right") - 1
        rows = pairs - self._starts[chunks]
        source, target = (self._gather(self._columns[name], chunks, rows) for name in ("source_ids", "target_ids"))
        return [*zip(source, target, strict=True)]

    def texts(self, pair: int) -> tuple[str, str]:
        """Return the source and target text of a pair, where the corpus was encoded with `keep_text`."""
        assert self.has_texts, "encoded without keep_text"
        source, target = self._values(pair, "source_text", "target_text")
        return source.tobytes().decode(), target.tobytes().decode()

    def links(self, pair: int) -> npt.NDArray[np.int32]:
        """Return the links of a pair's tokens, (links, 2): place in target, place in source."""
        assert self.has_links, "encoded without links"
        return self._values(pair, "links")[0].reshape(-1, 2)

    def _values(self, pair: int, *columns: str) -> list[npt.NDArray[Any]]:
        """Return what some columns hold of a pair."""
        if not 0 <= pair < len(self):
            raise IndexError(f"pair {pair} of {len(self)}")
        chunk = int(np.searchsorted(self._starts, pair, side="right")) - 1
        row, found = pair - int(self._starts[chunk]), []
        for offsets, values, items in map(self._columns.__getitem__, columns):
            place, first = int(offsets[chunk]) + row, int(values[chunk])
            found.append(items[first + int(self._numbers[place]) : first + int(self._numbers[place + 1])])
        return found

    def _gather(
        self, column: _Column, chunks: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> Iterator[npt.NDArray[np.int64]]:
        """Yield what a column holds of the pairs in these rows of these chunks."""
        offsets = column.offsets[chunks] + rows
        starts = self._numbers[offsets]
        lengths = self._numbers[offsets + 1] - starts
        ends = np.cumsum(lengths)
        places = np.repeat(column.values[chunks] + starts - (ends - lengths), lengths) + np.arange(lengths.sum())
        values = column.items[places].astype(np.int64)
        return (values[start:end] for start, end in pairwise([0, *ends.tolist()]))

    @cached_property
    def linked_pairs(self) -> int:
        """Return how many pairs have any links."""
        return int(np.count_nonzero(self._lengths("links")))

    @cached_property
    def source_lengths(self) -> npt.NDArray[np.int32]:
        """(N,) tokens of each source, `</s>` not counted."""
        return self._lengths("source_ids")

    @cached_property
    def target_lengths(self) -> npt.NDArray[np.int32]:
        """(N,) tokens of each target, `</s>` not counted."""
        return self._lengths("target_ids")

    def _lengths(self, column: str) -> npt.NDArray[np.int32]:
        firsts, counts = self._columns[column].offsets, np.diff(self._starts)
        spans = (self._numbers[first : first + count + 1] for first, count in zip(firsts, counts, strict=True))
        return np.concatenate([np.zeros(0, dtype=np.int32), *map(np.diff, spans)])


def _find_column(column: pa.Array, file: int) -> tuple[int, int]:
    """Return where the offsets and the values of a column are in a file that is mapped there."""
    _, offsets, *_, values = column.buffers()
    return offsets.address - file, values.address - file if values is not None and values.size else 0


def _view(file: pa.Buffer, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a file as numbers, without copying it."""
    return np.frombuffer(file, kind, count=file.size // kind.itemsize)


# --- the cache ----------------------------------------------------------------------------------------------------


def encode_corpus(
    corpus: Corpus | LinkedCorpus,
    codecs: Codecs,
    *,
    max_length: int,
    keep_text: bool = False,
    linked: bool = False,
    workers: int = 0,
    cache_folder: str | Path | None = None,
    progress: bool = False,
) -> EncodedCorpus:
    """Encode a corpus, or take it from the cache where the same text was encoded in the same way before.

    Pairs with a side of white space alone, or of more than `max_length` tokens, are left out and counted. `keep_text`
    stores the text beside the ids, `linked` the links of a `LinkedCorpus`. `workers` processes share the work where
    there is enough of it. `cache_folder` defaults to `$TFM_CACHE`, else `$XDG_CACHE_HOME/tfm`, else `~/.cache/tfm`.
    `progress` shows a bar, on a terminal.
    Raises `UserError` where the corpus is at fault, or no pair is left.
    """
    content_hash = corpus.content_hash()
    folder = _writable_folder(cache_folder)
    path = folder / f"{_cache_key(content_hash, codecs, max_length, keep_text)}.arrow"
    encoded = _open_cached(path)
    if encoded is None or encoded.has_links != linked:
        clean(folder)
        encoder = PairEncoder(codecs, max_length, keep_text, linked)
        pairs = in_chunks(_watched(corpus, content_hash, progress), CHUNK_PAIRS)
        chunks = map_in_order(encoder, pairs, workers)
        try:
            _publish(path, chunks, encoder.schema)
        except OSError as error:
            raise UserError(
                f"{folder}: cannot write the encoded corpus: {error.strerror or error}; "
                "free some space, or set TFM_CACHE to another folder"
            ) from None
        encoded = EncodedCorpus(path)
    if not len(encoded):
        advice = "raise data.max_length" if encoded.left_out_long else "check that the right files are named"
        raise UserError(
            f"{corpus.describe()}: no pair is left: {encoded.left_out_empty:,} have an empty side, "
            f"{encoded.left_out_long:,} have more than {max_length} tokens; {advice}"
        )
    return encoded


def _cache_key(content_hash: str, codecs: Codecs, max_length: int, keep_text: bool) -> str:
    """Return a hash of what the encoded file depends on, and nothing else."""
    parts = [FORMAT, content_hash, codecs.fingerprint, max_length, keep_text]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _open_cached(path: Path) -> EncodedCorpus | None:
    """Return the cached file, or None where there is none, or its bytes are not those that were written."""
    try:
        with path.open("rb") as file:
            whole = _digest_file(path).read_text() == _digest_line(file, path)
        return EncodedCorpus(path) if whole else None
    except (OSError, ValueError, KeyError):  # pa.ArrowInvalid is a ValueError
        return None


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest_line(file: BufferedIOBase, path: Path) -> str:
    """Return the line that `sha256sum` prints for a file, which it can check."""
    return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n"


def _writable_folder(folder: str | Path | None) -> Path:
    """Return the cache folder; where nothing can be written there, a temporary one that goes with this process."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(folder or os.environ.get("TFM_CACHE") or f"{cache}/tfm").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        temporary = tempfile.mkdtemp(prefix="tfm-cache-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return Path(temporary)


def _watched(corpus: Corpus | LinkedCorpus, content_hash: str, progress: bool) -> Iterator[Pair]:
    """Yield the pairs of a corpus, under a progress bar; refuse a corpus that changes meanwhile, since the cache would
    then hold one text under another's name."""
    pairs: Iterable[Pair] = corpus.pairs()
    yield from with_bar(pairs, f"encoding {corpus.describe()}", progress)
    if corpus.content_hash() != content_hash:
        raise UserError(f"{corpus.describe()}: changed while it was read; run the command again")


def _publish(path: Path, chunks: Iterable[EncodedChunk], schema: pa.Schema) -> None:
    """Write the file, then its digest: a file without its own digest is not used."""
    with _private_file(path) as file:
        _write_chunks(file, chunks, schema)
        file.seek(0)
        line = _digest_line(file, path)
    with _private_file(_digest_file(path)) as file:
        file.write(line.encode())


@contextmanager
def _private_file(path: Path) -> Iterator[BufferedRandom]:
    """Give a file that nobody else can read, for it holds the user's text; it takes its name once it is whole."""
    with atomic_file(path) as file:
        os.fchmod(file.fileno(), 0o600)
        yield file
