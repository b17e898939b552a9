"""What is validated is what is saved, and a run with an average goes on exactly."""

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from transformer_cli.build import load_model
from transformer_cli.config import Config, TrainingConfig
from transformer_cli.errors import UserError
from transformer_cli.storage.checkpoint import load_training_state
from transformer_cli.storage.run_folder import WEIGHTS, CheckpointIndex, RunFolder, find_model
from transformer_cli.training.averaging import MovingAverage, steps_to_average
from transformer_cli.training.run import train
from transformer_cli.training.validation import Validation, Validator

MakeConfig = Callable[..., Config]


def change(config: Config, **values: Any) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update=values)})


def files(run: Path, step: int) -> tuple[bytes, bytes]:
    """The model of a step, and all that training goes on with."""
    folder = RunFolder(run).step_folder(step)
    return (folder / WEIGHTS).read_bytes(), (folder / "training.safetensors").read_bytes()


# --- the moving average -------------------------------------------------------------------------------------------


def test_the_average_is_its_recurrence() -> None:
    layer = nn.Linear(3, 2).double()
    average = MovingAverage(layer, 0.9)
    expected = layer.weight.detach().clone()
    for step in range(1, 200):
        with torch.no_grad():
            layer.weight.add_(torch.randn(2, 3))
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * layer.weight.detach()
    raw = layer.weight.detach().clone()
    with average.shown():
        torch.testing.assert_close(layer.weight.detach(), expected, rtol=0, atol=1e-12)
    assert torch.equal(layer.weight, raw)


def test_weights_come_back_after_an_error() -> None:
    layer = nn.Linear(3, 2)
    average = MovingAverage(layer, 0.9)
    with torch.no_grad():
        layer.weight.add_(1.0)
    raw = layer.weight.detach().clone()
    with contextlib.suppress(KeyError), average.shown():
        assert not torch.equal(layer.weight, raw)
        raise KeyError
    assert torch.equal(layer.weight, raw)


def test_without_a_decay_nothing_happens() -> None:
    layer = nn.Linear(3, 2)
    average = MovingAverage(layer, None)
    average.update(1)
    place = layer.weight.data_ptr()
    with average.shown():
        assert layer.weight.data_ptr() == place
    assert average.learned() == {}


def test_a_state_without_the_weights_is_refused() -> None:
    average = MovingAverage(nn.Linear(3, 2), 0.9)
    with pytest.raises(UserError, match=r"moving average \(weight\)"):
        average.restore({})


