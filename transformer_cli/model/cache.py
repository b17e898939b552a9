"""What incremental decoding remembers between steps. A cache is passed in and a new one handed back; modules keep none.

Rows are hypotheses: the search picks, repeats and drops rows with `select`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class KeysValues(NamedTuple):
    """Projected keys and values of one attention layer, split into heads."""

    keys: Tensor  # (B, H, S, head_dim)
    values: Tensor  # (B, H, S, head_dim)

    def append(self, new: "KeysValues") -> "KeysValues":
        """These positions, then the new ones, along the length."""
        return KeysValues(torch.cat([self.keys, new.keys], dim=2), torch.cat([self.values, new.values], dim=2))

    def select(self, rows: Tensor) -> "KeysValues":
        """The given batch rows, in the given order; `rows` (N,) may repeat."""
        return KeysValues(self.keys.index_select(0, rows), self.values.index_select(0, rows))


@dataclass(frozen=True)
class DecoderCache:
    """Per decoder layer: what was decoded so far, and the memory's keys and values, computed once."""

    decoded: tuple[KeysValues | None, ...]  # None before the first step
    memory: tuple[KeysValues, ...]
    length: int = 0  # positions decoded so far

    def select(self, rows: Tensor) -> "DecoderCache":
        """The given batch rows, in the given order; `rows` (N,) may repeat."""
        return DecoderCache(
            tuple(layer and layer.select(rows) for layer in self.decoded),
            tuple(layer.select(rows) for layer in self.memory),
            self.length,
        )
