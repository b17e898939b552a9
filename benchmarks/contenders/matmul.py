"""The machine's matmul peak, measured in turn with the others: the `value` of a turn is operations per second."""

import time
from collections.abc import Callable
from typing import Any

import torch

LIBRARIES: tuple[str, ...] = ()
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Products of a training step and larger ones, (M, K, N).
PRODUCTS = {
    "cpu": ((4096, 256, 1024), (4096, 1024, 256), (512, 256, 8000), (2048, 2048, 2048)),
    "cuda": ((25600, 512, 2048), (25600, 2048, 512), (3584, 512, 37000), (8192, 8192, 8192)),
}
EXACT = 1e-5  # largest relative error of a product that still counts as float32


def start(work: dict[str, Any], precision: str) -> Callable[[], dict[str, Any]]:
    """The best of several products, again and again."""
    return lambda: {"value": matmul_peak(torch.device("cpu"), PRECISIONS[precision])}


def matmul_peak(device: torch.device, dtype: torch.dtype, repeats: int = 3) -> float:
    """Operations a second in the best of several matrix products, each tried `repeats` times.

    float32 products take torch's default path and the one of `set_float32_matmul_precision("medium")` where that is as
    exact; the setting is put back.
    """
    before = torch.get_float32_matmul_precision()
    paths = ("highest", "medium") if dtype == torch.float32 and device.type == "cpu" else (before,)
    best = 0.0
    try:
        for path in paths:
            torch.set_float32_matmul_precision(path)
            if path == "medium" and _relative_error() > EXACT:
                continue  # it rounds to bf16 or tf32: another precision
            for size in PRODUCTS[device.type]:
                best = max(best, _product_speed(size, device, dtype, repeats))
    finally:
        torch.set_float32_matmul_precision(before)
    return best


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _product_speed(size: tuple[int, int, int], device: torch.device, dtype: torch.dtype, repeats: int) -> float:
    M, K, N = size
    left = torch.randn(M, K, device=device).to(dtype)
    right = torch.randn(K, N, device=device).to(dtype)
    result = torch.empty(M, N, device=device, dtype=dtype)  # written anew each time: its pages are there
    count = 20 if device.type == "cuda" else 1
    seconds = []
    for _ in range(repeats + 1):
        synchronise(device)
        began = time.perf_counter()
        for _ in range(count):
            torch.mm(left, right, out=result)
        synchronise(device)
        seconds.append((time.perf_counter() - began) / count)
    return 2 * M * K * N / min(seconds[1:])  # the first one warms up


def _relative_error() -> float:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.rand(256, 256, generator=generator), torch.rand(256, 256, generator=generator)
    exact = left.double() @ right.double()
    return float(((left @ right).double() - exact).abs().max() / exact.abs().max())
