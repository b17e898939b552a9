"""What incremental decoding remembers between steps. A cache is passed in and a new one handed back; modules keep none.

Rows are hypotheses: the search picks, repeats and drops rows with `select`. Hypotheses of one sentence read one memory.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class KeysValues(NamedTuple):
    """Projected keys and values of one attention layer. Rows come first and heads last: then a row is few stretches."""

    both: Tensor  # (B, 2, S, H·head_dim): keys, values
    heads: int
    room: Tensor | None = None  # (B, 2, ≥ S, H·head_dim), whose first S positions they are: see `grow`

    def split(self) -> tuple[Tensor, Tensor]:
        """Keys and values by head, each (B, H, S, head_dim)."""
        batch, _, length, width = self.both.shape
        by_head = self.both.view(batch, 2, length, self.heads, width // self.heads)
        keys, values = by_head.permute(1, 0, 3, 2, 4)
        return keys, values

    def append(self, new: "KeysValues") -> "KeysValues":
        """These positions, then the new ones, along the length."""
        return KeysValues(torch.cat([self.both, new.both], dim=2), self.heads)

    def grow(self, new: "KeysValues") -> "KeysValues":
        """`append` that takes room for more, when it comes for a second time, and fills that without copying.

        So n positions cost n copies, not n²/2. These keys and values stay as they are, but must not grow once more.
        """
        length, end = self.both.size(2), self.both.size(2) + new.both.size(2)
        if self.room is None:  # rows were picked just now, and may be after every step: room for more would be lost
            both = torch.cat([self.both, new.both], dim=2)
            return KeysValues(both, self.heads, both)
        room = self.room
        if end > room.size(2):
            room = room.new_empty(room.size(0), 2, 2 * end, room.size(3))
            room[:, :, :length] = self.both
        room[:, :, length:end] = new.both
        return KeysValues(room[:, :, :end], self.heads, room)

    def select(self, rows: Tensor) -> "KeysValues":
        """The given batch rows, in the given order; `rows` (N,) may repeat."""
        return KeysValues(self.both.index_select(0, rows), self.heads)


@dataclass(frozen=True)
class DecoderCache:
    """Per decoder layer: what was decoded so far, and the memory's keys and values, computed once.

    With fewer memory rows than decoded ones, as many decoded rows in a row read each: beams of one sentence.
    """

    decoded: tuple[KeysValues | None, ...]  # None before the first step
    memory: tuple[KeysValues, ...]
    length: int = 0  # positions decoded so far

    def select(self, rows: Tensor, memory_rows: Tensor | None) -> "DecoderCache":
        """The given rows of what was decoded, and those of the memory (None: as it is); both may repeat."""
        memory = self.memory
        if memory_rows is not None:
            memory = tuple(layer.select(memory_rows) for layer in memory)
        return DecoderCache(tuple(layer and layer.select(rows) for layer in self.decoded), memory, self.length)
