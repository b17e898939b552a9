"""Embeddings as one-hot vector × matrix, as they are taught (§3.4). `build` chooses it for `embedding: one_hot`.

Slower by a factor of the vocabulary, and of no other use than to be looked at: the weights have the same names and
values, so that a model of one kind is a model of the other.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from transformer_cli.model.embedding import TokenEmbedding


class OneHotEmbedding(TokenEmbedding):
    """√d_model · (one-hot(ids) E): row `id` of E by a product, where `TokenEmbedding` reads it from its place."""

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) → (B, T, D)
        matrix = self.table.weight  # (V, D)
        vectors = one_hot(ids, len(matrix)).to(matrix.dtype)  # (B, T, V): 1 at the id, else 0
        with torch.autocast(matrix.device.type, enabled=False):  # a look-up rounds nothing
            return (vectors @ matrix) * self.scale
