"""Multi-head attention (§3.2): the one box that the encoder and the decoder use in three places."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_cli.model.dropout import Dropout
from transformer_cli.model.linear import Linear

SHORT = 256  # keys up to which plain products train faster on a CPU than the fused kernel; docs/benchmarks.md


class Rotation(NamedTuple):
    """By which angles vectors at T positions are turned, two dimensions at a time (Su et al. 2021, "RoFormer")."""

    cosines: Tensor  # (T, d): of dimensions i and i + d / 2 the same
    sines: Tensor  # (T, d): those of i < d / 2 negative

    def turn(self, vectors: Tensor) -> Tensor:
        """Turn vectors (B, T, H, d): the product of two then depends on their distance alone (§3.2, eq. 11-16)."""
        first, second = vectors.chunk(2, dim=-1)
        cosines, sines = (part[:, None].to(vectors.dtype) for part in self)  # (T, 1, d)
        return torch.addcmul(vectors * cosines, torch.cat([second, first], dim=-1), sines)


class KeysValues(NamedTuple):
    """Projected keys and values of one attention layer. Rows come first, for a search picks rows."""

    both: Tensor  # (B, 2, S, H·d): keys, values; of two widths (B, 1, S, H·d_k + H·d_v), side by side
    heads: int  # last in `both`, so that the positions of a row lie together
    room: Tensor | None = None  # `both` with more positions, whose first S they are: see `grow`
    keys_width: int | None = None  # H·d_k, where d_v is another

    def split(self) -> tuple[Tensor, Tensor]:
        """Return keys (B, H, S, d_k) and values (B, H, S, d_v) by head."""
        batch, _, length, width = self.both.shape
        if self.keys_width is not None:
            sides = torch.split(self.both[:, 0], [self.keys_width, width - self.keys_width], dim=2)
            keys, values = (side.view(batch, length, self.heads, -1).transpose(1, 2) for side in sides)
            return keys, values
        by_head = self.both.view(batch, 2, length, self.heads, width // self.heads)
        keys, values = by_head.permute(1, 0, 3, 2, 4)
        return keys, values

    def append(self, new: "KeysValues") -> "KeysValues":
        """Return these positions, then the new ones, along the length."""
        return KeysValues(torch.cat([self.both, new.both], dim=2), self.heads, keys_width=self.keys_width)

    def grow(self, new: "KeysValues") -> "KeysValues":
        """Do as `append`, but take room for more when called for a second time, and fill that without copying.

        So n positions cost n copies, not n²/2. These keys and values stay as they are, but must not grow once more.
        """
        length, end = self.both.size(2), self.both.size(2) + new.both.size(2)
        if self.room is None:  # rows were picked just now, and may be after every step: room for more would be lost
            both = torch.cat([self.both, new.both], dim=2)
            return KeysValues(both, self.heads, both, self.keys_width)
        room = self.room
        if end > room.size(2):
            room = room.new_empty(room.size(0), room.size(1), 2 * end, room.size(3))
            room[:, :, :length] = self.both
        room[:, :, length:end] = new.both
        return KeysValues(room[:, :, :end], self.heads, room, self.keys_width)

    def select(self, rows: Tensor) -> "KeysValues":
        """Return the given batch rows, in the given order; `rows` (N,) may repeat."""
        return KeysValues(self.both.index_select(0, rows), self.heads, keys_width=self.keys_width)


@dataclass(frozen=True)
class DecoderCache:
    """Per decoder layer: what was decoded so far, and the memory's keys and values, computed once.

    With fewer memory rows than decoded ones, as many decoded rows in a row read each: beams of one sentence.
    """

    decoded: tuple[KeysValues | None, ...]  # None before the first step
    memory: tuple[KeysValues, ...]
    length: int = 0  # positions decoded so far

    def select(self, rows: Tensor, memory_rows: Tensor | None) -> "DecoderCache":
        """Return the given rows of what was decoded, and those of the memory (None: as it is); both may repeat."""
        memory = self.memory
        if memory_rows is not None:
            memory = tuple(layer.select(memory_rows) for layer in memory)
        return DecoderCache(tuple(layer and layer.select(rows) for layer in self.decoded), memory, self.length)


def attention_weights(query: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(Q Kᵀ / √d_k) (§3.2.1, eq. 1). Query (B, H, T, d), keys (B, H, S, d), mask → (B, H, T, S)"""
    scores = query @ keys.transpose(-2, -1) / math.sqrt(query.size(-1))  # (B, H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, …, head_h) Wᴼ with head_i = Attention(Q Wᵢ, K Wᵢ, V Wᵢ) (§3.2.2).

    Keys and values come from one projection (`keys_values`), apart from the queries: a decoder keeps them in its cache.
    Where `value_dim` (d_v) is not `head_dim` (d_k), they come from two. With an `epsilon`, queries and keys are
    normalised before they are turned, as by a layer norm without weights (after Henry et al. 2020, Dehghani et al.
    2023): keys by head, queries by `query_width` numbers, those of one head or of all of them.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        head_dim: int,
        value_dim: int,
        dropout: float,
        bias: bool,
        epsilon: float | None = None,
        query_width: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.value_dim = heads, head_dim, value_dim
        self.dropout = Dropout(dropout)
        self.epsilon, self.query_width = epsilon, query_width or head_dim
        self.query = Linear(d_model, heads * head_dim, bias=bias)
        if value_dim == head_dim:
            self.key_value = Linear(d_model, 2 * heads * head_dim, bias=bias)
        else:
            self.key = Linear(d_model, heads * head_dim, bias=bias)
            self.value = Linear(d_model, heads * value_dim, bias=bias)
        self.output = Linear(heads * value_dim, d_model, bias=bias)

    def keys_values(self, states: Tensor, rotation: Rotation | None = None) -> KeysValues:
        """Project states (B, S, D) to keys and values; the rotation of their S positions turns the keys."""
        if self.value_dim != self.head_dim:
            keys = self.place(self.key(states), self.head_dim, rotation)
            both = torch.cat([keys, self.value(states)], dim=-1)[:, None]  # (B, 1, S, H·d_k + H·d_v)
            return KeysValues(both, self.heads, keys_width=self.heads * self.head_dim)
        return self.arrange(self.key_value(states), rotation)

    def arrange(self, projected: Tensor, rotation: Rotation | None) -> KeysValues:
        """Return what `key_value` makes of S states, (B, S, 2·H·d), as keys and values."""
        both = projected.view(*projected.shape[:2], 2, self.heads * self.head_dim)
        if rotation is None and self.epsilon is None:
            return KeysValues(both.transpose(1, 2), self.heads)
        keys = self.place(both[:, :, 0], self.head_dim, rotation)
        return KeysValues(torch.stack([keys, both[:, :, 1]], dim=1), self.heads)

    def place(self, projected: Tensor, width: int, rotation: Rotation | None) -> Tensor:
        """Normalise queries or keys by `width` numbers, and turn them, where that is done. (B, T, H·d) → (B, T, H·d)"""
        if self.epsilon is not None:
            parts = projected.view(*projected.shape[:2], -1, width)
            normal = functional.layer_norm(parts, (width,), eps=self.epsilon).flatten(2)
            projected = normal.to(projected.dtype)  # under autocast a GPU gives float32
        if rotation is not None:
            projected = rotation.turn(projected.view(*projected.shape[:2], self.heads, self.head_dim)).flatten(2)
        return projected

    def forward(
        self,
        states: Tensor,
        keys_values: KeysValues,
        mask: Tensor | None = None,
        *,
        rotation: Rotation | None = None,
        causal: bool = False,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from states (B, T, D) to keys and values of S positions.

        `mask` broadcasts to (B, H, T, S), True = may attend; `causal` says it for T = S without a mask; `rotation` is
        that of the T positions, where the keys have been turned by theirs. Returns the mixed values (B, T, D) and, only
        if `need_weights`, the weights (B, H, T, S). Where there are G times fewer rows of keys and values, G rows of
        states read one: they attend as G · T positions of one sentence would.
        """
        batch, length, _ = states.shape
        keys, values = keys_values.split()  # (B / G, H, S, d) each
        query = self.place(self.query(states), self.query_width, rotation)  # (B, T, H·d)
        query = query.view(keys.size(0), -1, self.heads, self.head_dim).transpose(1, 2)  # (B/G, H, G·T, d)
        weights = None
        if need_weights or plain_products(query, keys):
            if causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=states.device).tril()
            weights = attention_weights(query, keys, mask)
            mixed = self.dropout(weights) @ values
        else:
            rate = self.dropout.rate
            mixed = functional.scaled_dot_product_attention(query, keys, values, mask, rate, is_causal=causal)
        joined = mixed.transpose(1, 2).reshape(batch, length, self.heads * self.value_dim)  # (B, T, H·d_v)
        if not need_weights:
            return self.output(joined), None
        assert weights is not None
        apart = weights.transpose(1, 2).reshape(batch, length, self.heads, keys.size(2)).transpose(1, 2)  # (B, H, T, S)
        return self.output(joined), apart


def plain_products(query: Tensor, keys: Tensor) -> bool:
    """Whether attention is faster by plain products: the fused kernel is slow backward. Both (B, H, T or S, d)"""
    return query.device.type == "cpu" and torch.is_grad_enabled() and keys.size(2) <= SHORT
