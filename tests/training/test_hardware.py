"""Precision is what the device is fastest in; what pays on a processor changes no result."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from transformer_cli.build import build_model, load_model
from transformer_cli.config import Config, ModelConfig
from transformer_cli.decoding import devices
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.training import hardware
from transformer_cli.training.hardware import Precision, choose_precision
from transformer_cli.training.run import train
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import NonAutoregressiveTransformer

# --- precision --------------------------------------------------------------------------------------------------------


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True}, "bf16"), ({"avx512_f": True}, "fp32"), ({}, "fp32")],
)
def test_auto_asks_the_processor(capabilities: dict[str, bool], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert choose_precision("auto", CPU) == expected
    assert Precision("auto", CPU).name == expected


@pytest.mark.parametrize("native", [True, False])
def test_auto_asks_the_gpu_and_does_not_take_emulation(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert choose_precision("auto", torch.device("cuda")) == ("bf16" if native else "fp32")


def test_auto_is_careful_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # an older torch
    assert choose_precision("auto", CPU) == "fp32"
    assert choose_precision("auto", torch.device("mps")) == "fp32"


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_named_precision_is_kept(name: str) -> None:
    assert choose_precision(name, CPU) == name


# --- what pays --------------------------------------------------------------------------------------------------------


ZEN_5 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 68\n"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def on_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Call it with what /proc/cpuinfo says; None: there is no such file."""
    monkeypatch.setattr(devices, "CPUINFO", tmp_path / "cpuinfo")
    torch.set_float32_matmul_precision("highest")

    def put(content: str | None) -> None:
        if content is not None:
            (tmp_path / "cpuinfo").write_text(content)

    return put


def multiply_in(number: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let float32 matrices be multiplied as ones of another type."""
    product = torch.Tensor.__matmul__

    def converted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype == torch.float32:
            return product(left.to(number), right.to(number)).float()
        return product(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", converted)


def test_fast_products_are_as_exact_as_float32_is(on_processor: Callable[[str | None], None]) -> None:
    on_processor(ZEN_5)
    hardware.use_fast_products()
    left, right = torch.randn(300, 700, dtype=torch.float64), torch.randn(700, 200, dtype=torch.float64)
    exact = left @ right
    error = (left.float() @ right.float()).double() - exact
    assert error.abs().max() / exact.abs().max() < 2e-6


def test_a_cpu_that_rounds_to_bfloat16_keeps_its_products(
    on_processor: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor(ZEN_5)
    multiply_in(torch.bfloat16, monkeypatch)
    assert not hardware.use_fast_products()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (ZEN_5, True),
        (ZEN_5.replace(": 26", ": 25"), False),
        (ZEN_5.replace("AuthenticAMD", "GenuineIntel"), False),
        ("Processor : ARMv8", False),  # Linux on ARM names no vendor
        ("", False),
        (None, False),  # macOS has no such file
    ],
)
def test_only_where_mkl_is_slow_others_take_its_place(
    processor: str | None,
    expected: bool,
    on_processor: Callable[[str | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_processor(processor)
    multiply_in(torch.float64, monkeypatch)  # exact whatever machine this is
    assert hardware.use_fast_products() == expected
    assert torch.get_float32_matmul_precision() == ("medium" if expected else "highest")


def test_without_glibc_the_process_is_tuned_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not hardware.keep_large_buffers()
    hardware.tune_process(CPU)


def test_products_are_as_before_when_training_is_over() -> None:
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(KeyError), hardware.tuned_process(torch.device("cpu")):
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.fixture
def cudnn() -> Iterator[None]:
    """Whether attention may take cuDNN's kernel, as it was, afterwards; torch keeps that without a GPU too."""
    yield
    torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.usefixtures("cudnn")
def test_a_gpu_run_leaves_float32_products_alone() -> None:
    torch.set_float32_matmul_precision("highest")
    hardware.tune_process(torch.device("cuda"))
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.usefixtures("cudnn")
def test_training_and_both_engines_keep_a_gpu_from_cudnns_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, _: self)
    small = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "heads": 2, "d_ff": 8}
    whole, parallel = (
        build_model(ModelConfig.model_validate({**small, "generation": generation}), 9, 9)
        for generation in ("autoregressive", "mask_predict")
    )
    for device, allowed in (("cpu", True), ("cuda", False)):
        for use in (
            lambda on: hardware.tune_process(torch.device(on)),
            lambda on: TorchEngine(whole, on),
            lambda on: NonAutoregressiveEngine(cast(NonAutoregressiveTransformer, parallel), on),
        ):
            torch.backends.cuda.enable_cudnn_sdp(True)
            use(device)
            assert torch.backends.cuda.cudnn_sdp_enabled() == allowed  # type: ignore[no-untyped-call]
            # the CPU's kernel of attention is behind the same word
            assert torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]


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
    backend = partial(hardware.compile_layers, backend="aot_eager")
    monkeypatch.setattr("transformer_cli.training.run.compile_layers", backend)
    model = {"dropout": 0.0, **variant.get("model", {})}
    training = {"max_steps": 40, "validate_every": 10, "batch_tokens": 60, "pad_to": 8, **variant.get("training", {})}
    values = tiny_config(tmp_path, **training).model_dump()
    config = Config.model_validate(values | {"model": values["model"] | model})
    train(config, tmp_path / "written", quiet=True)
    from torch._dynamo.utils import counters  # which imports the compiler: seconds

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
