from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from transformer_cli.build import load_model
from transformer_cli.config import Config
from transformer_cli.training import hardware as tuning
from transformer_cli.training.run import train

ZEN_5 = ("AuthenticAMD", 26)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_fast_products_are_as_exact_as_float32_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_processor", lambda: ZEN_5)
    tuning.use_fast_products()
    left, right = torch.randn(300, 700, dtype=torch.float64), torch.randn(700, 200, dtype=torch.float64)
    exact = left @ right
    error = (left.float() @ right.float()).double() - exact
    assert error.abs().max() / exact.abs().max() < 2e-6


def test_a_cpu_that_rounds_to_bfloat16_keeps_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(tuning, "_processor", lambda: ZEN_5)
    monkeypatch.setattr(tuning, "_products_are_exact", lambda: False)
    assert not tuning.use_fast_products()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("processor", "expected"),
    [(ZEN_5, True), (("AuthenticAMD", 25), False), (("GenuineIntel", 26), False), (("", 0), False)],
)
def test_only_where_mkl_is_slow_others_take_its_place(
    processor: tuple[str, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(tuning, "_processor", lambda: processor)
    monkeypatch.setattr(tuning, "_products_are_exact", lambda: True)
    assert tuning.use_fast_products() == expected
    assert torch.get_float32_matmul_precision() == ("medium" if expected else "highest")


def test_linux_tells_vendor_and_family() -> None:
    vendor, family = tuning._processor()
    assert (vendor == "") == (family == 0)
    assert not Path("/proc/cpuinfo").exists() or "vendor_id" not in Path("/proc/cpuinfo").read_text() or vendor


def test_the_trial_product_tells_bfloat16_from_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning._products_are_exact()
    product = torch.Tensor.__matmul__

    def rough(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype == torch.float32:
            return product(left.bfloat16(), right.bfloat16()).float()
        return product(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rough)
    assert not tuning._products_are_exact()


def test_products_are_as_before_when_training_is_over() -> None:
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(KeyError), tuning.tuned_process(torch.device("cpu")):
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_gpu_run_leaves_float32_products_alone() -> None:
    torch.set_float32_matmul_precision("highest")
    tuning.tune_process(torch.device("cuda"))
    assert torch.get_float32_matmul_precision() == "highest"


VARIANTS: list[dict[str, Any]] = [
    {},
    {"training": {"ema_decay": 0.5}},
    {"model": {"generation": "mask_predict"}},
    {"model": {"generation": "one_shot"}},
    {"model": {"generator": "pointer"}},
    {"model": {"value_dim": 6, "positions": "learned"}},
    {"training": {"guided_attention": {"prior": "diagonal"}}},
    {"training": {"scheduled_sampling": {"schedule": "linear", "steps": 1}}},
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch hides its own, but not from pytest
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_compiled_layers_train_as_written_ones_with_few_graphs(
    tmp_path: Path, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, variant: dict[str, Any]
) -> None:
    """Over batches of many shapes, with validations between them. The backend is one that needs no C++ compiler."""
    backend = partial(tuning.compile_layers, backend="aot_eager")
    monkeypatch.setattr("transformer_cli.training.run.compile_layers", backend)
    model = {"dropout": 0.0, **variant.get("model", {})}
    training = {"max_steps": 40, "validate_every": 10, "batch_tokens": 60, "pad_to": 8, **variant.get("training", {})}
    values = tiny_config(tmp_path, **training).model_dump()
    config = Config.model_validate(values | {"model": values["model"] | model})
    train(config, tmp_path / "written", quiet=True)
    torch._dynamo.reset()
    counters.clear()
    compiled = config.model_copy(update={"training": config.training.model_copy(update={"compile": True})})
    train(compiled, tmp_path / "compiled", quiet=True)
    assert 2 <= counters["stats"]["unique_graphs"] <= 6, counters["stats"]
    assert not counters["graph_break"]
    written, made = (
        load_model(tmp_path / name / "step-00000040").model.state_dict() for name in ("written", "compiled")
    )
    assert list(written) == list(made)
    for name, tensor in written.items():
        torch.testing.assert_close(made[name], tensor, rtol=1e-3, atol=1e-4)
