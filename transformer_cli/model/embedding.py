"""From token ids to vectors: embeddings scaled by √d_model (§3.4), plus positions (§3.5), then dropout.

Positions are sinusoids by the paper's formula, or a learned table.
"""

import math

import torch
from torch import Tensor, nn

from transformer_cli.model.layers import Dropout
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


class Embedding(nn.Module):
    """Token and position together: what an encoder or decoder starts from."""

    def __init__(
        self, vocabulary_size: int, d_model: int, positions: SinusoidalPositions | LearnedPositions, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(vocabulary_size, d_model)
        self.positions = positions
        self.dropout = Dropout(dropout)

    def forward(self, ids: Tensor, start: int = 0) -> Tensor:
        """Ids (B, T) that stand at positions start, start + 1, … → (B, T, D)"""
        states: Tensor = self.dropout(self.tokens(ids) + self.positions(start, ids.size(1)))
        return states
