"""A corpus as token ids in one memory-mapped Arrow file, which `encoded_cache` makes and keeps.

For training and evaluation. Only the lengths of the sentences live in memory; ids (and texts, for subword sampling) are
read from the mapped file.
"""

import time
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
from transformer_cli.text.build import map_in_processes
from transformer_cli.text.codec import Codecs

Pair = tuple[str, str] | AlignedPair


class LinkedCorpus(Protocol):
    """A `Corpus` whose pairs come with links of their words."""

    def pairs(self) -> Iterator[AlignedPair]: ...
    def content_hash(self) -> str: ...
    def describe(self) -> str: ...


_CHUNK_PAIRS = 4096
_CHUNK_CHARACTERS = 2_000_000  # bounds the memory of a chunk whose lines are long
_INLINE_SECONDS = 1.5  # of work done before other processes are started, which takes them about as long


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
        empty = (
            lengths.min(axis=1, initial=self.max_length) == 0
        )  # text that the codec drops, such as control characters
        long = ~empty & (lengths.max(axis=1, initial=0) > self.max_length)
        kept = np.flatnonzero(~empty & ~long).tolist()
        columns = [self._ids([sources[row] for row in kept]), self._ids([targets[row] for row in kept])]
        if self.keep_text:
            columns += [pa.array([filled[row][side] for row in kept], pa.string()) for side in (0, 1)]
        if self.linked:
            columns.append(self._links([filled[row] for row in kept], lengths[kept]))
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return EncodedChunk(rows, len(pairs) - len(filled) + int(empty.sum()), int(long.sum()))

    def _links(self, pairs: list[Pair], lengths: np.ndarray[Any, np.dtype[np.int64]]) -> pa.ListArray:
        """The links of each pair between tokens, whose numbers `lengths` (pairs, 2) tells."""
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


def encode_in_order(encoder: PairEncoder, pairs: Iterable[Pair], workers: int) -> Iterator[EncodedChunk]:
    """Encode all pairs, chunk by chunk, in their order; `workers` processes help as soon as it takes long."""
    chunks = _chunks(pairs)
    began = time.monotonic()
    for chunk in chunks:
        yield encoder(chunk)
        if workers and time.monotonic() - began > _INLINE_SECONDS:
            break
    else:
        return
    yield from map_in_processes(encoder, chunks, workers)


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if len(chunk) == _CHUNK_PAIRS or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


_COUNTS = (b"left_out_empty", b"left_out_long")


class _Side(NamedTuple):
    """One side of one record batch: views into the mapped file."""

    offsets: npt.NDArray[np.int32]  # (rows + 1,)
    ids: npt.NDArray[np.integer[Any]]  # (tokens,)
    text_offsets: npt.NDArray[np.int32]  # (rows + 1,) in bytes; empty where no text is kept
    text: npt.NDArray[np.uint8]  # UTF-8


