import math

import pytest
import torch
from torch.nn import functional

from transformer_cli.training import objective
from transformer_cli.training.objective import fused_linear_cross_entropy, smoothed_cross_entropy

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
    monkeypatch.setattr(objective, "CHUNK_LOGITS", {"cpu": chunk_logits})
    monkeypatch.setattr(objective, "ROWS", 4)  # 37 rows: chunks of 4 or 8, the last one short
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


@pytest.mark.parametrize("with_bias", [False, True])
def test_fused_loss_in_bfloat16_is_near_and_its_gradients_keep_their_type(
    problem: tuple[torch.Tensor, ...], with_bias: bool
) -> None:
    """37 rows are multiplied as 64, 27 of them zeros."""
    hidden, weight, bias, target = (part.detach().float() if part.is_floating_point() else part for part in problem)
    inputs = [part.requires_grad_() for part in ([hidden, weight, bias] if with_bias else [hidden, weight])]
    exact = fused_linear_cross_entropy(hidden, weight, bias if with_bias else None, target, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = fused_linear_cross_entropy(hidden, weight, bias if with_bias else None, target, 0.1)
    assert rough.smoothed.dtype == torch.float32
    assert rough.smoothed != exact.smoothed, "autocast changed nothing"
    torch.testing.assert_close(rough.smoothed, exact.smoothed, rtol=2e-2, atol=0)
    torch.testing.assert_close(rough.likelihood, exact.likelihood, rtol=2e-2, atol=0)
    ours, theirs = (torch.autograd.grad(loss.smoothed, inputs) for loss in (rough, exact))
    for gradient, near, parameter in zip(ours, theirs, inputs, strict=True):
        assert gradient.dtype == parameter.dtype
        assert (gradient - near).norm() < 0.03 * near.norm()


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chunk_logits", [64 * V, 2000 * V])  # in several chunks, and in one
def test_rows_of_zeros_change_neither_loss_nor_gradients(
    with_bias: bool, r_drop: float, chunk_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective, "CHUNK_LOGITS", {"cpu": chunk_logits})
    draw = torch.Generator().manual_seed(1)
    hidden, weight, offset = (torch.randn(size, generator=draw) for size in ((150, D), (V, D), (V,)))
    bias = offset if with_bias else None
    inputs = [part.requires_grad_() for part in (hidden, weight, bias) if part is not None]
    target = torch.randint(V, (75,), generator=draw).repeat_interleave(2)
    found = []
    for spare in (0, -150 % 64):
        monkeypatch.setattr(objective, "spare_rows", lambda *_, spare=spare: spare)
        loss = fused_linear_cross_entropy(hidden, weight, bias, target, 0.1, r_drop)
        found.append([loss.minimised, loss.likelihood, *torch.autograd.grad(loss.minimised, inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# --- R-Drop -------------------------------------------------------------------------------------------------------


def pairs_of_passes(problem: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A second row after each of the problem's, a little different."""
    hidden, weight, bias, target = problem
    moved = hidden.detach() + 0.3 * torch.randn(hidden.shape, dtype=hidden.dtype)
    both = torch.stack([hidden.detach(), moved], 1).flatten(0, 1).requires_grad_()
    return both, weight, bias, target.repeat_interleave(2)


@pytest.mark.parametrize("r_drop", [0.5, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_r_drop_is_the_papers_formula(problem: tuple[torch.Tensor, ...], smoothing: float, r_drop: float) -> None:
    """Wu et al. 2021, eq. 1 to 4: the losses of both passes, and α times the mean of both divergences."""
    hidden, weight, bias, target = pairs_of_passes(problem)
    log_probabilities = functional.linear(hidden, weight, bias).log_softmax(dim=1)
    loss = smoothed_cross_entropy(log_probabilities, target, smoothing, r_drop)
    first, second = log_probabilities[::2], log_probabilities[1::2]
    passes = [smoothed_cross_entropy(rows, target[::2], smoothing) for rows in (first, second)]
    there = functional.kl_div(second, first, log_target=True, reduction="sum")
    back = functional.kl_div(first, second, log_target=True, reduction="sum")
    expected = passes[0].smoothed + passes[1].smoothed + r_drop * 0.5 * (there + back)
    torch.testing.assert_close(loss.minimised, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.smoothed, (passes[0].smoothed + passes[1].smoothed) / 2, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.likelihood, (passes[0].likelihood + passes[1].likelihood) / 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chunk_logits", [V, 70 * V, 1000 * V])
def test_fused_r_drop_equals_the_plain_one(
    problem: tuple[torch.Tensor, ...],
    smoothing: float,
    with_bias: bool,
    chunk_logits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objective, "CHUNK_LOGITS", {"cpu": chunk_logits})
    monkeypatch.setattr(objective, "ROWS", 4)  # 74 rows: chunks of 4 or 8, the last one short
    hidden, weight, bias, target = pairs_of_passes(problem)
    inputs = [hidden, weight, bias] if with_bias else [hidden, weight]
    logits = functional.linear(hidden, weight, bias if with_bias else None)
    plain = smoothed_cross_entropy(logits.log_softmax(dim=1), target, smoothing, 3.0)
    fused = fused_linear_cross_entropy(hidden, weight, bias if with_bias else None, target, smoothing, 3.0)
    for name in ("minimised", "smoothed", "likelihood"):
        torch.testing.assert_close(getattr(fused, name), getattr(plain, name), rtol=1e-10, atol=0)
    expected = torch.autograd.grad(plain.minimised * 3.0, inputs)
    for ours, theirs in zip(torch.autograd.grad(fused.minimised * 3.0, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_fused_r_drop_in_bfloat16_is_near(problem: tuple[torch.Tensor, ...]) -> None:
    rows, weight, _, target = pairs_of_passes(problem)
    rows, weight = (part.detach().float().requires_grad_() for part in (rows, weight))
    exact = fused_linear_cross_entropy(rows, weight, None, target, 0.1, 5.0).minimised
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = fused_linear_cross_entropy(rows, weight, None, target, 0.1, 5.0).minimised
    assert rough != exact, "autocast changed nothing"
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0)
    ours, theirs = (
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, [rows, weight])]) for loss in (rough, exact)
    )
    assert functional.cosine_similarity(ours, theirs, dim=0) > 0.999
    assert ours.dtype == torch.float32


# --- what learns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias", "hidden weight", "weight bias"])
def test_only_what_learns_gets_a_gradient_and_it_is_the_same(problem: tuple[torch.Tensor, ...], frozen: str) -> None:
    hidden, weight, bias, target = problem
    parts = {"hidden": hidden, "weight": weight, "bias": bias}
    loss = fused_linear_cross_entropy(hidden, weight, bias, target, 0.1).smoothed
    expected = dict(zip(parts, torch.autograd.grad(loss, [*parts.values()]), strict=True))
    parts = {name: part.detach().requires_grad_(name not in frozen.split()) for name, part in parts.items()}
    loss = fused_linear_cross_entropy(parts["hidden"], parts["weight"], parts["bias"], target, 0.1).smoothed
    loss.backward()  # type: ignore[no-untyped-call]
    for name, part in parts.items():
        assert (part.grad is None) is (name in frozen.split()), name
        if part.grad is not None:
            torch.testing.assert_close(part.grad, expected[name], rtol=0, atol=1e-12)
