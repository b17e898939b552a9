"""A corpus as token ids in one memory-mapped Arrow file: encoding it, writing the file, reading it.

`encoded_cache` makes such files and keeps them, for training and evaluation. Only the lengths of the sentences live in
memory; ids (texts for subword sampling, links for guided attention) are read from the mapped file.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from transformer_cli.text.alignments import AlignedPair, token_links
from transformer_cli.text.codec import Codecs

Pair = tuple[str, str] | AlignedPair
Ids = npt.NDArray[np.integer[Any]]


CHUNK_PAIRS = 4096  # encoded at a time, one record batch of the file
_COUNTS = (b"left_out_empty", b"left_out_long")


class LinkedCorpus(Protocol):
    """A `Corpus` whose pairs come with links of their words."""

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
        columns = [self._ids([side[row] for row in kept]) for side in (sources, targets)]
        if self.keep_text:
            columns += [pa.array([filled[row][side] for row in kept], pa.string()) for side in (0, 1)]
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
        return pa.array(rows, self.schema.field("links").type)

    def _ids(self, rows: list[list[int]]) -> pa.ListArray:
        kind = self.schema.field("source_ids").type
        offsets = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        values = np.fromiter(chain.from_iterable(rows), np.dtype(str(kind.value_type)), count=int(offsets[-1]))
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=kind)


def write_chunks(file: BinaryIO, chunks: Iterable[EncodedChunk], schema: pa.Schema) -> None:
    """Write all chunks, then the counts of what was left out, on an empty last record batch."""
    empty = long = 0
    with pa.ipc.new_file(file, schema) as writer:
        for chunk in chunks:
            writer.write_batch(chunk.rows)
            empty += chunk.left_out_empty
            long += chunk.left_out_long
        counts = dict(zip(_COUNTS, (str(empty), str(long)), strict=True))
        writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema), custom_metadata=counts)


class _Column(NamedTuple):
    """One column of one record batch, lists of numbers or text as UTF-8: views into the mapped file."""

    offsets: npt.NDArray[np.int32]  # (rows + 1,)
    values: npt.NDArray[Any]


class EncodedCorpus:
    """The pairs of a corpus as token ids, numbered from 0. Picklable: another process maps the same file."""

    def __init__(self, path: str | Path):
        """Map the file; raises `pa.ArrowInvalid`, `ValueError` or `OSError` where it is not whole."""
        self.path = Path(path)
        reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
        names = reader.schema.names
        self.has_texts, self.has_links = "source_text" in names, "links" in names
        self._chunks: list[dict[str, _Column]] = []  # columns by name
        self._starts: list[int] = []  # the number of each chunk's first pair
        self._pairs = 0
        metadata: Any = None
        for number in range(reader.num_record_batches):
            rows, metadata = reader.get_batch_with_custom_metadata(number)
            if rows.num_rows:
                self._starts.append(self._pairs)
                self._chunks.append({name: _view_column(rows.column(name)) for name in names})
                self._pairs += rows.num_rows
        if metadata is None or not all(name in metadata for name in _COUNTS):
            raise ValueError(f"{self.path} ends without its counts")
        self.left_out_empty, self.left_out_long = (int(metadata[name]) for name in _COUNTS)

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedCorpus, (self.path,)

    def __len__(self) -> int:
        return self._pairs

    @property
    def key(self) -> str:
        """A hash of the corpus's text, the vocabularies and the options: of all that the ids depend on."""
        return self.path.stem

    def ids(self, pair: int) -> tuple[Ids, Ids]:
        """Return the source and target ids of a pair, without specials."""
        source, target = self._values(pair, "source_ids", "target_ids")
        return source, target

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
        if not 0 <= pair < self._pairs:
            raise IndexError(f"pair {pair} of {self._pairs}")
        number = bisect_right(self._starts, pair) - 1
        chunk, row = self._chunks[number], pair - self._starts[number]
        return [values[offsets[row] : offsets[row + 1]] for offsets, values in map(chunk.__getitem__, columns)]

    @cached_property
    def linked_pairs(self) -> int:
        """How many pairs have any links."""
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
        lengths = [np.diff(chunk[column].offsets) for chunk in self._chunks]
        return np.concatenate([np.zeros(0, dtype=np.int32), *lengths])


def _view_column(column: pa.Array) -> _Column:
    """Return a column of the mapped file without copying it."""
    _, offsets, *_, values = column.buffers()
    kind = np.dtype(np.uint8 if column.type == pa.string() else str(column.type.value_type))
    return _Column(
        np.frombuffer(offsets, np.int32)[: len(column) + 1],  # buffers may be padded
        np.frombuffer(values, kind) if values is not None and values.size else np.zeros(0, kind),
    )
