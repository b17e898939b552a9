"""What the benchmarks' figures rest on: the arithmetic they count, the batches they hand on, the page they write."""

import dataclasses
import importlib
import json
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.training.conftest import _tree
from transformer_cli.build import build_model
from transformer_cli.config import Config, dump_config
from transformer_cli.data.batch import Batch
from transformer_cli.training.run import train

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


@pytest.mark.medium
def test_the_arithmetic_is_what_torch_counts(load: Load) -> None:
    """A sentence alone has no padding; of causal attention torch counts the half that nobody needs too."""
    shape, source, target = small_shape(load), 5, 7
    model = build_model(load("contenders.train_tfm").model_config(shape), shape.vocabulary, shape.vocabulary)
    batch = Batch.from_ids([([4] * (source - 1), [4] * (target - 1))])
    with FlopCounterMode(display=False) as counter:
        output = model(batch.source, batch.source_mask, batch.target_input)
        model.generator(output, batch.source).sum().backward()
    future = shape.layers * (4 * shape.d_model * target**2 - 2 * shape.d_model * target * (target + 1))
    needed = load("shape").training_flops(shape, [(source, target)])
    assert counter.get_total_flops() == needed + 3 * future


def test_the_plain_model_is_of_the_same_size(load: Load) -> None:
    shape = small_shape(load)
    ours = build_model(load("contenders.train_tfm").model_config(shape), shape.vocabulary, shape.vocabulary)
    plain = load("contenders.train_plain").PlainTransformer(shape)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in ours.parameters())


def test_the_plain_model_loses_nothing_to_padding(load: Load) -> None:
    """Its loss over a batch is the mean of its sentences' losses, weighted by their tokens."""
    pad, shape = load("batches").pad, small_shape(load)
    torch.manual_seed(1)
    model = load("contenders.train_plain").PlainTransformer(shape).eval()
    whole, *alone = pad(PAIRS[0]), *(pad([pair]) for pair in PAIRS[0])
    expected = sum(model(batch).item() * batch.target_tokens for batch in alone) / whole.target_tokens
    assert model(whole).item() == pytest.approx(expected, abs=1e-5)


def test_padding_is_that_of_tfm(load: Load) -> None:
    padded, ours = load("batches").pad(PAIRS[0]), Batch.from_ids(PAIRS[0])
    for name in ("source", "target_input", "target_output", "target_tokens"):
        torch.testing.assert_close(getattr(padded, name), getattr(ours, name))


def test_generated_sentences_are_as_long_as_multi30ks(load: Load) -> None:
    pairs = load("batches").generate_sentences(4000, 100)
    means = [sum(len(pair[side]) + 1 for pair in pairs) / len(pairs) for side in (0, 1)]
    assert means == pytest.approx([15.9, 15.3], abs=0.3)


@pytest.mark.parametrize("name", ["attention", "training", "decoding", "loss_memory", "loading"])
def test_every_program_finds_its_section_of_the_page(load: Load, name: str) -> None:
    before = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    after = load("page").replace_section(before, f"benchmarks/{name}.py", ["a", "b"])
    removed, added = (set(text.splitlines()) for text in (before, after))
    assert added - removed == {"a", "b"}
    assert load("page").replace_section(after, f"benchmarks/{name}.py", ["a", "b"]) == after


@pytest.fixture
def work(load: Load, tmp_path: Path) -> Path:
    """The file of what contenders train on."""
    path = tmp_path / "work.json"
    path.write_text(json.dumps({"batches": PAIRS, "shape": dataclasses.asdict(small_shape(load))}))
    return path


def test_a_contender_that_cannot_run_says_why(load: Load, work: Path) -> None:
    contender = load("contender").Contender("x", "X", "no_such_program")
    contender.start(work, 1, os.fspath(ROOT / "no-python"))
    assert "no-python" in contender.failure
    contender.turn()
    contender.end()
    assert contender.turns == {}
    assert load("contender").ratio(contender, contender) == "–"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "fails"), [("train_tfm", False), ("train_plain", False), ("matmul", False), ("nothing", True)]
)
def test_a_contender_takes_its_turns(load: Load, work: Path, module: str, fails: bool) -> None:
    contender = load("contender").Contender("x", "X", module, {"precision": "fp32"})
    contender.start(work, 1)
    for _ in range(3):
        contender.turn()
    contender.end()
    if fails:
        assert contender.failure == "ModuleNotFoundError: No module named 'contenders.nothing'"
        return
    assert contender.failure is None
    assert min(contender.seconds()) > 0
    assert [turn["value"] > 0 for turn in contender.turns[""]] == [True] * 3
    assert contender.memory["peak"] > contender.memory["working"] > 0


