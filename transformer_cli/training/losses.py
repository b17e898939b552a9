"""Label-smoothed cross-entropy (§5.4; Szegedy et al. 2016): the plain formula, and one fused with the projection.

Both sum over target tokens; the loop divides once by the tokens of the whole update. The objective chooses.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

CHUNK_LOGITS = {"cpu": 2**22, "cuda": 2**27}  # logits that stand in memory at once: about what a cache or kernel likes


LEAST_ROWS = 64  # of a chunk, however large the vocabulary


class Loss(NamedTuple):
    """Sums over the target tokens, in nats."""

    smoothed: Tensor  # () what training minimises
    likelihood: Tensor  # () Σ -log p[y], for perplexity; no gradient


def smoothed_cross_entropy(log_probabilities: Tensor, target: Tensor, smoothing: float) -> Loss:
    """Σ over tokens of (1 - ε) · (-log p[y]) + ε / V · Σ_v (-log p[v]): torch's definition of label smoothing.

    Log-probabilities (N, V) and target ids (N,), padding already left out.
    """
    likelihood = -log_probabilities.gather(1, target[:, None]).sum()
    uniform = -log_probabilities.sum() / log_probabilities.size(1)
    return Loss((1.0 - smoothing) * likelihood + smoothing * uniform, likelihood.detach())


def fused_linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float
) -> Loss:
    """`smoothed_cross_entropy` of log softmax(hidden Wᵀ + b), without ever holding all (tokens × vocabulary) logits.

    Hidden states (N, D), weight (V, D), bias (V,), target ids (N,), padding already left out. Under autocast the
    products run in its precision, the softmax in float32.
    """
    chunk = max(LEAST_ROWS, CHUNK_LOGITS.get(hidden.device.type, 2**24) // weight.size(0))
    learns = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    apply: Callable[..., tuple[Tensor, Tensor]] = _FusedLinearCrossEntropy.apply
    return Loss(*apply(hidden, weight, bias, target, smoothing, chunk, learns))


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """The gradient of softmax cross-entropy is known in closed form (softmax - smoothed target), so the forward pass
    turns each chunk of logits into its gradient in place, projects it back and drops it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        chunk: int,
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        wide = torch.promote_types(hidden.dtype, torch.float32)
        matrix, offset = weight.to(narrow), None if bias is None else bias.to(narrow)
        hidden_gradient = torch.empty_like(hidden, dtype=wide) if learns else None
        weight_gradient = torch.zeros_like(weight) if learns else None
        bias_gradient = torch.zeros_like(bias) if learns and bias is not None else None
        smoothed = torch.zeros((), dtype=wide, device=hidden.device)
        likelihood = torch.zeros_like(smoothed)
        with torch.autocast(device, enabled=False):
            for start in range(0, hidden.size(0), chunk):
                rows, wanted = hidden[start : start + chunk].to(narrow), target[start : start + chunk, None]
                logits = functional.linear(rows, matrix, offset).to(wide)  # (c, V)
                normaliser = logits.logsumexp(dim=1)  # (c,)
                tokens = (normaliser - logits.gather(1, wanted).squeeze(1)).sum()
                likelihood += tokens
                smoothed += (1.0 - smoothing) * tokens
                if smoothing:
                    smoothed += smoothing * (normaliser.sum() - logits.sum() / weight.size(0))
                if hidden_gradient is None or weight_gradient is None:
                    continue
                gradient = logits.sub_(normaliser[:, None]).exp_()  # (c, V) softmax, in place
                gradient.scatter_add_(1, wanted, gradient.new_full(wanted.shape, smoothing - 1.0))
                if smoothing:
                    gradient.sub_(smoothing / weight.size(0))
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0)
                gradient = gradient.to(narrow)
                hidden_gradient[start : start + chunk] = gradient @ matrix
                if narrow == weight.dtype:
                    weight_gradient.addmm_(gradient.t(), rows)
                else:
                    weight_gradient += gradient.t() @ rows
        ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        ctx.mark_non_differentiable(likelihood)
        return smoothed, likelihood

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        scale = upstream[0]
        return hidden * scale, weight * scale, None if bias is None else bias * scale, None, None, None, None
