"""Label-smoothed cross-entropy of a model that copies: `objective` takes it where the generator is a pointer.

Beside the V tokens of the vocabulary a row has columns for source tokens, most of which are no token: their
log-probability is -inf, and no share of the smoothing is theirs.
"""

import torch
from torch import Tensor

from transformer_cli.training.losses import Loss


def pointer_cross_entropy(
    log_probabilities: Tensor, target: Tensor, vocabulary_size: int, smoothing: float, r_drop: float = 0.0
) -> Loss:
    """Σ over tokens of (1 - ε) · (-log p[y]) + ε / V · Σ_v (-log p[v]), v of the vocabulary alone, y any column.

    Log-probabilities (N, V + S) and target ids (N,), padding already left out. `r_drop`: α of `losses`; a token has two
    rows then, and their divergence is over all that is possible in both.
    """
    likelihood = -log_probabilities.gather(1, target[:, None]).sum()
    uniform = -log_probabilities[:, :vocabulary_size].sum() / vocabulary_size
    smoothed = (1.0 - smoothing) * likelihood + smoothing * uniform
    if not r_drop:
        return Loss(smoothed, likelihood.detach())
    impossible = log_probabilities == -torch.inf  # in both rows or in none: they read one source
    one, other = log_probabilities.masked_fill(impossible, 0.0).view(-1, 2, log_probabilities.size(1)).unbind(1)
    divergence = 0.5 * ((one.exp() - other.exp()) * (one - other)).sum()
    return Loss(smoothed.detach() / 2, likelihood.detach() / 2, smoothed + r_drop * divergence)
