"""What a benchmark says of the machine: its name, the memory of a process. Linux. Imports torch for a GPU only."""

import platform
from pathlib import Path


def describe_machine(device: str = "cpu") -> str:
    """The GPU, or the processor as the kernel names it."""
    if device == "cuda":
        import torch

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
