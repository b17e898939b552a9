import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from transformer_cli import Translator
from transformer_cli.checkpoint import load_model
from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.run_folder import WEIGHTS, RunFolder, find_model
from transformer_cli.training import run as run_module
from transformer_cli.training.run import TrainingResult, train

MakeConfig = Callable[..., Config]
MakeTree = Callable[..., dict[str, Any]]


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path, step: int) -> bytes:
    return (RunFolder(run).step_folder(step) / WEIGHTS).read_bytes()


def test_a_run_leaves_what_it_promises(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    run = tmp_path / "run"
    result = train(tiny_config(tmp_path, validate_every=3, save_every=4, keep_last=2), run)
    assert isinstance(result, TrainingResult)
    assert (result.step, result.finished) == (12, "max_steps = 12 reached")
    index = RunFolder(run).index()
    assert index.last == 12
    assert index.finished == result.finished
    assert index.best == [result.best_step]
    assert set(index.steps) == {8, 12, *index.best} or set(index.steps) == {9, 12, *index.best}
    assert sorted(path.name for path in run.glob("step-*")) == [f"step-{step:08d}" for step in index.steps]
    updates = [event for event in events(run) if "loss" in event]
    validations = [event for event in events(run) if "valid_bleu" in event]
    assert [event["step"] for event in updates] == list(range(1, 13))
    assert [event["step"] for event in validations] == [3, 6, 9, 12]
    assert all(event["target_tokens_per_second"] > 0 and event["learning_rate"] > 0 for event in updates)
    best = max(validations, key=lambda event: event["valid_bleu"])
    assert math.isclose(best["valid_bleu"], result.best_value or 0.0)
    assert find_model(run) == RunFolder(run).step_folder(index.best[0])
    captured = capsys.readouterr()
    assert captured.out == "", "everything for people goes to stderr"
    for said in ("200 pairs", "parameters", "padding", "validation: loss", "finished", str(run)):
        assert said in captured.err


def test_quiet_says_nothing(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    train(tiny_config(tmp_path, max_steps=2), tmp_path / "run", quiet=True)
    assert capsys.readouterr() == ("", "")


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path, tiny_config: MakeConfig) -> None:
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        train(tiny_config(tmp_path, max_steps=3, seed=seed), tmp_path / name, quiet=True)
    assert weights(tmp_path / "one", 3) == weights(tmp_path / "two", 3)
    assert weights(tmp_path / "one", 3) != weights(tmp_path / "three", 3)


def test_stopping_and_going_on_equals_never_stopping(tmp_path: Path, tiny_config: MakeConfig) -> None:
    """max_steps may be raised: 7 steps, then 5 more, cut in the middle of an epoch and of an accumulation's worth."""
    whole = tiny_config(tmp_path, max_steps=12, accumulation=2, batch_tokens=60)
    train(whole, tmp_path / "whole", quiet=True)
    for max_steps in (7, 12):
        config = whole.model_copy(update={"training": whole.training.model_copy(update={"max_steps": max_steps})})
        train(config, tmp_path / "parts", quiet=True)
    assert weights(tmp_path / "whole", 12) == weights(tmp_path / "parts", 12)


def slow_tree(make: MakeTree, folder: Path, workers: int) -> dict[str, Any]:
    """A run with everything random in it: dropout, subword sampling, shuffling; long enough to be killed."""
    tree = make(folder, max_steps=240, save_every=20, validate_every=100, batch_tokens=120, subword_sampling=0.2)
    tree["data"]["workers"] = workers
    tree["vocabulary"] = {"tokenizer": "sentencepiece", "algorithm": "bpe", "size": 300}
    tree["model"]["dropout"] = 0.3
    return tree


@pytest.mark.parametrize(
    ("workers", "killed_by", "code"),
    [(0, signal.SIGKILL, -signal.SIGKILL), (2, signal.SIGTERM, 143), (0, signal.SIGINT, 130)],
)
def test_a_killed_run_goes_on_bit_for_bit(
    tmp_path: Path, tiny_tree: MakeTree, workers: int, killed_by: signal.Signals, code: int
) -> None:
    tree = slow_tree(tiny_tree, tmp_path, workers)
    train(Config.model_validate(tree), tmp_path / "whole", quiet=True)

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "transformer_cli", "train", "config.yaml", "--out", "killed"]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    metrics = tmp_path / "killed" / "metrics.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 30):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(killed_by)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    killed = tmp_path / "killed"
    saved = RunFolder(killed).index().last
    assert saved is not None
    assert 20 <= saved < 240, "the kill came too late to show anything"
    if code > 0:
        assert saved >= 30, "a signal saves the state where it is"

    train(Config.model_validate(tree), killed, quiet=True)
    assert weights(killed, 240) == weights(tmp_path / "whole", 240)
    told = [event["step"] for event in events(killed) if "loss" in event]
    assert told == sorted(set(told)), "metrics were cut back to the resumed step"
    assert told[-1] == 240


