"""The arithmetic of training: fp32, bf16 or fp16 by autocast, or what the device is fastest in."""

from collections.abc import Mapping

import torch

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_precision(name: str, device: torch.device) -> str:
    """`auto` becomes bf16 where the device multiplies bf16 itself, else fp32; other names stay."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type == "cpu":
        has: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch cannot tell
        return "bf16" if has.get("avx512_bf16") or has.get("amx_bf16") else "fp32"
    return "fp32"


class Precision:
    """How forward passes compute on a device; fp16 scales the loss, so that small gradients survive."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.device, self.name = device, choose_precision(name, device)
        self.type = PRECISIONS[self.name]
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.name == "fp16")

    def autocast(self) -> torch.autocast:
        """The context of a forward pass."""
        return torch.autocast(self.device.type, dtype=self.type, enabled=self.type is not None)

    def shrinks_scale(self) -> bool:
        """Whether fp16 has a loss scale that it can still lower; one of 1 or less is not what overflows."""
        return self.scaler.is_enabled() and self.scaler.get_scale() > 1.0
