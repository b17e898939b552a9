"""What the benchmarks' figures rest on: the arithmetic they count, the batches they hand on, the page they write."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from transformer_cli.build import build_model
from transformer_cli.data.batch import Batch

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAIRS = [[([5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9])], [([11, 12], [4])]]

Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports a module of the benchmarks by its name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def small_shape(load: Load) -> Any:
    return load("shape").Shape(layers=2, d_model=16, d_ff=24, heads=2, vocabulary=40)


def test_the_arithmetic_is_what_torch_counts(load: Load) -> None:
    """A sentence alone has no padding; of causal attention torch counts the half that nobody needs too."""
    shape, source, target = small_shape(load), 5, 7
    model = build_model(load("contenders.tfm").model_config(shape), shape.vocabulary, shape.vocabulary)
    batch = Batch.from_ids([([4] * (source - 1), [4] * (target - 1))])
    with FlopCounterMode(display=False) as counter:
        output = model(batch.source, batch.source_mask, batch.target_input)
        model.generator(output, batch.source).sum().backward()
    future = shape.layers * (4 * shape.d_model * target**2 - 2 * shape.d_model * target * (target + 1))
    needed = load("shape").training_flops(shape, [(source, target)])
    assert counter.get_total_flops() == needed + 3 * future


def test_the_plain_model_is_of_the_same_size(load: Load) -> None:
    shape = small_shape(load)
    ours = build_model(load("contenders.tfm").model_config(shape), shape.vocabulary, shape.vocabulary)
    plain = load("contenders.plain").PlainTransformer(shape)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters())


def test_the_plain_model_loses_nothing_to_padding(load: Load) -> None:
    """Its loss over a batch is the mean of its sentences' losses, weighted by their tokens."""
    pad, shape = load("batches").pad, small_shape(load)
    torch.manual_seed(1)
    model = load("contenders.plain").PlainTransformer(shape).eval()
    whole, *alone = pad(PAIRS[0]), *(pad([pair]) for pair in PAIRS[0])
    expected = sum(model(batch).item() * batch.target_tokens for batch in alone) / whole.target_tokens
    assert model(whole).item() == pytest.approx(expected, abs=1e-5)


def test_batches_come_back_as_they_were_written(load: Load, tmp_path: Path) -> None:
    batches = load("batches")
    batches.write_batches(tmp_path / "batches.npz", PAIRS)
    assert batches.read_batches(tmp_path / "batches.npz") == PAIRS


def test_padding_is_that_of_tfm(load: Load) -> None:
    padded, ours = load("batches").pad(PAIRS[0]), Batch.from_ids(PAIRS[0])
    for name in ("source", "target_input", "target_output", "target_tokens"):
        torch.testing.assert_close(getattr(padded, name), getattr(ours, name))


def test_generated_sentences_are_as_long_as_multi30ks(load: Load) -> None:
    pairs = load("batches").generate_sentences(4000, 100)
    means = [sum(len(pair[side]) + 1 for pair in pairs) / len(pairs) for side in (0, 1)]
    assert means == pytest.approx([15.9, 15.3], abs=0.3)


@pytest.mark.parametrize("name", ["attention", "training", "loss_memory", "loading"])
def test_every_program_finds_its_section_of_the_page(load: Load, name: str) -> None:
    before = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    after = load("page").replace_section(before, name, ["a", "b"])
    removed, added = (set(text.splitlines()) for text in (before, after))
    assert added - removed == {"a", "b"}
    assert load("page").replace_section(after, name, ["a", "b"]) == after


def test_a_contender_that_cannot_run_says_why(load: Load, tmp_path: Path) -> None:
    contender = load("training").Contender("x", "X", "no_such_program", "fp32")
    load("batches").write_batches(tmp_path / "batches.npz", PAIRS)
    contender.start(os.fspath(ROOT / "no-python"), 1, tmp_path / "batches.npz", small_shape(load))
    assert "no-python" in contender.failure
    contender.step()
    contender.end()
    assert contender.seconds == []


@pytest.mark.slow
@pytest.mark.parametrize(("module", "fails"), [("tfm", False), ("plain", False), ("matmul", False), ("nothing", True)])
def test_a_contender_updates_when_told(load: Load, tmp_path: Path, module: str, fails: bool) -> None:
    training = load("training")
    contender = training.Contender("x", "X", module, "fp32")
    load("batches").write_batches(tmp_path / "batches.npz", PAIRS)
    contender.start(training.sys.executable, 1, tmp_path / "batches.npz", small_shape(load))
    for _ in range(3):
        contender.step()
    contender.end()
    if fails:
        assert contender.failure == "ModuleNotFoundError: No module named 'contenders.nothing'"
        return
    assert contender.failure is None
    assert min(contender.seconds) > 0
    assert len(contender.values) == 3
    assert contender.memory["peak"] > contender.memory["working"] > 0
