"""From token ids to vectors (§3.4): embeddings scaled by √d_model, plus positions, then dropout."""

import math

from torch import Tensor, nn

from transformer_cli.model.layers import Dropout
from transformer_cli.model.masks import PAD
from transformer_cli.model.positions import LearnedPositions, SinusoidalPositions


class TokenEmbedding(nn.Module):
    """One vector a token, scaled by √d_model, so that positions do not drown it."""

    def __init__(self, vocabulary_size: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary_size, d_model, padding_idx=PAD)
        self.scale = math.sqrt(d_model)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) → (B, T, D)
        vectors: Tensor = self.table(ids)
        return vectors * self.scale


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