def test_what_is_validated_is_what_is_saved(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And neither is what training goes on with."""
    seen, real = [], Validator.validate

    def validate(self: Validator) -> Validation | None:
        seen.append({name: tensor.clone() for name, tensor in self.objective.model.state_dict().items()})
        return real(self)

    monkeypatch.setattr(Validator, "validate", validate)
    config = tiny_config(tmp_path, ema_decay=0.99, max_steps=8, validate_every=4, keep_last=3)
    train(config, tmp_path / "run", quiet=True)
    plain = change(config, ema_decay=None)
    train(plain, tmp_path / "plain", quiet=True)
    for step, validated in zip((4, 8), seen, strict=False):
        folder = RunFolder(tmp_path / "run").step_folder(step)
        learned = load_training_state(folder).tensors
        raw = load_model(RunFolder(tmp_path / "plain").step_folder(step)).model.state_dict()
        for name, tensor in load_model(folder).model.state_dict().items():
            assert torch.equal(tensor, validated[name]), name
            if f"weights.{name}" in learned:
                assert torch.equal(learned[f"weights.{name}"], raw[name]), "the average changes no update"
                assert not torch.equal(tensor, raw[name])
        assert any(name.startswith("weights.") for name in learned)


@pytest.mark.medium
def test_a_run_with_an_average_continues_bit_for_bit(tmp_path: Path, tiny_config: MakeConfig) -> None:
    whole = tiny_config(tmp_path, max_steps=12, ema_decay=0.9, accumulation=2, batch_tokens=60, save_every=3)
    train(whole, tmp_path / "whole", quiet=True)
    for max_steps in (5, 12):
        train(change(whole, max_steps=max_steps), tmp_path / "parts", quiet=True)
    assert files(tmp_path / "whole", 12) == files(tmp_path / "parts", 12)


# --- the mean of checkpoints --------------------------------------------------------------------------------------


def test_which_checkpoints_are_averaged() -> None:
    index = CheckpointIndex(steps=[2, 4, 6, 8], best=[6, 2, 4], last=8)
    assert steps_to_average(TrainingConfig(), index) == []
    assert steps_to_average(TrainingConfig(average_last=3), index) == [4, 6, 8]
    assert steps_to_average(TrainingConfig(average_best=2, keep_best=3), index) == [2, 6]
    assert steps_to_average(TrainingConfig(average_best=2, keep_best=3), CheckpointIndex([2], [2], 2)) == []


@pytest.mark.medium
@pytest.mark.parametrize("ema_decay", [None, 0.8])
def test_the_average_of_the_best_is_the_mean_of_their_models(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: Any, ema_decay: float | None
) -> None:
    scores = iter([3.0, 9.0, 1.0, 8.0, 2.0, 99.0])  # of steps 2, 4, … 10, and of the average
    monkeypatch.setattr(Validation, "value", lambda self, metric: next(scores))
    config = tiny_config(tmp_path, max_steps=10, validate_every=2, keep_best=3, average_best=3, ema_decay=ema_decay)
    train(config, tmp_path / "run")
    assert "average of the best 3 checkpoints" in capsys.readouterr().err
    run = RunFolder(tmp_path / "run")
    assert run.index().best == [4, 8, 2]
    assert find_model(run.path).name == "average-00000010"
    loaded = [load_model(run.step_folder(step)).model.state_dict() for step in (2, 4, 8)]
    for name, tensor in load_model(run.path).model.state_dict().items():
        mean = torch.stack([one[name].double() for one in loaded]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value", [9.0, 0.5])
def test_a_run_killed_after_its_average_does_and_says_the_same_again(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: Any, value: float
) -> None:
    scores = iter([1.0, 2.0, 9.0, value])  # of steps 2 and 4, and of the average before and after the kill
    monkeypatch.setattr(Validation, "value", lambda self, metric: next(scores))
    config = tiny_config(tmp_path, max_steps=4, validate_every=2, keep_best=2, average_best=2)
    train(config, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    run.write_index(replace(run.index(), finished=None))
    capsys.readouterr()
    train(config, tmp_path / "run")
    kept = value == 9.0
    assert ("better than every step: kept as the best" if kept else "no better: dropped") in capsys.readouterr().err
    assert find_model(run.path).name == ("average-00000004" if kept else "step-00000004")
    assert (run.path / "average-00000004").exists() == kept
    assert run.index().average_score == (9.0 if kept else None)


def test_weights_that_are_not_finite_are_not_saved_as_an_average(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path, max_steps=8, ema_decay=0.9, save_every=2, validate_every=100)
    update = MovingAverage.update

    def spoil(self: MovingAverage, step: int) -> None:
        if step == 5:
            with torch.no_grad():
                self._weights[0].view(-1)[3] = math.inf
        update(self, step)

    monkeypatch.setattr(MovingAverage, "update", spoil)
    with pytest.raises(UserError, match="diverged"):
        train(config, tmp_path / "run", quiet=True)
    assert RunFolder(tmp_path / "run").index().last == 4


# --- several processes --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_continue_exactly_and_are_one_with_twice_the_accumulation(
    tmp_path: Path, tiny_tree: Callable[..., dict[str, Any]]
) -> None:
    """With a moving average, R-Drop, a frozen part and an average of the best at the end."""
    extras = {"ema_decay": 0.9, "r_drop": 2.0, "freeze": ["encoder"], "average_best": 2, "keep_best": 2}
    tree = tiny_tree(tmp_path, **extras, best_metric="loss", epsilon=1e-4, validate_every=3)
    tree["model"]["dropout"] = 0.0
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))

    def tfm(processes: int, out: str, *options: str) -> str:
        launcher = ["torch.distributed.run", "--nproc-per-node", str(processes), "-m"] if processes > 1 else []
        command = [sys.executable, "-m", *launcher, "transformer_cli", "train", "config.yaml", "--out", out]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--device", "cpu", *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "average of the best 2 checkpoints" in tfm(2, "two")
    tfm(2, "parts", "--set", "training.max_steps=5")
    tfm(2, "parts")
    assert files(tmp_path / "two", 12) == files(tmp_path / "parts", 12)
    tfm(1, "one", "--set", "training.accumulation=2")
    one, two = (load_model(tmp_path / name / "step-00000012").model.state_dict() for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-4)  # float32
