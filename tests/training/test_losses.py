import math

import pytest
import torch
from torch.nn import functional

from transformer_cli.training import losses
from transformer_cli.training.losses import fused_linear_cross_entropy, smoothed_cross_entropy

N, D, V = 37, 6, 11


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(V, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randint(V, (N,), generator=generator)
    return hidden, weight, bias, target


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_smoothed_loss_is_its_formula_and_torchs(smoothing: float) -> None:
    log_probabilities = torch.randn(5, 4, dtype=torch.float64).log_softmax(dim=1)
    target = torch.tensor([0, 3, 1, 1, 2])
    by_hand = 0.0
    for row, wanted in zip(log_probabilities.tolist(), target.tolist(), strict=True):
        wish = [smoothing / 4 + (1 - smoothing) * (v == wanted) for v in range(4)]
        by_hand -= sum(q * log_p for q, log_p in zip(wish, row, strict=True))
    loss = smoothed_cross_entropy(log_probabilities, target, smoothing)
    torchs = functional.cross_entropy(log_probabilities, target, label_smoothing=smoothing, reduction="sum")
    assert math.isclose(float(loss.smoothed), by_hand, rel_tol=1e-12)
    torch.testing.assert_close(loss.smoothed, torchs, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.likelihood, functional.nll_loss(log_probabilities, target, reduction="sum"))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chunk_logits", [V, 8 * V, 1000 * V])
def test_fused_loss_equals_the_plain_one(
    problem: tuple[torch.Tensor, ...],
    smoothing: float,
    with_bias: bool,
    chunk_logits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "CHUNK_LOGITS", {"cpu": chunk_logits})
    monkeypatch.setattr(losses, "LEAST_ROWS", 5)  # 37 rows: chunks of 5 or 8, the last one short
    hidden, weight, bias, target = problem
    inputs = [hidden, weight, bias] if with_bias else [hidden, weight]
    logits = functional.linear(hidden, weight, bias if with_bias else None)
    plain = smoothed_cross_entropy(logits.log_softmax(dim=1), target, smoothing)
    fused = fused_linear_cross_entropy(hidden, weight, bias if with_bias else None, target, smoothing)
    torch.testing.assert_close(fused.smoothed, plain.smoothed, rtol=1e-10, atol=0)
    torch.testing.assert_close(fused.likelihood, plain.likelihood, rtol=1e-10, atol=0)
    expected = torch.autograd.grad(plain.smoothed * 3.0, inputs)
    for ours, theirs in zip(torch.autograd.grad(fused.smoothed * 3.0, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_fused_loss_without_gradients(problem: tuple[torch.Tensor, ...]) -> None:
    hidden, weight, _, target = problem
    with torch.inference_mode():
        loss = fused_linear_cross_entropy(hidden, weight, None, target, 0.1)
        plain = smoothed_cross_entropy((hidden @ weight.t()).log_softmax(dim=1), target, 0.1)
    torch.testing.assert_close(loss.smoothed, plain.smoothed)
    assert not loss.smoothed.requires_grad


def test_fused_loss_in_bfloat16_is_near_and_its_gradients_keep_their_type(problem: tuple[torch.Tensor, ...]) -> None:
    hidden, weight, _, target = (part.detach().float() if part.is_floating_point() else part for part in problem)
    hidden.requires_grad_()
    weight.requires_grad_()
    exact = fused_linear_cross_entropy(hidden, weight, None, target, 0.1).smoothed
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = fused_linear_cross_entropy(hidden, weight, None, target, 0.1).smoothed
    assert rough.dtype == torch.float32
    assert rough != exact, "autocast changed nothing"
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0)
    for gradient, parameter in zip(torch.autograd.grad(rough, [hidden, weight]), [hidden, weight], strict=True):
        assert gradient.dtype == parameter.dtype
