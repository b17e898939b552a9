"""`auto` takes bf16 only where the device multiplies it itself."""

import pytest
import torch

from transformer_cli.training.hardware import Precision, choose_precision

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
