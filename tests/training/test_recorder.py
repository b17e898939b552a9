"""What a run shows and records; a profile says where the time went, and changes nothing."""

import gzip
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.training.recorder import PROFILED, SHOWN, WAITING, WARM_UP, Recorder, check_trace
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
    assert run.metrics.path.read_bytes().count(b"\n") == 4


def test_what_a_run_is_trained_on_is_stored_where_it_changes(tmp_path: Path, tiny_config: MakeConfig) -> None:
    run = RunFolder(tmp_path / "run")
    assert run.metrics.hardware() == []
    train(tiny_config(tmp_path, max_steps=2), run.path, quiet=True)
    train(tiny_config(tmp_path, max_steps=3), run.path, quiet=True)
    (here,) = run.metrics.hardware()
    assert re.fullmatch(r"cpu \((.*, )?\d+ threads?\), fp32", here)
    config = tiny_config(tmp_path).training
    for place in ("a GPU", "a GPU"):
        recorder = Recorder(run, config, 3, None, quiet=True)
        recorder.start(place)
        recorder.close()
    assert run.metrics.hardware() == [here, "a GPU"]
    assert json.loads(run.metrics.path.read_text().splitlines()[-1]) == {"step": 3, "hardware": "a GPU"}
    other = Recorder(run, config, 3, None, quiet=True, is_main=False)
    other.start("another process")
    other.close()
    assert run.metrics.hardware() == [here, "a GPU"]


# --- profiling --------------------------------------------------------------------------------------------------------


def test_a_profile_is_written_told_and_changes_nothing(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    updates = WARM_UP + PROFILED  # and no more
    config = tiny_config(tmp_path, max_steps=updates, validate_every=100)
    trace = tmp_path / "trace.json.gz"
    train(config, tmp_path / "profiled", profile=trace)
    said = capsys.readouterr().err.splitlines()
    train(config, tmp_path / "plain", quiet=True)
    models = [
        (RunFolder(tmp_path / name).step_folder(updates) / WEIGHTS).read_bytes() for name in ("profiled", "plain")
    ]
    assert models[0] == models[1]

    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = [event.get("name") for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
    assert names.count(WAITING) == PROFILED, "each update waits once for its batches"
    assert "aten::mm" in names or "aten::addmm" in names

    (first,) = [number for number, line in enumerate(said) if line.startswith("profile ")]
    assert f"{PROFILED} updates in" in said[first]
    assert "waiting for data; trace in" in said[first]
    rows = [line.split() for line in said[first + 2 : first + 2 + SHOWN]]
    shares = [float(row[0].rstrip("%")) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert 50 < sum(shares) <= 100.1
    assert all(row[3] != WAITING for row in rows)
    assert any(f"step {updates}" in line for line in said[first:]), "training goes on"


def test_a_run_too_short_for_a_profile_says_so(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    for steps in (WARM_UP - 2, WARM_UP + 2):
        config = tiny_config(tmp_path, max_steps=steps, validate_every=100)
        train(config, tmp_path / "run", profile=tmp_path / "trace.json")
        assert "profile      none: it takes 13 updates, and training ended before" in capsys.readouterr().err
    assert not (tmp_path / "trace.json").exists()


def test_where_no_trace_can_be_written_is_refused_at_once(tmp_path: Path, tiny_config: MakeConfig) -> None:
    check_trace(tmp_path / "trace.json")
    check_trace(Path("trace.json.gz"))
    (tmp_path / "folder.json").mkdir()
    for path, said in (("trace.txt", r"\.json"), ("nowhere/trace.json", "is not a folder"), ("folder.json", "is one")):
        with pytest.raises(UserError, match=rf"--profile .*{said}"):
            train(tiny_config(tmp_path), tmp_path / "run", profile=tmp_path / path)
    assert not (tmp_path / "run").exists()
