"""How training uses the machine: its precision, what pays on its processor, compiled layers."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transformer_cli.decoding.devices import processor, use_quick_attention
from transformer_cli.model.torch_private import cpu_capabilities
from transformer_cli.model.transformer import Transformer

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_precision(name: str, device: torch.device) -> str:
    """Return `auto` as bf16 where the device multiplies bf16 itself, else as fp32; other names stay."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device.type == "cpu":
        has = cpu_capabilities()
        return "bf16" if has.get("avx512_bf16") or has.get("amx_bf16") else "fp32"
    return "fp32"


class Precision:
    """How forward passes compute on a device; fp16 scales the loss, so that small gradients survive."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.device, self.name = device, choose_precision(name, device)
        self.type = PRECISIONS[self.name]
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.name == "fp16")

    def autocast(self) -> torch.autocast:
        """Return the context of a forward pass."""
        return torch.autocast(self.device.type, dtype=self.type, enabled=self.type is not None)

    def shrinks_scale(self) -> bool:
        """Return whether fp16 has a loss scale that it can still lower; one of 1 or less is not what overflows."""
        return self.scaler.is_enabled() and self.scaler.get_scale() > 1.0


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>
LARGE = 2**30  # bytes
# oneDNN's default of 1,024 costs 0.3 GiB more, and no time is won: few of attention's shapes occur twice.
KERNELS = 256
FULL_WIDTH = 26  # AMD's family from which on a core multiplies 512 bits at once


def tune_process(device: torch.device) -> None:
    """Do all that pays on this device."""
    keep_large_buffers()
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))  # oneDNN reads it at its first kernel
    use_quick_attention(device)
    if device.type == "cpu":
        use_fast_products()


@contextmanager
def tuned_process(device: torch.device) -> Iterator[None]:
    """Tune the process; afterwards float32 products are as before: on a GPU the same setting would mean TF32."""
    before = torch.get_float32_matmul_precision()
    tune_process(device)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def keep_large_buffers() -> bool:
    """Let glibc's malloc serve up to 1 GiB from its heap and not shrink that; return False where there is no glibc.

    Else it hands each large buffer back to the kernel and gets it again zeroed, page by page.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20))
    return all(mallopt(name, value) for name, value in settings)


def use_fast_products() -> bool:
    """Let oneDNN multiply float32 matrices where MKL, which torch takes, is slow and oneDNN as exact; returns whether.

    MKL gives AMD's processors half of what full-width AVX-512 can (family 26, Zen 5, and later). On a narrower one
    (family 25) oneDNN was 8 % faster and took 0.8 GB more, so those keep what they have, and so do all others. torch's
    word for it is "medium" precision, which allows bfloat16 inside; a trial product shows that none is made use of.
    """
    if processor("vendor_id") != "AuthenticAMD" or int(processor("cpu family") or 0) < FULL_WIDTH:
        return False
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    if not _products_are_exact():
        torch.set_float32_matmul_precision(before)
        return False
    return True


def _products_are_exact(size: int = 256) -> bool:
    """Return whether a float32 product is within rounding of the float64 one; bfloat16 would be off by 1e-3."""
    left = torch.linspace(-1.0, 1.0, size * size, dtype=torch.float64).sin().view(size, size)
    exact = left @ left.t()
    error = (left.float() @ left.float().t()).double() - exact
    return float(error.abs().max() / exact.abs().max()) < 1e-5


def compile_layers(model: Transformer, backend: str = "inductor") -> None:
    """Let `torch.compile` make kernels of the encoder's and the decoder's layers; names of weights stay.

    All layers of a kind share what is compiled, for any length: two graphs for the paper's model, at the first batch,
    after half a minute. Meant for a GPU; on a CPU, whose batches change their shape, it was seen not to pay.
    """
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.compile(dynamic=True, backend=backend)