class EncodedCorpus:
    """The pairs of a corpus as token ids, numbered from 0. Picklable: another process maps the same file."""

    def __init__(self, path: str | Path):
        """Map the file; raises `pa.ArrowInvalid`, `ValueError` or `OSError` where it is not whole."""
        self.path = Path(path)
        self._open()

    def _open(self) -> None:
        self._map = pa.memory_map(str(self.path))
        reader = pa.ipc.open_file(self._map)
        self.has_texts = "source_text" in reader.schema.names
        self._starts: list[int] = []  # the number of each record batch's first pair
        self._chunks: list[tuple[_Side, _Side]] = []
        self.has_links = "links" in reader.schema.names
        self._links: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]] = []  # offsets and places of each chunk
        pairs = 0
        metadata: Any = None
        for number in range(reader.num_record_batches):
            rows, metadata = reader.get_batch_with_custom_metadata(number)
            if rows.num_rows:
                self._starts.append(pairs)
                self._chunks.append((_side(rows, "source"), _side(rows, "target")))
                if self.has_links:
                    self._links.append(_link_views(rows))
            pairs += rows.num_rows
        if metadata is None or not all(name in metadata for name in _COUNTS):
            raise ValueError(f"{self.path} ends without its counts")
        self.left_out_empty, self.left_out_long = (int(metadata[name]) for name in _COUNTS)
        self._pairs = pairs

    @property
    def key(self) -> str:
        """A hash of the corpus's text, the vocabularies and the options: of all that the ids depend on."""
        return self.path.stem

    def __getstate__(self) -> Path:
        return self.path

    def __setstate__(self, path: Path) -> None:
        self.path = path
        self._open()

    def __len__(self) -> int:
        return self._pairs

    def ids(self, pair: int) -> tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.integer[Any]]]:
        """Source and target ids of a pair, without specials."""
        chunk, row = self._find(pair)
        source, target = chunk
        return (
            source.ids[source.offsets[row] : source.offsets[row + 1]],
            target.ids[target.offsets[row] : target.offsets[row + 1]],
        )

    def texts(self, pair: int) -> tuple[str, str]:
        """Source and target text of a pair, where the corpus was encoded with `keep_text`."""
        assert self.has_texts, "encoded without keep_text"
        chunk, row = self._find(pair)
        source, target = (_text(side, row) for side in chunk)
        return source, target

    def links(self, pair: int) -> npt.NDArray[np.int32]:
        """The links of a pair's tokens, (links, 2): place in the target, place in the source."""
        assert self.has_links, "encoded without links"
        number, row = self._place(pair)
        offsets, places = self._links[number]
        return places[offsets[row] : offsets[row + 1]].reshape(-1, 2)

    @cached_property
    def linked_pairs(self) -> int:
        """How many pairs have any links."""
        return sum(int(np.count_nonzero(np.diff(offsets))) for offsets, _ in self._links)

    @cached_property
    def source_lengths(self) -> npt.NDArray[np.int32]:
        """(N,) tokens of each source, `</s>` not counted."""
        return self._lengths(0)

    @cached_property
    def target_lengths(self) -> npt.NDArray[np.int32]:
        """(N,) tokens of each target, `</s>` not counted."""
        return self._lengths(1)

    def _lengths(self, side: int) -> npt.NDArray[np.int32]:
        lengths = [np.diff(chunk[side].offsets) for chunk in self._chunks]
        return np.concatenate([np.zeros(0, dtype=np.int32), *lengths])

    def _find(self, pair: int) -> tuple[tuple[_Side, _Side], int]:
        number, row = self._place(pair)
        return self._chunks[number], row

    def _place(self, pair: int) -> tuple[int, int]:
        """The number of the pair's chunk, and its row there."""
        if not 0 <= pair < self._pairs:
            raise IndexError(f"pair {pair} of {self._pairs}")
        number = bisect_right(self._starts, pair) - 1
        return number, pair - self._starts[number]


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


def _side(rows: pa.RecordBatch, side: str) -> _Side:
    column = rows.column(f"{side}_ids")
    _, offsets, _, ids = column.buffers()
    text_offsets = text = None
    if f"{side}_text" in rows.schema.names:
        _, text_offsets, text = rows.column(f"{side}_text").buffers()
    return _Side(
        offsets=_view(offsets, np.int32)[: rows.num_rows + 1],  # buffers may be padded
        ids=_view(ids, np.dtype(str(column.type.value_type))),
        text_offsets=_view(text_offsets, np.int32),
        text=_view(text, np.uint8),
    )


def _link_views(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Offsets (rows + 1,) and places of the links of one record batch: views into the mapped file."""
    _, offsets, _, places = rows.column("links").buffers()
    return _view(offsets, np.int32)[: rows.num_rows + 1], _view(places, np.int32)


def _view(buffer: pa.Buffer | None, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """A buffer of the mapped file as an array, without copying it."""
    return np.frombuffer(buffer, dtype=kind) if buffer is not None and buffer.size else np.zeros(0, dtype=kind)


def _text(side: _Side, row: int) -> str:
    return side.text[side.text_offsets[row] : side.text_offsets[row + 1]].tobytes().decode()
