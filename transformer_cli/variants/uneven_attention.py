"""Multi-head attention whose values are wider or narrower than its keys (§3.2.2: d_v beside d_k): `model.value_dim`.

`layers.build_attention` chooses it; it answers as `MultiHeadAttention` does, from keys and values of its own.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_cli.model.attention import SHORT, attention_weights


class UnevenKeysValues(NamedTuple):
    """Projected keys and values of one attention layer, as `KeysValues`, but of two widths."""

    both: Tensor  # (B, 1, S, H·d_k + H·d_v): keys, then values
    heads: int
    head_dim: int  # d_k

    def split(self) -> tuple[Tensor, Tensor]:
        """Keys (B, H, S, d_k) and values (B, H, S, d_v) by head."""
        keys_width = self.heads * self.head_dim
        keys, values = self.both[:, 0, :, :keys_width], self.both[:, 0, :, keys_width:]  # (B, S, H·d) each
        return _by_head(keys, self.heads), _by_head(values, self.heads)

    def append(self, new: "UnevenKeysValues") -> "UnevenKeysValues":
        """These positions, then the new ones, along the length."""
        return UnevenKeysValues(torch.cat([self.both, new.both], dim=2), self.heads, self.head_dim)

    def grow(self, new: "UnevenKeysValues") -> "UnevenKeysValues":
        """As `append`: no room is kept for more."""
        return self.append(new)

    def select(self, rows: Tensor) -> "UnevenKeysValues":
        """The given batch rows, in the given order; `rows` (N,) may repeat."""
        return UnevenKeysValues(self.both.index_select(0, rows), self.heads, self.head_dim)


class UnevenAttention(nn.Module):
    """Concat(head_1, …, head_h) Wᴼ with heads of d_k for queries and keys and d_v for values (§3.2.2)."""

    def __init__(self, d_model: int, heads: int, head_dim: int, value_dim: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.heads, self.head_dim, self.value_dim, self.dropout = heads, head_dim, value_dim, dropout
        self.query = nn.Linear(d_model, heads * head_dim, bias=bias)
        self.key = nn.Linear(d_model, heads * head_dim, bias=bias)
        self.value = nn.Linear(d_model, heads * value_dim, bias=bias)
        self.output = nn.Linear(heads * value_dim, d_model, bias=bias)

    def keys_values(self, states: Tensor) -> UnevenKeysValues:
        """Project states (B, S, D) to keys and values."""
        both = torch.cat([self.key(states), self.value(states)], dim=-1)[:, None]  # (B, 1, S, H·d_k + H·d_v)
        return UnevenKeysValues(both, self.heads, self.head_dim)

    def forward(
        self,
        states: Tensor,
        keys_values: UnevenKeysValues,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What `MultiHeadAttention` says, word for word; G rows of states may read one of keys and values here too."""
        batch, length, _ = states.shape
        keys, values = keys_values.split()  # (B / G, H, S, d_k), (B / G, H, S, d_v)
        query = _by_head(self.query(states).view(keys.size(0), -1, self.heads * self.head_dim), self.heads)
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
        joined = mixed.transpose(1, 2).reshape(batch, length, self.heads * self.value_dim)  # (B, T, H·d_v)
        if not need_weights:
            return self.output(joined), None
        assert weights is not None
        apart = weights.transpose(1, 2).reshape(batch, length, self.heads, keys.size(2)).transpose(1, 2)  # (B, H, T, S)
        return self.output(joined), apart


def _by_head(joined: Tensor, heads: int) -> Tensor:
    """(B, S, H·d) → (B, H, S, d)"""
    return joined.view(*joined.shape[:2], heads, joined.size(2) // heads).transpose(1, 2)
