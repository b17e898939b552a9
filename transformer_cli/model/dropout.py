"""Dropout (§5.4), with masks that a CPU draws quickly."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS = 2**16  # that 16 random bits can tell apart


class Dropout(nn.Module):
    """Zero each element with probability `rate` and scale the rest by 1 / (1 - rate), in training only."""

    def __init__(self, p: float) -> None:
        super().__init__()
        assert 0.0 <= p <= 1.0 - 1.0 / STEPS
        self.p = p
        self.share = 1.0  # of p, that is in force; training may let it rise from 0

    @property
    def rate(self) -> float:
        """Return with which probability an element is dropped now."""
        return self.p * self.share if self.training else 0.0

    def forward(self, states: Tensor) -> Tensor:  # any shape → the same
        rate = self.rate
        if rate == 0.0:
            return states
        if states.device.type != "cpu" or torch.compiler.is_compiling():
            return functional.dropout(states, rate)
        return (states * keep_mask(states.shape, rate, states.dtype)).mul_(1.0 / (1.0 - rate))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def set_dropout_share(model: nn.Module, share: float) -> None:
    """Let so much of every dropout in the model be in force: 1 all, 0 none."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.share = share


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
