"""The coverage penalty of Wu et al. 2016, eq. 14: β Σ_j log min(Σ_i a_ij, 1), for source words that nothing attends to.

a_ij is the attention of target word i on source position j. The score of a finished hypothesis gets it added, after the
length penalty; the search itself goes on by log-probability. CTranslate2 does the same: `</s>` of the target does not
count, `</s>` of the source does, and positions without any attention at all are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from transformer_cli.decoding.search.beam import Bonus
from transformer_cli.decoding.search.greedy import CacheT, Step

# Tokens (N,), cache → log-probabilities (N, V), attention on the source (N, S) while predicting them, cache
AttendingStep = Callable[[Tensor, CacheT], tuple[Tensor, Tensor, CacheT]]


@dataclass(frozen=True)
class Covered(Generic[CacheT]):
    """The model's cache, and how much attention each source position has got. Rows are hypotheses."""

    inner: CacheT
    before: Tensor | None  # (N, S) from all words said; None: no step yet
    after: Tensor | None  # (N, S) and from the one that comes next

    def select(self, rows: Tensor) -> "Covered[CacheT]":
        """The given rows, in the given order; `rows` (N,) may repeat."""
        before, after = (None if each is None else each[rows] for each in (self.before, self.after))
        return Covered(self.inner.select(rows), before, after)


def covering(step: AttendingStep[CacheT]) -> Step[Covered[CacheT]]:
    """A step that keeps count of its attention."""

    def covered(tokens: Tensor, cache: Covered[CacheT]) -> tuple[Tensor, Covered[CacheT]]:
        log_probs, attention, inner = step(tokens, cache.inner)
        before = torch.zeros_like(attention) if cache.after is None else cache.after
        return log_probs, Covered(inner, before, before + attention)

    return covered


def coverage_bonus(beta: float) -> Bonus[Covered[CacheT]]:
    """What coverage adds to the score of a row that ends now, and of one that is cut after one word more."""

    def bonus(cache: Covered[CacheT]) -> tuple[Tensor, Tensor]:
        assert cache.before is not None, "no step yet"
        assert cache.after is not None
        return beta * coverage(cache.before), beta * coverage(cache.after)

    return bonus


def coverage(attended: Tensor) -> Tensor:
    """Σ_j log min(attended, 1) over the positions that got any. (N, S) → (N,)"""
    return attended.clamp(max=1).log().masked_fill(attended == 0, 0.0).sum(dim=1)