def test_a_rerun_of_a_finished_run_says_so(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    config = tiny_config(tmp_path, max_steps=3)
    first = train(config, tmp_path / "run", quiet=True)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = train(config, tmp_path / "run")
    assert "this run is finished (max_steps = 3 reached)" in capsys.readouterr().err
    assert replace(again, seconds=0) == replace(first, seconds=0)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def change(config: Config, section: str, **values: Any) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        ("training", {"batch_tokens": 150}, "training.batch_tokens"),
        ("training", {"seed": 2}, "training.seed"),
        ("training", {"label_smoothing": 0.2}, "training.label_smoothing"),
        ("model", {"dropout": 0.2}, "model.dropout"),
        ("data", {"max_length": 25}, "data.max_length"),
        ("vocabulary", {"lowercase": True}, "vocabulary.lowercase"),
    ],
)
def test_a_changed_key_is_refused_by_name(
    tmp_path: Path, tiny_config: MakeConfig, section: str, values: dict[str, Any], key: str
) -> None:
    config = tiny_config(tmp_path, max_steps=2)
    train(config, tmp_path / "run", quiet=True)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=f"{key} = .*--fresh"):
        train(change(config, section, **values), tmp_path / "run", quiet=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_what_may_change_is_said(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    config = tiny_config(tmp_path, max_steps=2)
    train(config, tmp_path / "run", quiet=True)
    changed = change(change(config, "training", max_steps=3, keep_last=5), "decoding", beam_size=2)
    train(change(changed, "data", workers=1), tmp_path / "run")
    said = capsys.readouterr().err
    for line in (
        "training.max_steps changed from 2 to 3",
        "training.keep_last changed from 3 to 5",
        "decoding.beam_size changed from 5 to 2",
        "data.workers changed from 0 to 1",
    ):
        assert line in said
    assert load_model(tmp_path / "run" / "step-00000003").config.decoding.beam_size == 2


def test_resume_needs_something_to_resume(tmp_path: Path, tiny_config: MakeConfig) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        train(tiny_config(tmp_path), tmp_path / "run", resume=True, quiet=True)
    assert not (tmp_path / "run").exists()


def test_fresh_renames_the_old_run_aside(tmp_path: Path, tiny_config: MakeConfig) -> None:
    config = tiny_config(tmp_path, max_steps=2)
    train(config, tmp_path / "run", quiet=True)
    old = weights(tmp_path / "run", 2)
    train(change(config, "training", seed=2), tmp_path / "run", fresh=True, quiet=True)
    assert weights(tmp_path / "run.1", 2) == old
    assert weights(tmp_path / "run", 2) != old


def test_a_second_trainer_in_the_same_folder_is_refused(tmp_path: Path, tiny_config: MakeConfig) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    holder = (
        "import sys, time; from transformer_cli.run_folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).lock(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", holder, str(run.path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="another tfm is training here"):
            train(tiny_config(tmp_path), run.path, quiet=True)
        process.kill()
    assert not run.config_path.exists()


def test_bad_data_writes_nothing(tmp_path: Path, tiny_config: MakeConfig) -> None:
    config = tiny_config(tmp_path)
    with open(tmp_path / "valid.en", "a") as file:
        file.write("one line too many\n")
    with pytest.raises(UserError, match=r"valid\.en"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_max_epochs_ends_at_the_end_of_an_epoch(tmp_path: Path, tiny_config: MakeConfig) -> None:
    config = tiny_config(tmp_path, max_steps=None, max_epochs=2, accumulation=2)
    result = train(config, tmp_path / "run", quiet=True)
    assert result.finished == "max_epochs = 2 reached"
    epochs = [event["epoch"] for event in events(tmp_path / "run") if "loss" in event]
    assert result.step == len(epochs)
    assert epochs.count(0) in (result.step // 2, result.step // 2 - 1), "the position after the last update is epoch 1"


def test_patience_stops_early(tmp_path: Path, tiny_config: MakeConfig) -> None:
    # A learning rate so small that nothing changes: the first validation stays the best.
    config = tiny_config(tmp_path, max_steps=100, validate_every=2, patience=3, factor=1e-12)
    result = train(config, tmp_path / "run", quiet=True)
    assert result.step == 8
    assert "patience" in result.finished
    assert result.best_step == 2


def test_every_best_step_is_kept_whatever_save_every_is(tmp_path: Path, tiny_config: MakeConfig) -> None:
    config = tiny_config(tmp_path, max_steps=30, validate_every=3, save_every=1000, best_metric="loss", keep_best=2)
    result = train(config, tmp_path / "run", quiet=True)
    losses = {event["step"]: event["valid_loss"] for event in events(tmp_path / "run") if "valid_loss" in event}
    ranked = sorted(losses, key=lambda step: losses[step])
    assert RunFolder(tmp_path / "run").index().best == ranked[:2]
    assert result.best_step == ranked[0]
    assert math.isclose(result.best_value or 0.0, losses[ranked[0]])


def test_average_at_the_end_is_used_only_if_it_is_better(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    config = tiny_config(tmp_path, max_steps=60, validate_every=20, save_every=2, average_last=3, best_metric="loss")
    train(config, tmp_path / "run")
    index, said = RunFolder(tmp_path / "run").index(), capsys.readouterr().err
    assert "average of the last 3 checkpoints" in said
    kept = [path.name for path in (tmp_path / "run").glob("average-*")]
    if "kept as the best" in said:
        assert [index.average] == kept
        assert find_model(tmp_path / "run").name == index.average
    else:
        assert index.average is None
        assert kept == []
        assert find_model(tmp_path / "run").name.startswith("step-")
    steps = index.steps[-3:]
    loaded = [load_model(RunFolder(tmp_path / "run").step_folder(step)).model.state_dict() for step in steps]
    if index.average:
        for name, tensor in load_model(tmp_path / "run").model.state_dict().items():
            mean = torch.stack([one[name].double() for one in loaded]).mean(0)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)


def test_the_probe_changes_nothing_and_finds_too_little_memory(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path, max_steps=3)
    train(config, tmp_path / "probed", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "probe_memory", lambda *args: None)
        train(config, tmp_path / "unprobed", quiet=True)
    assert weights(tmp_path / "probed", 3) == weights(tmp_path / "unprobed", 3)

    def no_memory(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("transformer_cli.training.probe.accumulate_gradients", no_memory)
    with pytest.raises(UserError, match=r"costliest batch.*lower training\.batch_tokens"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_the_task_is_learned(tmp_path: Path, tiny_config: MakeConfig) -> None:
    """Word by word, in order: what no model can do without attention to the source."""
    config = tiny_config(tmp_path, pairs=600, max_steps=800, validate_every=400, save_every=800, warmup_steps=100)
    shape = {"d_model": 32, "d_ff": 64, "dropout": 0.0}
    result = train(change(config, "model", **shape), tmp_path / "run", quiet=True)
    assert result.best_value is not None
    assert result.best_value > 95.0
    translator = Translator.load(tmp_path / "run")
    lines = [(tmp_path / f"valid.{language}").read_text().splitlines() for language in ("de", "en")]
    right = sum(ours == wanted for ours, wanted in zip(translator.translate(lines[0]), lines[1], strict=True))
    assert right >= 0.9 * len(lines[0])
