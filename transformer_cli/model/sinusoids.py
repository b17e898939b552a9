"""The paper's position encoding as numbers, for the model and for what writes or draws it without torch."""

import math

import numpy as np
import numpy.typing as npt


def sinusoids(length: int, d_model: int) -> npt.NDArray[np.float32]:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i+1) = cos(the same) (§3.5). → (length, d_model)

    Computed in float64: at position 1000 float32 angles are off by 1e-5 already.
    """
    frequencies = np.exp(np.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model))  # (D/2,)
    angles = np.arange(length)[:, None] * frequencies  # (L, D/2)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (L, D/2, 2)
    return table.reshape(length, -1).astype(np.float32)  # (L, D)
