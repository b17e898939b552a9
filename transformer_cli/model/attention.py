"""Multi-head attention (§3.2): the one box that the encoder and the decoder use in three places."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


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


# A CPU's fused kernel is slow backward; up to so many keys plain products train faster there (docs/benchmarks.md).
SHORT = 256


def attention_weights(query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ / √d_k) (§3.2.1, eq. 1), openly. Query (B, H, T, d), keys (B, H, S, d), mask → (B, H, T, S)"""
    scores = query @ keys.transpose(-2, -1) / math.sqrt(query.size(-1))  # (B, H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, …, head_h) Wᴼ with head_i = Attention(Q Wᵢ, K Wᵢ, V Wᵢ) (§3.2.2).

    Keys and values come from one projection (`keys_values`), apart from the queries: a decoder keeps them in its cache.
    """

    def __init__(self, d_model: int, heads: int, head_dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.heads, self.head_dim, self.dropout = heads, head_dim, dropout
        self.query = nn.Linear(d_model, heads * head_dim, bias=bias)
        self.key_value = nn.Linear(d_model, 2 * heads * head_dim, bias=bias)
        self.output = nn.Linear(heads * head_dim, d_model, bias=bias)

    def keys_values(self, states: Tensor) -> KeysValues:
        """Project states (B, S, D) to keys and values."""
        batch, length, _ = states.shape
        both = self.key_value(states).view(batch, length, 2, self.heads * self.head_dim)
        return KeysValues(both.transpose(1, 2), self.heads)

    def forward(
        self,
        states: Tensor,
        keys_values: KeysValues,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from states (B, T, D) to keys and values of S positions.

        `mask` broadcasts to (B, H, T, S), True = may attend; `causal` says it for T = S without a mask. Returns the
        mixed values (B, T, D) and, only if `need_weights`, the weights (B, H, T, S). Where there are G times fewer rows
        of keys and values, G rows of states read one: they attend as G · T positions of one sentence would.
        """
        batch, length, _ = states.shape
        keys, values = keys_values.split()  # (B / G, H, S, d) each
        query = self.query(states).view(keys.size(0), -1, self.heads, self.head_dim).transpose(1, 2)  # (B/G, H, G·T, d)
        weights = None
        slow = query.device.type == "cpu" and torch.is_grad_enabled()
        if need_weights or (slow and keys.size(2) <= SHORT):
            if causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=states.device).tril()
            weights = attention_weights(query, keys, mask)
            mixed = functional.dropout(weights, self.dropout, self.training) @ values
        else:
            dropout = self.dropout if self.training else 0.0
            mixed = functional.scaled_dot_product_attention(query, keys, values, mask, dropout, is_causal=causal)
        joined = mixed.transpose(1, 2).reshape(batch, length, self.heads * self.head_dim)  # (B, T, H·d)
        if not need_weights:
            return self.output(joined), None
        assert weights is not None
        apart = weights.transpose(1, 2).reshape(batch, length, self.heads, keys.size(2)).transpose(1, 2)  # (B, H, T, S)
        return self.output(joined), apart
