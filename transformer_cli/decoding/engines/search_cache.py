"""What a step of our own Transformer remembers beside the tokens, for the rows of a search: `TorchEngine` makes it."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from transformer_cli.model.cache import DecoderCache


@dataclass(frozen=True)
class SearchCache:
    """N rows are hypotheses. They read M sentences: while all sentences have as many rows, N / M each, they share.

    So a sentence's memory is neither copied for its beams nor moved when these change places.
    """

    decoder: DecoderCache
    source: Tensor  # (M, S)
    source_mask: Tensor  # (M, 1, 1, S)
    places: Tensor  # (N,) which of the M each row reads; ascending

    @classmethod
    def start(cls, decoder: DecoderCache, source: Tensor, source_mask: Tensor) -> Self:
        """One row a sentence."""
        return cls(decoder, source, source_mask, torch.arange(len(source), device=source.device))

    def select(self, rows: Tensor) -> Self:
        """The given rows, in the given order; `rows` (N,) may repeat. Those of a sentence stay together, in order."""
        places = self.places[rows]
        if places.shape == self.places.shape and torch.equal(places, self.places):
            decoder = self.decoder.select(rows, memory_rows=None)
            return type(self)(decoder, self.source, self.source_mask, self.places)
        sentences, counts = torch.unique_consecutive(places, return_counts=True)
        shared = bool((counts == counts[:1]).all())
        kept = sentences if shared else places
        width = len(rows) // max(1, len(kept))
        places = torch.arange(len(kept), device=rows.device).repeat_interleave(width)
        decoder = self.decoder.select(rows, memory_rows=kept)
        return type(self)(decoder, self.source[kept], self.source_mask[kept], places)
