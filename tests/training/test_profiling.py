"""A profile tells where the time went, and changes nothing."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.training.recorder import PROFILED, SHOWN, WAITING, WARM_UP, check_trace
from transformer_cli.training.run import train

MakeConfig = Callable[..., Config]


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
