"""Which of several processes this one is, and which device is its own. Imports nothing that takes time.

`tfm translate` and its jobs call it.
"""

import os

from transformer_cli.errors import UserError


def rank_and_size() -> tuple[int, int]:
    """Which of torchrun's processes this is, and how many there are; (0, 1) where it was not started so.

    Raises `UserError` where the variables RANK and WORLD_SIZE are no such numbers.
    """
    values = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not all(value.isdecimal() for value in values) or int(values[0]) >= int(values[1]):
        raise UserError(f"RANK={values[0]} WORLD_SIZE={values[1]}: are no process of torchrun's; unset both")
    return int(values[0]), int(values[1])


def device_of(device: str, number: int) -> str:
    """The device of a process: those that may take any GPU take one each, in turn."""
    number += int(os.environ.get("LOCAL_RANK", "0"))
    if device not in ("auto", "cuda") or not _has_gpu():
        return device  # without importing torch, which a process on the CPU may not need
    import torch

    count = torch.cuda.device_count()
    return f"cuda:{number % count}" if count else device


def kind_of(device: str) -> str:
    """cpu, cuda or mps for any device of that kind; auto stays where only torch can tell.

    Under torchrun it does in any case: its processes have to agree, on machines of whatever kind.
    """
    if device == "auto" and rank_and_size()[1] == 1 and _has_gpu():
        return "cuda"
    return device.partition(":")[0]


def _has_gpu() -> bool:
    """Whether there seems to be one for CUDA, and it is not hidden."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
