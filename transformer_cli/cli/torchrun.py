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
    if device not in ("auto", "cuda") or not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):
        return device  # without importing torch, which a process on the CPU may not need
    import torch

    count = torch.cuda.device_count()
    return f"cuda:{number % count}" if count else device
