"""Which kernel of attention runs, and how fast each would be."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from on_gpu.profiling import milliseconds, profile_kernels
from on_gpu.work import Work

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention(work: Work) -> dict[str, Any]:
    """Every kernel on the three attentions of a batch, forward and backward; which one runs by itself."""
    results: dict[str, Any] = {}
    torch.backends.cuda.enable_cudnn_sdp(True)  # as torch has it
    for length in (29, 32, 64, 256):
        rows = (256 if work.small else 25_600) // length
        for kind in ("encoder", "causal", "cross"):
            results[f"{kind}, length {length}"] = attend(work, kind, rows, length)
    return results


def attend(work: Work, kind: str, rows: int, length: int) -> dict[str, Any]:
    heads, head_dim = work.shape.heads, work.shape.d_model // work.shape.heads

    def states(positions: int) -> Tensor:  # as the model has them: heads are split off without a copy
        flat = torch.randn(rows, positions, heads, head_dim, device=work.device, dtype=torch.bfloat16)
        return flat.transpose(1, 2).requires_grad_()

    query, key, value = states(length), *(states(length + 3 if kind == "cross" else length) for _ in range(2))
    mask = None
    if kind != "causal":
        mask = torch.ones(rows, 1, 1, key.size(2), dtype=torch.bool, device=work.device)
        mask[::2, ..., -2:] = False

    def step() -> None:
        mixed = scaled_dot_product_attention(query, key, value, mask, is_causal=kind == "causal")
        mixed.backward(mixed.detach())  # type: ignore[no-untyped-call]
        query.grad = key.grad = value.grad = None

    result: dict[str, Any] = {"by itself": milliseconds(step, work.device)}
    result["kernels"] = list(profile_kernels(step, work.device)["by time"])[:6]
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they say why a kernel does not take this
                result[name] = milliseconds(step, work.device)
        except RuntimeError as error:
            result[name] = f"refused: {str(error).splitlines()[0][:60]}"
    return result
