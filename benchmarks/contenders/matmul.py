"""The machine's matmul peak, measured in turn with the others: what it yields are operations a second."""

from collections.abc import Iterator

import torch
from batches import Pairs
from machine import matmul_peak
from shape import Shape

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def train(batches: list[Pairs], shape: Shape, precision: str) -> Iterator[float]:
    """The best of several products, again and again."""
    while True:
        yield matmul_peak(torch.device("cpu"), PRECISIONS[precision])
