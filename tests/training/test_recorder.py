import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.recorder import Recorder
from transformer_cli.training.run import train

MakeConfig = Callable[..., Config]


def test_tensorboard_gets_every_figure(tmp_path: Path, tiny_config: MakeConfig) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny_config(tmp_path, max_steps=4, validate_every=2, tensorboard=True), tmp_path / "run", quiet=True)
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert {"loss", "learning_rate", "valid_bleu", "target_tokens_per_second"} <= set(board.Tags()["scalars"])
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3, 4]
    assert [event.step for event in board.Scalars("valid_loss")] == [2, 4]


def test_tensorboard_that_is_missing_is_named(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"transformer-cli\[tensorboard\]"):
        train(tiny_config(tmp_path, tensorboard=True), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_terminal_gets_a_bar(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    train(tiny_config(tmp_path, max_steps=3), tmp_path / "run")
    said = capsys.readouterr().err
    assert "3/3" in said, "the bar counts steps to the end"
    assert "target tokens/s" in said
    assert "step 2/3" not in said, "the bar stands for the log lines"


def test_lines_come_only_every_log_every_steps(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    train(tiny_config(tmp_path, max_steps=5, log_every=2), tmp_path / "run")
    said = capsys.readouterr().err
    assert [f"step {step}/5  loss" in said for step in range(1, 6)] == [False, True, False, True, False]


def test_a_quiet_recorder_still_stores(tmp_path: Path, tiny_config: MakeConfig) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    recorder = Recorder(run, tiny_config(tmp_path).training, 0, None, quiet=True)
    recorder.say("nothing")
    recorder.close()
    train(tiny_config(tmp_path, max_steps=2), run.path, quiet=True)
    assert run.metrics.path.read_bytes().count(b"\n") == 3
