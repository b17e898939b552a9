"""From attention to alignment: which source token a target token belongs to. Every engine calls it; no torch."""

from typing import Any

import numpy as np
import numpy.typing as npt

# Added to what a source token gets in all, so that one which no step looks at is nobody's, and the only token of a
# target belongs to what it looks at most. The error rate is the same within 0.006 from 0 to 0.2.
FLOOR = 0.05


def own_sources(weights: npt.NDArray[Any]) -> list[int]:
    """Attention weights (T, S), as each of T target tokens is predicted → the place of each one's source token.

    A weight counts by its share of all that the source token gets, so that a full stop which every step looks at is
    not everybody's. S must be 1 or more; `</s>` and padding do not belong in `weights`.
    """
    weights = np.asarray(weights, dtype=np.float64)
    shares = weights / (weights.sum(axis=0, keepdims=True) + FLOOR)
    places: list[int] = shares.argmax(axis=1).tolist()
    return places
