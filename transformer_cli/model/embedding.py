"""From token ids to vectors: embeddings scaled by √d_model (§3.4), plus positions (§3.5), then dropout.

Positions are sinusoids by the paper's formula, or a learned table; or nothing is added for them, and they turn the
queries and keys of self-attention.
"""

import math

import torch
from torch import Tensor, nn

from transformer_cli.config import ModelConfig
from transformer_cli.model.attention import Rotation
from transformer_cli.model.dropout import Dropout
from transformer_cli.model.masks import PAD
from transformer_cli.model.sinusoids import sinusoids

TABLE_LENGTH = 1024  # positions computed ahead; longer inputs get theirs computed when they come


class TokenEmbedding(nn.Module):
    """One vector per token, scaled by √d_model, so that positions do not drown it."""

    def __init__(self, vocabulary_size: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary_size, d_model, padding_idx=PAD)
        self.scale = math.sqrt(d_model)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) → (B, T, D)
        vectors: Tensor = self.table(ids)
        return vectors * self.scale


def sinusoidal_table(length: int, d_model: int) -> Tensor:
    """Return `sinusoids` as a tensor. → (length, d_model) float32"""
    return torch.from_numpy(sinusoids(length, d_model))


class SinusoidalPositions(nn.Module):
    """The paper's position encoding: nothing to learn, any length."""

    table: Tensor
    max_length = None

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoidal_table(TABLE_LENGTH, d_model), persistent=False)

    def forward(self, start: int, length: int) -> Tensor:
        """The encodings of positions start … start + length - 1. → (length, D)"""
        end = start + length
        table = self.table if end <= len(self.table) else sinusoidal_table(end, self.table.size(1)).to(self.table)
        return table[start:end]


class LearnedPositions(nn.Module):
    """One learned vector a position (§3.5, table 3 row E); inputs may not be longer than the table.

    It begins as the sinusoids, so that order is seen from the first step on.
    """

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.table = nn.Embedding(max_length, d_model)

    def reset_parameters(self) -> None:
        """Back to the beginning."""
        length, d_model = self.table.weight.shape
        with torch.no_grad():
            self.table.weight.copy_(sinusoidal_table(length, d_model + d_model % 2)[:, :d_model])

    def forward(self, start: int, length: int) -> Tensor:
        """The vectors of positions start … start + length - 1. → (length, D)"""
        assert start + length <= self.max_length, f"{start + length} positions, but the table has {self.max_length}"
        return self.table.weight[start : start + length]


class RotaryPositions(nn.Module):
    """Angles instead of vectors to add (Su et al. 2021): those of the paper's sinusoids of a head's width."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.sinusoids = SinusoidalPositions(head_dim)

    def forward(self, start: int, length: int) -> Rotation:
        """Return the rotation of positions start … start + length - 1."""
        return as_rotation(self.sinusoids(start, length))


def as_rotation(table: Tensor) -> Rotation:
    """Return the rotation by the angles whose sines and cosines take turns in a table (T, d)."""
    sines, cosines = table[:, 0::2], table[:, 1::2]
    return Rotation(torch.cat([cosines, cosines], dim=1), torch.cat([-sines, sines], dim=1))


def build_rotary(config: ModelConfig) -> RotaryPositions | None:
    """Return what an encoder or decoder turns queries and keys by; None: positions are in the embeddings."""
    return RotaryPositions(config.head_width) if config.positions == "rotary" else None


class Embedding(nn.Module):
    """Token and position together: what an encoder or decoder starts from. positions: None adds nothing for them."""

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        positions: SinusoidalPositions | LearnedPositions | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(vocabulary_size, d_model)
        self.positions = positions
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) that stand at positions start, start + 1, … → (B, T, D)"""
        states: Tensor = self.dropout(self.place(self.tokens(ids), start))
        return states

    def place(self, vectors: Tensor, start: int) -> Tensor:
        """Add positions start, start + 1, … to vectors (B, T, D), unless they are rotary."""
        return vectors if self.positions is None else vectors + self.positions(start, vectors.size(1))

    @property
    def max_length(self) -> int | None:
        """The length of the position table; None: no limit."""
        return None if self.positions is None else self.positions.max_length
