"""Muon's updates have singular values near 1, are torch's own, and leave all but hidden matrices to Adam."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from transformer_cli.build import build_model
from transformer_cli.config import Config
from transformer_cli.training.muon import POLYNOMIALS, ROUNDING, MuonAndAdam, hidden_matrices, orthogonal
from transformer_cli.training.run import train

MakeConfig = Callable[..., Config]
LEAST, NEAR = 0.0109, 0.251  # from LEAST on, values end so near to 1


@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (48, 16)])
def test_an_update_keeps_singular_vectors_and_makes_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    for matrix, found in zip(matrices, orthogonal(matrices, torch.float64), strict=True):
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        values = left.T @ found @ right.T
        assert values.diagonal().min() > 0.3  # of the least, which begin near 0
        assert values.diagonal().max() < 1 + NEAR
        assert values.diagonal().median() > 1 - NEAR
        torch.testing.assert_close(values, torch.diag(values.diagonal()), rtol=0, atol=1e-9)


def test_bfloat16_is_enough() -> None:
    torch.manual_seed(1)
    matrices = torch.randn(20, 16, 48)
    for matrix, found in zip(matrices, orthogonal(matrices, torch.bfloat16), strict=True):
        assert found.dtype == torch.float32
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        values = left.T @ found @ right.T
        assert 0.3 < values.diagonal().min() < values.diagonal().max() < 1 + NEAR + 0.01
        torch.testing.assert_close(values, torch.diag(values.diagonal()), rtol=0, atol=0.05)


@pytest.mark.parametrize("flat", [True, False])
def test_all_values_of_the_promised_range_end_near_one(flat: bool) -> None:
    """Many values of one size, where the bound is far above them, and values that fall to the end of the range."""
    torch.manual_seed(1)
    left, right = (torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64)).Q for _ in range(2))
    values = torch.ones(32, dtype=torch.float64) if flat else torch.logspace(0, -1.85, 32, dtype=torch.float64)
    least = float(values.min() / values.pow(4).sum() ** 0.25 / ROUNDING)
    assert flat or LEAST < least < 1.1 * LEAST
    ends = torch.linalg.svdvals(orthogonal(left @ values.diag()[None] @ right, torch.float64)[0])
    assert 1 - NEAR < ends.min() < ends.max() < 1 + NEAR


@pytest.mark.parametrize("products", [torch.float32, torch.bfloat16])
def test_one_large_singular_value_or_none_does_no_harm(products: torch.dtype) -> None:
    torch.manual_seed(1)
    alone = torch.randn(32, 1) @ torch.randn(1, 96)
    for size in (1e-13, 1.0, 1e6):
        found = torch.linalg.svdvals(orthogonal(size * alone[None], products)[0])
        assert abs(found[0] - 1) < NEAR + 0.01
        assert found[1] < 0.2  # of rounding alone
    assert not orthogonal(torch.zeros(1, 32, 96), products).any()


def test_each_polynomial_is_the_best_for_the_values_that_reach_it() -> None:
    """The best has four errors of one size, by turns below and above 1, at the ends and between (Chebyshev)."""
    low, high = LEAST, 1.0
    for first, third, fifth in POLYNOMIALS:
        x = torch.linspace(low, high, 100_001, dtype=torch.float64)
        errors = first * x + third * x**3 + fifth * x**5 - 1
        worst = float(errors.abs().max())
        signs = errors[errors.abs() > 0.99 * worst].sign()
        assert signs[0] == -1
        assert int((signs[1:] != signs[:-1]).sum()) == 3
        low, high = 1 - worst, ROUNDING * (1 + worst)
    assert worst < NEAR


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_steps_are_those_of_torch_where_both_iterations_converge(decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_cli.training.muon.POLYNOMIALS", (*POLYNOMIALS, *[(1.875, -1.25, 0.375)] * 9))
    torch.manual_seed(2)
    start = [torch.randn(8, 8), torch.randn(6, 12), torch.randn(8, 4)]
    other = torch.randn(5)
    ours, theirs = ([nn.Parameter(matrix.clone()) for matrix in start] for _ in range(2))
    adam = torch.optim.Adam([nn.Parameter(other.clone())], lr=0.01)
    both = ours[1].detach()  # two matrices one above the other
    stacked = [ours[0], nn.Parameter(torch.cat([both, both])), ours[2]]
    optimizer = MuonAndAdam(zip(stacked, [1, 2, 1], strict=True), adam, decay=decay)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    expected = torch.optim.Muon(
        theirs,
        lr=0.01,
        weight_decay=decay,
        adjust_lr_fn="match_rms_adamw",
        ns_coefficients=(1.875, -1.25, 0.375),  # slowly, but to exactly 1, as ours goes here
        ns_steps=20,
    )
    for _ in range(5):
        for mine, reference in zip(stacked, theirs, strict=True):
            reference.grad = torch.randn_like(reference)
            mine.grad = reference.grad.repeat(mine.size(0) // reference.size(0), 1)
        optimizer.step()
        expected.step()  # type: ignore[no-untyped-call]
    for mine, reference in zip(stacked, theirs, strict=True):
        for part in mine.detach().chunk(mine.size(0) // reference.size(0)):
            torch.testing.assert_close(part, reference, rtol=0, atol=2e-4)  # torch's products are in bfloat16


def test_only_matrices_of_the_layers_are_its_own(tiny_config: MakeConfig, tmp_path: Path) -> None:
    model = build_model(tiny_config(tmp_path).model, 30, 30)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    taken = {names[id(parameter)]: parts for parameter, parts in hidden_matrices(model)}
    layers = [
        name for name, p in model.named_parameters() if p.dim() == 2 and name.startswith(("encoder.", "decoder."))
    ]
    assert sorted(taken) == sorted(layers)
    assert {name for name, parts in taken.items() if parts == 2} == {name for name in layers if "key_value" in name}


def test_a_run_continues_as_if_uninterrupted(tiny_config: MakeConfig, tmp_path: Path) -> None:
    config = tiny_config(tmp_path, optimizer="muon", max_steps=8, save_every=4, validate_every=4, clip_norm=None)
    train(config, tmp_path / "whole", quiet=True)
    train(config, tmp_path / "parts", quiet=True, until=4)
    train(config, tmp_path / "parts", quiet=True)
    whole, parts = (
        (tmp_path / name / "step-00000008" / "model.safetensors").read_bytes() for name in ("whole", "parts")
    )
    assert whole == parts
