"""The linear layer: of attention, of the feed-forward network, and before the softmax."""

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 64  # even; half or twice as many take about as long


def spare_rows(rows: int, device: torch.device, products: torch.dtype) -> int:
    """Return how many rows of zeros to add, so that products have few different numbers of rows.

    On a CPU, oneDNN makes a kernel of machine code for each shape of a bfloat16 product. With matrices as small as ours
    that takes longer than the product, and hardly any two batches have the same number of tokens (docs/benchmarks.md).
    """
    return -rows % ROWS if device.type == "cpu" and products == torch.bfloat16 else 0


class Linear(nn.Linear):
    """x Wᵀ + b, as `nn.Linear`; with a gradient in bfloat16 on a CPU, rows of zeros are added (see `spare_rows`)."""

    def forward(self, states: Tensor) -> Tensor:  # (…, D) → (…, E)
        spare = 0
        if states.device.type == "cpu" and torch.is_grad_enabled() and torch.is_autocast_enabled("cpu"):
            rows = states.numel() // self.in_features
            spare = spare_rows(rows, states.device, torch.get_autocast_dtype("cpu"))
        if not spare:
            return super().forward(states)
        full = functional.pad(states.reshape(rows, self.in_features), (0, 0, 0, spare))
        return super().forward(full)[:rows].view(*states.shape[:-1], self.out_features)
