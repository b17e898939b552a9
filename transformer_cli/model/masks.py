"""Which position may attend to which: boolean masks, True = may attend.

The decoder and the search use these two; a batch brings its padding mask along, made by the same rule.
"""

import torch
from torch import Tensor

PAD = 0  # the id of <pad> in every vocabulary


def padding_mask(ids: Tensor) -> Tensor:
    """Every position may attend to all that are not padding.

    `ids` (B, S) token ids → (B, 1, 1, S), which broadcasts over heads and queries. A source always ends in `</s>`,
    so no row is all False.
    """
    return (ids != PAD)[:, None, None, :]


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Position t may attend to positions ≤ t (§3.1, "masked" attention).

    The queries are the last `queries` of `keys` positions: with a cache, only new positions ask. → (queries, keys)
    """
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(diagonal=keys - queries)
