"""What a benchmark says of the machine: its name, its matmul peak, the memory of a process. Linux."""

import platform
import time
from pathlib import Path

import torch

# Products of a training step and larger ones, (M, K, N).
PRODUCTS = {
    "cpu": ((4096, 256, 1024), (4096, 1024, 256), (512, 256, 8000), (2048, 2048, 2048)),
    "cuda": ((25600, 512, 2048), (25600, 2048, 512), (3584, 512, 37000), (8192, 8192, 8192)),
}
EXACT = 1e-5  # largest relative error of a product that still counts as float32


def describe_machine(device: str = "cpu") -> str:
    """The GPU, or the processor as the kernel names it."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    special = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {len(names) or '?'} CPUs" + (f" with {', '.join(special)}" if special else "")


def process_memory(field: str) -> int:
    """Bytes of this process: `VmHWM` the most it ever had resident, `VmRSS` now, `RssAnon` now and in no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} in /proc/self/status")


def available_memory() -> int:
    """Bytes that a new process can have, as the kernel estimates."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


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
