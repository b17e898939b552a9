"""What makes training faster on a CPU: attention by plain products, and dropout from few random words.

Attention and dropout ask here; elsewhere torch's own kernels are the fastest. docs/benchmarks.md has the measurements.
"""

import numpy as np
import torch
from torch import Tensor

SHORT = 256  # keys up to which plain products train faster than the fused kernel
STEPS = 2**16  # that 16 random bits can tell apart


def plain_products(query: Tensor, keys: Tensor) -> bool:
    """Whether attention is faster by plain products: the fused kernel is slow backward. Both (B, H, T or S, d)"""
    return query.device.type == "cpu" and torch.is_grad_enabled() and keys.size(2) <= SHORT


def keep_mask(shape: torch.Size, p: float, dtype: torch.dtype = torch.bool) -> Tensor:
    """Return 1 with probability 1 - p, else 0; all that is random follows from torch's global CPU generator.

    On the CPU torch draws a whole number an element, one after the other, and turns each into a float. Here it draws a
    seed only, and numpy's SFC64 gives four elements 64 bits. Of 65,536 values those below a threshold drop out; where p
    lies between two thresholds, a draw a mask decides which one holds, so that p is exact.
    """
    count = shape.numel()
    seed = int(torch.randint(2**63 - 1, ()))
    words = np.random.SFC64(seed).random_raw(1 + -(-count // 4))  # (1 + ⌈count / 4⌉,) uint64
    threshold = int(p * STEPS + float(words[0]) / 2**64)
    bits = torch.from_numpy(words[1:].view(np.int16)[:count])
    mask = torch.empty(shape, dtype=dtype)  # in the type of what it multiplies: a product with bool is 5 times slower
    return torch.ge(bits.view(shape), threshold - STEPS // 2, out=mask)
