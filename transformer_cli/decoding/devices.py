"""Which device and which number type models run in, and what there is of cores, GPUs and processes of torchrun's.

Commands, loading and training call it. torch is imported only by what needs it.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.errors import UserError

if TYPE_CHECKING:
    import torch


CPUINFO = Path("/proc/cpuinfo")
GPU_FILES = (
    "/dev/nvidiactl",
    "/dev/kfd",  # AMD's
    "/usr/lib/wsl/lib/libcuda.so.1",  # of Windows' NVIDIA driver; /dev/dxg is there under WSL whatever the GPU
)


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor(key: str = "model name") -> str:
    """Return what Linux says of the first processor, such as its name; "" elsewhere."""
    try:
        about = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(rf"^{key}[ \t]*:[ \t]*(.*\S)", about, re.MULTILINE)
    return found[1] if found else ""


def has_gpu() -> bool:
    """Return whether there may be a GPU for torch: NVIDIA's, also under WSL, or AMD's. Quick, for no torch is asked."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(map(os.path.exists, GPU_FILES))


def rank_and_size() -> tuple[int, int]:
    """Return which of torchrun's processes this is, and how many there are; (0, 1) where it was not started so.

    Raises `UserError` where the variables RANK and WORLD_SIZE do not say that.
    """
    values = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not all(value.isdecimal() for value in values) or int(values[0]) >= int(values[1]):
        raise UserError(f"RANK={values[0]} WORLD_SIZE={values[1]}: are not a process of torchrun's; unset both")
    return int(values[0]), int(values[1])


def device_of(device: str, number: int) -> str:
    """Return the device of a process: those that may take any GPU take one each, in turn."""
    number += int(os.environ.get("LOCAL_RANK", "0"))
    if device not in ("auto", "cuda") or not has_gpu():
        return device  # without importing torch, which a process on the CPU may not need
    import torch

    count = torch.cuda.device_count()
    return f"cuda:{number % count}" if count else device


def kind_of(device: str) -> str:
    """Return cpu, cuda or mps for any device of that kind; auto stays where only torch can say.

    Under torchrun it does in any case: its processes have to agree, on machines of whatever kind.
    """
    if device == "auto" and rank_and_size()[1] == 1 and has_gpu():
        return "cuda"
    return device.partition(":")[0]


def use_quick_attention(device: "torch.device") -> None:
    """Keep torch from cuDNN's attention on a GPU, for this process; all its other kernels stay.

    It is torch's first choice for bfloat16, and makes a plan of every shape that it sees for the first time; batches of
    sentences keep bringing new ones. On an H200 such an update took five times as long (docs/benchmarks.md).
    """
    if device.type == "cuda":
        import torch

        torch.backends.cuda.enable_cudnn_sdp(False)


def choose_device(name: str) -> "torch.device":
    """Return the device called `name`; `auto` is the first of cuda, mps, cpu. `UserError` where it is missing."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device {name!r}: unknown; give auto, cpu, cuda or mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device {name!r}: not supported; give auto, cpu, cuda or mps")
    count = {"cpu": 1, "mps": int(torch.backends.mps.is_available()), "cuda": torch.cuda.device_count()}[device.type]
    if (device.index or 0) >= count:
        what = "has no such device" if count == 0 else f"has only {count} of them"
        raise UserError(f"device {name!r}: this machine {what}; use --device auto or cpu")
    return device


def choose_type(name: str | None, device: "torch.device") -> "torch.dtype | None":
    """Return the type called `name` that weights are cast to for searching, and only for it: training casts for itself.

    Sums of log-probabilities are float32 in any case. None: bfloat16 on a GPU that computes in it, else as they are.
    """
    import torch

    if name is not None:
        return {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[name]
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else None
