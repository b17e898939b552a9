"""`tfm tune`, with real trials: they continue as runs that never paused, also after interruptions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import pretended_tfm
from transformer_cli.jobs import halving
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder

TRAINING = (
    "{batch_tokens: 256, max_steps: 18, warmup_steps: 2, validate_every: 2, save_every: 2, validation_sentences: 4, "
    "schedule: cosine, peak_learning_rate: 0.01, best_metric: chrf}"
)
CHANGES = ["--set", f"training={TRAINING}"]
SEARCH = ["--vary", "model.dropout=0.0,0.1,0.3", "--budget", "30steps"]  # 3 to step 2, 1 to step 6, 1 to step 18


def weights(run: Path, step: int) -> bytes:
    return (RunFolder(run).step_folder(step) / WEIGHTS).read_bytes()


@pytest.mark.slow
def test_trials_continue_as_if_they_had_never_paused_whatever_interrupts_them(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while the best trial trains, and killed after that: the end is that of a plain `tfm train`."""
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    arguments = ["tune", str(trial.config), *CHANGES, *SEARCH, "--out", "tuned"]
    program = [sys.executable, "-m", "transformer_cli", *arguments]
    first = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    lines = iter(first.stderr.readline, "")
    assert sum(1 for _ in zip(lines, range(4), strict=False)) == 4  # vary, plan, two trials
    time.sleep(1)  # the third trains
    first.send_signal(signal.SIGINT)
    assert "the same command continues" in first.communicate()[1]
    assert first.returncode == 130
    second = subprocess.Popen(program, stderr=subprocess.PIPE, env={**os.environ, "TFM_FAILPOINT": "tune-recorded@2"})
    second.communicate()
    assert second.returncode == -signal.SIGKILL
    found = tfm(*arguments, "--json", "--quiet")
    assert found.code == 0, found.err
    answer = json.loads(found.out)
    assert [sorted(map(int, one["scores"])) for one in answer["trials"]] == [[2, 6, 18], [2], [2]]
    best = answer["trials"][0]
    plain = ["--set", f"model.dropout={best['values']['model.dropout']}", "--out", "plain", "--quiet"]
    assert tfm("train", trial.config, *CHANGES, *plain).code == 0
    folder = tmp_path / "tuned" / "trials" / f"{best['trial']:03}"
    assert weights(folder, 18) == weights(tmp_path / "plain", 18)
    assert tfm("train", "tuned/best.yaml", "--out", "again", "--quiet").code == 0
    assert weights(tmp_path / "again", 18) == weights(folder, 18)
    table = tfm(*arguments)
    assert table.out.splitlines()[0].split() == ["trial", "model.dropout", "steps", "chrf", "state"]
    assert "was not measured" in table.err.splitlines()[-1]
    assert f"best         trial {best['trial']} (model.dropout=" in table.out


def test_a_table_and_what_follows_from_it(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trials that only pretend to train."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(halving, "TFM", [sys.executable, "-IS", pretended_tfm.__file__])
    changes = ["--set", "training={max_steps: 90, validate_every: 10, warmup_steps: 1}"]
    search = ["tune", trial.config, *changes, "--vary", "model.dropout=0.1,0.2,0.9", "--budget", "130steps", "--quiet"]
    found = tfm(*search)
    assert found.code == 0, found.err
    rows = [line.split() for line in found.out.splitlines()]
    assert rows[0] == ["trial", "model.dropout", "steps", "bleu", "state"]
    assert [row[1:] for row in rows[1:4]] == [
        ["0.2", "90", "31.09", "best"],
        ["0.1", "10", "9.33", "stopped"],
        ["0.9", "0", "-", "failed"],
    ]
    assert rows[4][-1] == "checkpoints/config-tune/best.yaml"
    assert found.err.count("\n") == 1
    assert found.err.startswith("warning: trial ")
    assert "was not measured" in found.err
    assert len(json.loads(tfm(*search, "--json").out)["trials"]) == 3


def test_input_is_refused_before_anything_is_written(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, message in [
        ([*SEARCH, "--budget", "2steps"], "too small for one trial"),
        ([*SEARCH, "--budget", "soon"], "write it as 20000steps"),
        (["--budget", "30steps"], "nothing varies"),
        ([*SEARCH, "--vary", "training.seed=1,2"], "cannot vary"),
        ([*SEARCH, "--vary", "model.heads=2,2000"], "model.heads"),
        ([*SEARCH, "--set", "data.train.target=no-such"], "no-such"),
        ([*SEARCH, "--set", "data.source_language=xx"], "xx"),
        ([*SEARCH, "--set", "training.max_steps=null", "--set", "training.max_epochs=2"], "max_steps"),
        ([*SEARCH, "--storage", "nonsense"], "cannot be opened"),
    ]:
        assert message in tfm("tune", trial.config, *words).refused()
    assert not (tmp_path / "checkpoints").exists()
