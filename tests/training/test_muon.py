"""Muon's updates have singular values near 1, are torch's own, and leave all but hidden matrices to Adam."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from transformer_cli.build import build_model
from transformer_cli.config import Config
from transformer_cli.training.muon import MuonAndAdam, hidden_matrices, orthogonal
from transformer_cli.training.run import train

MakeConfig = Callable[..., Config]


@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (48, 16)])
def test_an_update_keeps_singular_vectors_and_makes_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    for matrix, found in zip(matrices, orthogonal(matrices, torch.float64), strict=True):
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        values = left.T @ found @ right.T
        assert values.diagonal().min() > 0.3  # of the least, which begin near 0
        assert values.diagonal().max() < 1.3
        assert values.diagonal().median() > 0.65
        torch.testing.assert_close(values, torch.diag(values.diagonal()), rtol=0, atol=1e-9)


def test_bfloat16_is_enough() -> None:
    torch.manual_seed(1)
    matrices = torch.randn(3, 16, 48)
    for matrix, found in zip(matrices, orthogonal(matrices, torch.bfloat16), strict=True):
        assert found.dtype == torch.float32
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        values = left.T @ found @ right.T
        assert 0.3 < values.diagonal().min() < values.diagonal().max() < 1.3
        torch.testing.assert_close(values, torch.diag(values.diagonal()), rtol=0, atol=0.05)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_steps_are_those_of_torch(decay: float) -> None:
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
    expected = torch.optim.Muon(theirs, lr=0.01, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        for mine, reference in zip(stacked, theirs, strict=True):
            reference.grad = torch.randn_like(reference)
            mine.grad = reference.grad.repeat(mine.size(0) // reference.size(0), 1)
        optimizer.step()
        expected.step()  # type: ignore[no-untyped-call]
    for mine, reference in zip(stacked, theirs, strict=True):
        for part in mine.detach().chunk(mine.size(0) // reference.size(0)):
            torch.testing.assert_close(part, reference, rtol=0, atol=2e-3)  # torch's products are in bfloat16


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