def test_ratios_are_taken_round_by_round(load: Load) -> None:
    """A machine that slows down for a round slows both."""
    fast, slow = (
        load("contender").Contender(
            "", "", "", failure=None, turns={"": [{"seconds": times * seconds} for seconds in (1.0, 9.0, 2.0)]}
        )
        for times in (1, 2)
    )
    assert load("contender").ratio(fast, slow) == "2.00"
    assert load("contender").ratio(fast, None) == "–"


def test_turns_are_taken_in_an_order_that_moves_on(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    contender, taken = load("contender"), list[str]()
    monkeypatch.setattr(contender.Contender, "turn", lambda self, task, **_: taken.append(self.key))
    for number in range(3):
        contender.take_turns([contender.Contender(key, "", "") for key in "abc"], number)
    assert "".join(taken) == "abcbcacab"


@pytest.mark.parametrize("native", [True, False])
def test_bf16_is_left_out_where_the_cpu_has_none(
    load: Load, native: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = load("training")
    monkeypatch.setattr(training, "choose_precision", lambda name, device: "bf16" if native else "fp32")
    keys = [entry.key for entry in training.contenders([])]
    assert ("peak-bf16" in keys) == ("torch-bf16" in keys) == native
    assert {"peak-fp32", "tfm", "tfm-auto", "torch", "marian", "joeynmt"} <= set(keys)
    said = capsys.readouterr().err
    assert said == "" if native else said.count("\n") == 1 and "bf16" in said
    named = [entry.key for entry in training.contenders(["torch-bf16"])]
    assert named == ["torch-bf16", "peak-fp32", *["peak-bf16"] * native], "what is asked for by name is run"


def test_updates_are_those_of_a_training(load: Load, tmp_path: Path) -> None:
    config = Config.model_validate(_tree(tmp_path, max_steps=4, log_every=1))
    train(config, tmp_path / "run", quiet=True)
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (tmp_path / "config.yaml").write_text(dump_config(config))
    updates = load("updates").updates(str(tmp_path / "config.yaml"), [], tmp_path / "other")
    losses = [update.loss for update in islice(updates, 4)]
    assert losses == pytest.approx([event["loss"] for event in logged if "loss" in event], rel=1e-4)


def test_a_goal_is_reached_at_the_first_validation_with_it(load: Load, tmp_path: Path) -> None:
    events = [
        {"step": 50, "target_tokens": 1000, "target_tokens_per_second": 500.0},
        {"step": 50, "valid_bleu": 10.0},
        {"step": 100, "target_tokens": 3000, "target_tokens_per_second": 1000.0},
        {"step": 100, "valid_bleu": 30.0},
        {"step": 150, "target_tokens": 1000, "target_tokens_per_second": 1000.0},
        {"step": 150, "valid_bleu": 29.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    timing = load("time_to_quality")
    curve = timing.read_curve(tmp_path)
    point = timing.reached(curve, 29)
    assert (point.updates, point.tokens, point.seconds, point.bleu) == (100, 4000, 5.0, 30.0)
    assert timing.reached(curve, 30.5) is None
    later = [dataclasses.replace(point, updates=200, tokens=8000, seconds=7.0)]
    rows = list(timing.table({"a": [curve, later, curve[:1]]}, [29]))
    assert rows[2:] == [
        "| a | 29 | 2 of 3 | 150 (100–200) | 0.01 (0.00–0.01) | 6 (5–7) |",
        "| a | best: 23.33 (10.00–30.00) | | | | |",
    ]


def test_validations_between_two_lines_of_the_log_are_refused(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["time_to_quality.py", str(tmp_path / "work"), "a=a.yaml", "--every", "445"])
    with pytest.raises(SystemExit) as stopped:
        load("time_to_quality").main()
    assert stopped.value.code == 2
    assert "multiple of 50" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
