"""From text pairs to Arrow record batches of ids, by several processes where there is enough to do.

Called by encoded.py. What comes out depends on the pairs and the codecs alone, not on the number of processes.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from transformer_cli.data.aligned import AlignedPair, token_links
from transformer_cli.text.codec import Codecs
from transformer_cli.text.processes import map_in_processes

Pair = tuple[str, str] | AlignedPair

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

    def __init__(self, codecs: Codecs, max_length: int, keep_text: bool, aligned: bool = False):
        """aligned: each pair is an `AlignedPair`, whose links are kept too."""
        self.codecs, self.max_length, self.keep_text, self.aligned = codecs, max_length, keep_text, aligned
        ids = pa.list_(pa.uint16() if codecs.most_ids(max_length) <= 1 << 16 else pa.int32())
        fields = [("source_ids", ids), ("target_ids", ids)]
        texts = [("source_text", pa.string()), ("target_text", pa.string())] if keep_text else []
        links = [("links", pa.list_(pa.int32()))] if aligned else []  # target place, source place, target place, …
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
        if self.aligned:
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
