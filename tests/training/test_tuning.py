from collections.abc import Iterator

import pytest
import torch

from transformer_cli.training import tuning


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_fast_products_are_as_exact_as_float32_is() -> None:
    tuning.use_fast_products()
    left, right = torch.randn(300, 700, dtype=torch.float64), torch.randn(700, 200, dtype=torch.float64)
    exact = left @ right
    error = (left.float() @ right.float()).double() - exact
    assert error.abs().max() / exact.abs().max() < 2e-6


def test_a_cpu_that_rounds_to_bfloat16_keeps_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(tuning, "_products_are_exact", lambda: False)
    assert not tuning.use_fast_products()
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_cpu_with_amx_keeps_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert not tuning.use_fast_products()
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_trial_product_tells_bfloat16_from_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning._products_are_exact()
    product = torch.Tensor.__matmul__

    def rough(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype == torch.float32:
            return product(left.bfloat16(), right.bfloat16()).float()
        return product(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rough)
    assert not tuning._products_are_exact()


def test_a_gpu_run_leaves_float32_products_alone() -> None:
    torch.set_float32_matmul_precision("highest")
    tuning.tune_process(torch.device("cuda"))
    assert torch.get_float32_matmul_precision() == "highest"
