"""What the torch engine computes in: cast when it is loaded, for searching only."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.decoding.checkpoints import make_checkpoint
from tests.decoding.searching import search_batch
from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig
from transformer_cli.decoding.devices import choose_type
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.loading import TORCH_TYPES, load_engine
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, PAD

SOURCES = [[5, 6], [7], [8, 9, 4]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model")


def load(checkpoint: Path, **wishes: Any) -> tuple[TorchEngine, str]:
    loaded, why = load_engine(checkpoint, "cpu", **wishes)
    return cast(TorchEngine, loaded.engine), why


@pytest.mark.parametrize(
    ("wishes", "dtype", "message"),
    [
        ({"choice": "torch"}, torch.float32, "engine: torch"),
        ({"choice": "torch", "compute_type": "float32"}, torch.float32, "engine: torch"),
        ({"choice": "torch", "compute_type": "bfloat16"}, torch.bfloat16, "engine: torch (bfloat16)"),
        ({"needs": ["sampling"], "compute_type": "float16"}, torch.float16, "engine: torch (sampling, float16)"),
    ],
)
def test_weights_have_the_type_asked_for_and_probabilities_are_float32(
    checkpoint: Path, wishes: dict[str, Any], dtype: torch.dtype, message: str
) -> None:
    engine, why = load(checkpoint, **wishes)
    assert why == message
    assert {parameter.dtype for parameter in engine.model.parameters()} == {dtype}
    with torch.inference_mode():
        model = engine.step_model
        log_probs, _ = model.step(torch.full((3,), BOS), model.start(SOURCES))
    assert log_probs.dtype == torch.float32
    assert log_probs[:, PAD].tolist() == [-torch.inf] * 3
    for options in (SearchOptions(method="greedy"), SearchOptions(beam_size=3)):
        found = search_batch(engine, SOURCES, options)
        forced = engine.score(SOURCES, [group[0].ids for group in found])
        for group, row in zip(found, forced, strict=True):
            total = sum(row) if group[0].ended else sum(row[:-1])
            assert group[0].log_probability == pytest.approx(total, rel=0.05), "sums of rounded terms, not rounded sums"


def test_scores_are_near_those_of_float32(checkpoint: Path) -> None:
    targets = [[5, 6, 7], [8], [4, 9]]
    exact = load(checkpoint, choice="torch")[0].score(SOURCES, targets)
    for name in TORCH_TYPES:
        scores = load(checkpoint, choice="torch", compute_type=name)[0].score(SOURCES, targets)
        for row, expected in zip(scores, exact, strict=True):
            assert row == pytest.approx(expected, rel=0.03)


def test_a_device_has_a_type_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_type(None, torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.inference_mode())
    for supported, expected in ((True, torch.bfloat16), (False, None)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, s=supported: s)
        assert choose_type(None, torch.device("cuda")) == expected
        assert choose_type("float32", torch.device("cuda")) == torch.float32


def test_an_engine_over_a_model_that_is_trained_leaves_it_as_it_is() -> None:
    model = build_model(ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, heads=2, d_ff=8), 12, 12)
    before = [(parameter.data_ptr(), parameter.dtype) for parameter in model.parameters()]
    engine = TorchEngine(model)
    search_batch(engine, SOURCES, SearchOptions(beam_size=2))
    assert [(parameter.data_ptr(), parameter.dtype) for parameter in model.parameters()] == before
