"""Dropout (Srivastava et al. 2014; §5.4), as torch's but with a cheaper mask on the CPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def keep_mask(shape: torch.Size, p: float) -> Tensor:
    """True with probability 1 - p (to within 2^-32), drawn from torch's global CPU generator.

    On the CPU torch draws one number an element and turns each into a float; here 64 random bits serve two elements,
    each compared as a whole number.
    """
    count = shape.numel()
    bits = torch.empty((count + 1) // 2, dtype=torch.int64).random_(-(2**63), None)
    return (bits.view(torch.int32)[:count] >= round(p * 2**32) - 2**31).view(shape)


class Dropout(nn.Module):
    """Zero each element with probability p and scale the rest by 1 / (1 - p), in training only."""

    def __init__(self, p: float) -> None:
        super().__init__()
        assert 0.0 <= p < 1.0
        self.p = p

    def forward(self, states: Tensor) -> Tensor:  # any shape → the same
        if not self.training or self.p == 0.0:
            return states
        if states.device.type != "cpu":
            return functional.dropout(states, self.p)
        return states * (keep_mask(states.shape, self.p).to(states.dtype) * (1.0 / (1.0 - self.p)))

    def extra_repr(self) -> str:
        return f"p={self.p}"
