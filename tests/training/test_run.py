"""A run from config to model: what it leaves, where it continues, what it refuses, when it ends."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.sampling import one_of_each
from transformer_cli import Translator
from transformer_cli.build import load_model
from transformer_cli.config import Config, load_config
from transformer_cli.data.batching import plan_epoch
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.held_out import open_corpora
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder, find_model
from transformer_cli.text.codec import Codecs
from transformer_cli.training.averaging import average_checkpoints
from transformer_cli.training.loop import probe_memory
from transformer_cli.training.run import TrainingResult, train
from transformer_cli.training.start import build_vocabulary, load_or_build_codecs
from transformer_cli.training.training_data import prepare_training_data
from transformer_cli.training.validation import Validation, Validator

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


def test_stopping_and_continuing_equals_never_stopping(tmp_path: Path, tiny_config: MakeConfig) -> None:
    """max_steps may be raised: 7 steps, then 5 more, cut in the middle of an epoch and of an accumulation's worth."""
    whole = tiny_config(tmp_path, max_steps=12, accumulation=2, batch_tokens=60)
    train(whole, tmp_path / "whole", quiet=True)
    for max_steps in (7, 12):
        config = whole.model_copy(update={"training": whole.training.model_copy(update={"max_steps": max_steps})})
        train(config, tmp_path / "parts", quiet=True)
    assert weights(tmp_path / "whole", 12) == weights(tmp_path / "parts", 12)


def test_a_clock_that_was_set_back_changes_nothing(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of the data, the run and the cache is of a day to come, and the lock too."""
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    config = tiny_config(tmp_path, max_steps=12, keep_last=9)
    train(config, tmp_path / "whole", quiet=True)
    train(change(config, "training", max_steps=7), tmp_path / "parts", quiet=True)
    (tmp_path / "parts" / ".lock").touch()
    now = time.time()
    for path in [*tmp_path.rglob("*"), tmp_path]:
        os.utime(path, (now + 400 * 86_400,) * 2)
    cached = {path: path.stat().st_ino for path in (tmp_path / "cache").rglob("*")}
    for clock in ("time", "time_ns"):
        monkeypatch.setattr(time, clock, lambda clock=clock: (now - 400 * 86_400) * (1 if clock == "time" else 10**9))
    train(config, tmp_path / "parts", quiet=True)
    assert weights(tmp_path / "whole", 12) == weights(tmp_path / "parts", 12)
    assert RunFolder(tmp_path / "parts").index().last == 12
    assert {path: path.stat().st_ino for path in (tmp_path / "cache").rglob("*")} == cached  # nothing is encoded again
    text = tmp_path / "train.de"  # of the same size and date as before, but not the same
    status, content = text.stat(), text.read_bytes()
    text.write_bytes(content.swapcase())
    os.utime(text, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(UserError, match="not what the run was trained on"):
        train(change(config, "training", max_steps=13), tmp_path / "parts", quiet=True)


def slow_tree(make: MakeTree, folder: Path, workers: int) -> dict[str, Any]:
    """A run with everything random in it: dropout, subword sampling, noise, shuffling; long enough to be killed."""
    tree = make(folder, max_steps=60, save_every=10, validate_every=50, batch_tokens=120, subword_sampling=0.2)
    tree["data"]["workers"] = workers
    tree["training"]["noise"] = {"capitals": 0.2, "typos": 0.2}
    tree["vocabulary"] = {"tokenizer": "sentencepiece", "algorithm": "bpe", "size": 300}
    tree["model"]["dropout"] = 0.3
    return tree


@pytest.mark.slow  # in each run of CI test_kills does so, with processes that are there sooner
@pytest.mark.parametrize(
    ("workers", "killed_by", "code"),
    [
        (0, signal.SIGKILL, -signal.SIGKILL),
        (2, signal.SIGTERM, 143),
        (0, signal.SIGINT, 130),
    ],
)
def test_a_killed_run_continues_bit_for_bit(
    tmp_path: Path, tiny_tree: MakeTree, workers: int, killed_by: signal.Signals, code: int
) -> None:
    tree = slow_tree(tiny_tree, tmp_path, workers)
    train(change(Config.model_validate(tree), "data", workers=0), tmp_path / "whole", quiet=True)

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "transformer_cli", "train", "config.yaml", "--out", "killed"]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    metrics = tmp_path / "killed" / "metrics.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 15):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(killed_by)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    killed = tmp_path / "killed"
    saved = RunFolder(killed).index().last
    assert saved is not None
    assert 10 <= saved < 60, "the kill came too late to show anything"
    if code > 0:
        assert saved >= 15, "a signal saves the state where it is"

    train(Config.model_validate(tree), killed, quiet=True)
    assert weights(killed, 60) == weights(tmp_path / "whole", 60)
    steps = [event["step"] for event in events(killed) if "loss" in event]
    assert steps == sorted(set(steps)), "metrics were cut back to the resumed step"
    assert steps[-1] == 60


def test_a_rerun_of_a_finished_run_says_so(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    config = tiny_config(tmp_path, max_steps=3)
    first = train(config, tmp_path / "run", quiet=True)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = train(config, tmp_path / "run")
    assert "this run is finished (max_steps = 3 reached)" in capsys.readouterr().err
    assert replace(again, seconds=0) == replace(first, seconds=0)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_says_what_it_does_not_apply(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    config = tiny_config(tmp_path, max_steps=1)
    train(config, tmp_path / "run", quiet=True)
    train(change(config, "decoding", beam_size=7), tmp_path / "run")
    assert "not applied, for nothing was left to do: decoding.beam_size changed" in capsys.readouterr().err


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
        "import sys, time; from transformer_cli.storage.run_folder import RunFolder\n"
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


def write_unequal_corpus(folder: Path) -> None:
    """Sentences of lengths so scattered that one epoch's plan has more batches than another's."""
    generator = random.Random(21)
    lengths = []
    for _ in range(200):
        target = min(29, max(1, round(generator.lognormvariate(2.1, 0.6))))
        lengths.append((min(29, max(1, round(target * generator.gauss(1, 0.3)))), target))
    for language, side in (("de", 0), ("en", 1)):
        (folder / f"train.{language}").write_text("".join("balan " * pair[side] + "\n" for pair in lengths))


@pytest.mark.medium
@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_max_epochs_ends_at_the_end_of_an_epoch_and_resuming_finds_it(
    tmp_path: Path, tiny_config: MakeConfig, accumulation: int
) -> None:
    config = tiny_config(tmp_path, max_steps=None, max_epochs=4, accumulation=accumulation, validate_every=1000)
    write_unequal_corpus(tmp_path)
    whole = train(config, tmp_path / "whole", quiet=True)
    assert whole.finished == "max_epochs = 4 reached"
    lengths = [len(line.split()) + 1 for line in (tmp_path / "train.de").read_text().splitlines()]
    others = [len(line.split()) + 1 for line in (tmp_path / "train.en").read_text().splitlines()]
    sides = np.array(lengths, dtype=np.int32), np.array(others, dtype=np.int32)
    counts = [len(plan_epoch(*sides, batch_tokens=200, seed=1, epoch=epoch)) for epoch in range(4)]
    assert len(set(counts)) > 1, "plans of equal lengths show nothing"
    assert whole.step == sum(-(-count // accumulation) for count in counts)

    for epochs in (1, 2, 3, 4):  # each part ends where an epoch does
        train(change(config, "training", max_epochs=epochs), tmp_path / "parts", quiet=True)
    assert weights(tmp_path / "parts", whole.step) == weights(tmp_path / "whole", whole.step)


def test_patience_stops_early(tmp_path: Path, tiny_config: MakeConfig) -> None:
    # A learning rate so small that nothing changes: no validation is better than the first.
    config = tiny_config(tmp_path, max_steps=100, validate_every=2, patience=3, factor=1e-12)
    result = train(config, tmp_path / "run", quiet=True)
    assert result.step == 8
    assert "patience" in (result.finished or "")
    assert result.best_step == 8


@pytest.mark.medium
def test_with_wsd_patience_lets_the_rate_fall_and_an_interruption_changes_nothing(
    tmp_path: Path, tiny_config: MakeConfig, capsys: Any
) -> None:
    # Nothing changes: the first validation stays the best, after the fourth, at step 8, the rate falls for 3 steps.
    wsd = {"schedule": "wsd", "peak_learning_rate": 1e-12, "warmup_steps": 1}
    config = tiny_config(tmp_path, max_steps=100, validate_every=2, save_every=1, log_every=1, patience=3, **wsd)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    result = train(config, whole)
    said = capsys.readouterr().err
    assert "patience): the learning rate falls to zero by step 11" in said
    assert "limit  " not in said
    assert result.step == 11
    assert "patience" in (result.finished or "")
    rates = {event["step"]: event["learning_rate"] for event in events(whole) if "learning_rate" in event}
    assert {rates[step] for step in range(1, 9)} == {1e-12}
    assert 1e-12 > rates[9] > rates[10] > rates[11] == 0.0
    for until in (8, 9, 100):
        train(config, parts, until=until, quiet=True)
        if until == 9:
            with pytest.raises(UserError, match=r"trained with training\.max_steps = 100"):
                train(change(config, "training", max_steps=200), parts)
    assert weights(parts, 11) == weights(whole, 11)
    assert RunFolder(parts).index() == RunFolder(whole).index()
    assert train(change(config, "training", patience=None), whole, quiet=True).step == 11, "it is over all the same"
    capsys.readouterr()
    train(change(config, "training", max_steps=4), tmp_path / "short")
    assert "limit        training.max_steps = 4 ended this training before patience did" in capsys.readouterr().err
    constant = change(config, "training", max_steps=4, schedule="constant", warmup_steps=0)
    train(constant, tmp_path / "constant")
    assert "ended this training before patience did" in capsys.readouterr().err
    train(change(constant, "training", schedule="cosine"), tmp_path / "cosine")  # its rate is zero at max_steps anyway
    assert "limit  " not in capsys.readouterr().err
    # It begins to fall at step 10, for 3 steps, of which the second is the last of two epochs.
    train(change(config, "training", max_epochs=2, patience=4), tmp_path / "epochs")
    assert "falls to zero by step 13, but max_epochs ends training at step 12\n" in capsys.readouterr().err


def test_patience_does_not_end_the_warmup(tmp_path: Path, tiny_config: MakeConfig) -> None:
    wsd = {"schedule": "wsd", "peak_learning_rate": 1e-12, "warmup_steps": 10}
    config = tiny_config(tmp_path, max_steps=100, validate_every=1, log_every=1, patience=2, **wsd)
    assert train(config, tmp_path / "run", quiet=True).step == 13, "10 of them at the peak or on the way there"


@pytest.mark.medium
def test_with_wsd_training_longer_than_was_planned_is_as_if_it_had_been_planned(
    tmp_path: Path, tiny_config: MakeConfig
) -> None:
    wsd = {"schedule": "wsd", "peak_learning_rate": 0.01, "warmup_steps": 2, "dropout_warmup_steps": 15}
    config = tiny_config(tmp_path, max_steps=12, validate_every=3, save_every=3, **wsd)
    assert config.model.dropout
    longer = change(config, "training", max_steps=16)
    train(longer, tmp_path / "whole", quiet=True)
    train(config, tmp_path / "parts", until=9, quiet=True)  # where its rate would begin to fall
    train(longer, tmp_path / "parts", quiet=True)
    assert weights(tmp_path / "parts", 16) == weights(tmp_path / "whole", 16)


def test_epochs_that_end_before_the_rate_falls_are_warned_of(
    tmp_path: Path, tiny_config: MakeConfig, capsys: Any
) -> None:
    wsd = {"schedule": "wsd", "peak_learning_rate": 0.01, "warmup_steps": 2}
    config = tiny_config(tmp_path, max_steps=1000, max_epochs=1, validate_every=100, **wsd)
    train(config, tmp_path / "run")
    assert "warning      max_epochs = 1 ends training at step " in capsys.readouterr().err
    train(config, tmp_path / "run")
    assert "raise the limit to continue" in capsys.readouterr().err


@pytest.mark.medium
@pytest.mark.parametrize("schedule", ["cosine", pytest.param("noam", marks=pytest.mark.slow)])
def test_a_run_that_paused_ends_as_one_that_never_did(
    tmp_path: Path, tiny_config: MakeConfig, schedule: str, capsys: Any
) -> None:
    peak = {"peak_learning_rate": 0.01} if schedule == "cosine" else {}
    config = tiny_config(tmp_path, validate_every=3, save_every=2, schedule=schedule, warmup_steps=2, **peak)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, whole, quiet=True)
    for until, step in ((1, 3), (2, 3), (5, 6), (6, 6)):  # the second and the last find nothing left to do
        paused = train(config, parts, until=until)
        assert (paused.finished, paused.step) == (None, step)
        assert f"paused       after {step} steps" in capsys.readouterr().err
        index = RunFolder(parts).index()
        assert (index.last, index.finished) == (step, None)
        assert any(event["step"] == step and "valid_bleu" in event for event in events(parts)), "validated there"
    result = train(config, parts, until=1000, quiet=True)
    assert result.finished == "max_steps = 12 reached"
    assert RunFolder(parts).index() == RunFolder(whole).index()
    assert weights(parts, 12) == weights(whole, 12)

    def unhurried(run: Path) -> list[dict[str, Any]]:
        return [{key: event[key] for key in event if key != "target_tokens_per_second"} for event in events(run)]

    assert unhurried(parts) == unhurried(whole)


def test_a_pause_is_saved_whatever_save_every_is(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first validation stays the best, so that the second is no reason to save.
    losses = iter((1.0, 2.0))
    found = Validation(1.0, 2.0, 1.0, 0.0, 0.0, [])
    monkeypatch.setattr(Validator, "validate", lambda _: replace(found, loss=next(losses)))
    config = tiny_config(tmp_path, validate_every=2, save_every=1000, best_metric="loss")
    train(config, tmp_path / "run", until=4, quiet=True)
    index = RunFolder(tmp_path / "run").index()
    assert (index.steps, index.best, index.last) == ([2, 4], [2], 4)


def test_a_pause_makes_no_average(tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    judge(monkeypatch, average=1.0)
    config = tiny_config(tmp_path, max_steps=6, validate_every=2, save_every=2, average_last=2, best_metric="loss")
    train(config, tmp_path / "run", until=4, quiet=True)
    assert find_model(tmp_path / "run").name == "step-00000004", "the later of equals"
    train(config, tmp_path / "run", quiet=True)
    assert find_model(tmp_path / "run").name == "average-00000006"


@pytest.mark.medium
def test_every_best_step_is_kept_whatever_save_every_is(tmp_path: Path, tiny_config: MakeConfig) -> None:
    config = tiny_config(tmp_path, max_steps=30, validate_every=3, save_every=1000, best_metric="loss", keep_best=2)
    result = train(config, tmp_path / "run", quiet=True)
    losses = {event["step"]: event["valid_loss"] for event in events(tmp_path / "run") if "valid_loss" in event}
    ranked = sorted(losses, key=lambda step: losses[step])
    assert RunFolder(tmp_path / "run").index().best == ranked[:2]
    assert result.best_step == ranked[0]
    assert math.isclose(result.best_value or 0.0, losses[ranked[0]])


def judge(monkeypatch: pytest.MonkeyPatch, average: float) -> None:
    """Let every validation find a loss of 5, and that of the average the one given."""
    real, real_average = Validator.validate, average_checkpoints
    averaged = False

    def validate(self: Validator) -> Validation:
        found = real(self)
        assert found is not None
        return replace(found, loss=average if averaged else 5.0)

    def averaging(*arguments: Any) -> None:
        nonlocal averaged
        real_average(*arguments)
        averaged = True

    monkeypatch.setattr(Validator, "validate", validate)
    monkeypatch.setattr("transformer_cli.training.session.average_checkpoints", averaging)


def test_an_average_that_is_better_is_the_model_until_a_step_beats_it(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(monkeypatch, average=1.0)
    run = tmp_path / "run"
    config = tiny_config(tmp_path, max_steps=6, save_every=2, average_last=3, best_metric="loss")
    train(config, run, quiet=True)
    assert find_model(run).name == "average-00000006"
    loaded = [load_model(RunFolder(run).step_folder(step)).model.state_dict() for step in (2, 4, 6)]
    for name, tensor in load_model(run).model.state_dict().items():
        mean = torch.stack([one[name].double() for one in loaded]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-6, atol=1e-7)

    judge(monkeypatch, average=9.0)
    train(change(config, "training", max_steps=8), run, quiet=True)
    assert find_model(run).name == "average-00000006", "still better than all that came after it"
    judge(monkeypatch, average=0.5)
    train(change(config, "training", max_steps=10), run, quiet=True)
    assert [path.name for path in run.glob("average-*")] == ["average-00000010"]


def test_an_average_that_is_no_better_is_dropped(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    judge(monkeypatch, average=6.0)
    run = tmp_path / "run"
    train(tiny_config(tmp_path, max_steps=6, save_every=2, average_last=3, best_metric="loss"), run)
    assert "average of the last 3 checkpoints: loss 6.000" in capsys.readouterr().err
    assert [*run.glob("average-*")] == []
    assert find_model(run).name == "step-00000006"


def test_a_run_killed_before_its_average_still_gets_it(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge(monkeypatch, average=1.0)
    config = tiny_config(tmp_path, max_steps=6, save_every=2, average_last=3, best_metric="loss")
    with monkeypatch.context() as patch:
        patch.setattr("transformer_cli.training.averaging.mean_model", lambda *args: raise_(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", quiet=True)
    assert RunFolder(tmp_path / "run").index().finished is None
    result = train(config, tmp_path / "run", quiet=True)
    assert result.step == 6
    assert find_model(tmp_path / "run").name == "average-00000006"
    assert RunFolder(tmp_path / "run").index().finished == result.finished


def raise_(error: BaseException) -> None:
    raise error


def test_data_edited_under_its_name_is_noticed(tmp_path: Path, tiny_config: MakeConfig, capsys: Any) -> None:
    config = tiny_config(tmp_path, max_steps=3)
    train(config, tmp_path / "run", quiet=True)
    longer = change(config, "training", max_steps=5)
    valid = (tmp_path / "valid.en").read_text()
    (tmp_path / "valid.en").write_text(valid.replace("lan", "nal"))
    train(longer, tmp_path / "run")
    assert "data.valid changed" in capsys.readouterr().err
    for side in ("de", "en"):
        lines = (tmp_path / f"train.{side}").read_text().splitlines(keepends=True)
        (tmp_path / f"train.{side}").write_text("".join(lines[:50]))
    with pytest.raises(UserError, match=r"data\.train.*not what the run was trained on"):
        train(change(config, "training", max_steps=7), tmp_path / "run", quiet=True)


def test_a_run_continues_with_its_checkpoints_vocabulary_and_refuses_a_damaged_one(
    tmp_path: Path, tiny_config: MakeConfig
) -> None:
    config = tiny_config(tmp_path, max_steps=3)
    run = tmp_path / "run"
    train(config, run, quiet=True)
    vocabulary = run / "vocab" / "shared.json"
    vocabulary.write_text(vocabulary.read_text().replace("balan", "balam"))
    train(change(config, "training", max_steps=4), run, quiet=True)
    assert "balam" not in load_model(run / "step-00000004").codecs.source.vocabulary.get_itos()

    for checkpoint in [*run.glob("step-*"), run / "checkpoints.json"]:
        shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
    with pytest.raises(UserError, match=r"shared\.json: does not match its manifest"):
        train(config, run, quiet=True)


def test_a_run_begun_meanwhile_is_not_touched(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = tiny_config(tmp_path, max_steps=3), tmp_path / "run"
    place, probe = "transformer_cli.training.run.probe_memory", probe_memory

    def slow_probe(*arguments: Any) -> None:
        monkeypatch.setattr(place, probe)
        train(config, run, quiet=True)  # another process does this while the first still prepares
        probe(*arguments)

    monkeypatch.setattr(place, slow_probe)
    with pytest.raises(UserError, match="started a run here meanwhile"):
        train(config, run, quiet=True)
    assert RunFolder(run).index().last == 3


def test_the_probe_changes_nothing_and_finds_too_little_memory(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path, max_steps=3)
    train(config, tmp_path / "probed", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr("transformer_cli.training.run.probe_memory", lambda *args: None)
        train(config, tmp_path / "unprobed", quiet=True)
    assert weights(tmp_path / "probed", 3) == weights(tmp_path / "unprobed", 3)

    def no_memory(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("transformer_cli.training.loop.accumulate_gradients", no_memory)
    with pytest.raises(UserError, match=r"costliest batch.*lower training\.batch_tokens"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists(), "the probe comes before anything is written"


def test_the_probe_tries_both_passes_of_r_drop(
    tmp_path: Path, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for the costliest batch once is enough without R-Drop, and too little with it."""
    rows: list[int] = []
    forward = Transformer.forward

    def limited(self: Transformer, source: torch.Tensor, *others: Any) -> Any:
        if rows and source.numel() > rows[0]:
            raise torch.OutOfMemoryError("no memory")
        rows.append(source.numel())
        return forward(self, source, *others)

    monkeypatch.setattr(Transformer, "forward", limited)
    config = tiny_config(tmp_path, max_steps=1)
    assert train(config, tmp_path / "plain", quiet=True).step == 1
    del rows[1:]  # what the first probe took
    twice = config.model_copy(update={"training": config.training.model_copy(update={"r_drop": 1.0})})
    with pytest.raises(UserError, match="not enough memory on cpu for the costliest batch"):
        train(twice, tmp_path / "twice", quiet=True)
    assert not (tmp_path / "twice").exists()


@pytest.mark.medium
def test_the_task_is_learned(tmp_path: Path, tiny_config: MakeConfig) -> None:
    """Word by word, in order: what no model can do without attention to the source."""
    steps = {"max_steps": 200, "validate_every": 200, "save_every": 200, "validation_sentences": 20}
    schedule = {"schedule": "cosine", "peak_learning_rate": 0.004, "warmup_steps": 50}
    config = tiny_config(tmp_path, pairs=1200, longest=5, batch_tokens=400, **schedule, **steps)
    shape = {"d_model": 64, "heads": 4, "d_ff": 128, "dropout": 0.0}
    result = train(change(config, "model", **shape), tmp_path / "run", quiet=True)
    assert result.best_value is not None
    assert result.best_value > 95.0
    translator = Translator.load(tmp_path / "run")
    lines = [(tmp_path / f"valid.{language}").read_text().splitlines() for language in ("de", "en")]
    right = sum(ours == wanted for ours, wanted in zip(translator.translate(lines[0]), lines[1], strict=True))
    assert right >= 0.9 * len(lines[0])


# --- without data.valid -------------------------------------------------------------------------------------------


@pytest.fixture
def two_files(tmp_path: Path, tiny_tree: MakeTree) -> Callable[..., Config]:
    """Call it with training values: a config with two files and no `data.valid`."""

    def make(**training: Any) -> Config:
        tree = tiny_tree(tmp_path, pairs=400, **training)
        del tree["data"]["valid"]
        return Config.model_validate(tree)

    return make


def saved_pairs(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "held-out").iterdir()}


def test_two_files_are_enough(tmp_path: Path, two_files: MakeConfig, capsys: Any) -> None:
    run = tmp_path / "run"
    train(two_files(), run)
    said = [line for line in capsys.readouterr().err.splitlines() if "data.valid is not set" in line]
    sources, targets = ((run / "held-out" / name).read_text().splitlines() for name in ("source.de", "target.en"))
    assert len(said) == 1
    assert f"{len(sources)} pairs held out of data.train" in said[0]
    assert 10 <= len(sources) == len(targets) <= 20
    assert load_config(run / "config.yaml").data.valid is None
    validations = [event for event in events(run) if "valid_bleu" in event]
    assert [event["step"] for event in validations] == [6, 12]


def test_a_run_without_validation_files_continues_as_if_never_interrupted(
    tmp_path: Path, two_files: MakeConfig, capsys: Any
) -> None:
    train(two_files(), tmp_path / "whole", quiet=True)
    train(two_files(max_steps=4), tmp_path / "parts", quiet=True)
    held_out = saved_pairs(tmp_path / "parts")
    assert held_out == saved_pairs(tmp_path / "whole")
    train(two_files(), tmp_path / "parts")
    assert f"held out of data.train are in {tmp_path / 'parts' / 'held-out'}" in capsys.readouterr().err
    assert saved_pairs(tmp_path / "parts") == held_out
    assert weights(tmp_path / "parts", 12) == weights(tmp_path / "whole", 12)
    scores = [
        [{**event, "seconds": 0} for event in events(tmp_path / run) if "valid_bleu" in event][-1]
        for run in ("whole", "parts")
    ]
    assert scores[0]["valid_bleu"] == scores[1]["valid_bleu"]
    assert scores[0]["valid_loss"] == scores[1]["valid_loss"]


def test_the_saved_pairs_count_when_a_run_continues(tmp_path: Path, two_files: MakeConfig) -> None:
    """Not those that would be chosen now."""
    run = tmp_path / "run"
    build_vocabulary(two_files(), run)
    held_out = saved_pairs(run)
    train(two_files(seed=7, max_steps=2), run, quiet=True)
    assert saved_pairs(run) == held_out
    train(two_files(seed=7, max_steps=2), tmp_path / "other", quiet=True)
    assert saved_pairs(tmp_path / "other") != held_out


@pytest.mark.parametrize(
    ("name", "damaged"),
    one_of_each(
        [pytest.param(name, damaged) for damaged in (False, True)]
        for name in ("source.de", "target.en", "manifest.json", None)
    ),
)
def test_a_run_whose_held_out_pairs_are_damaged_is_not_continued(
    tmp_path: Path, two_files: MakeConfig, name: str | None, damaged: bool
) -> None:
    run = tmp_path / "run"
    train(two_files(max_steps=1), run, quiet=True)
    if name is None:
        shutil.rmtree(run / "held-out")
    elif damaged:
        (run / "held-out" / name).write_text("other\n" * 3)
    else:
        (run / "held-out" / name).unlink()
    with pytest.raises(UserError, match=r"held-out.*copy.*, or start again with --fresh") as refused:
        train(two_files(max_steps=2), run, quiet=True)
    assert "\n" not in str(refused.value)
    train(two_files(max_steps=1), run, quiet=True, fresh=True)
    assert len(saved_pairs(run)) == 3


def test_the_vocabulary_has_no_word_of_what_is_held_out_alone(tmp_path: Path, two_files: MakeConfig) -> None:
    config = two_files(max_steps=1)
    for side in ("de", "en"):
        lines = (tmp_path / f"train.{side}").read_text().splitlines()
        (tmp_path / f"train.{side}").write_text("".join(f"{line} {side}{row}\n" for row, line in enumerate(lines)))
    build_vocabulary(config, tmp_path / "built")
    train(config, tmp_path / "run", quiet=True)
    assert saved_pairs(tmp_path / "built") == saved_pairs(tmp_path / "run")
    alone = {line.split()[-1] for line in (tmp_path / "run" / "held-out" / "source.de").read_text().splitlines()}
    for run in ("built", "run"):
        vocabulary = Codecs.load(tmp_path / run, config).source.vocabulary
        assert len(alone) == 20
        assert not any(word in vocabulary for word in alone)
        assert "de1" in vocabulary or "de1" in alone


def test_a_killed_start_chooses_again(tmp_path: Path, two_files: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the config and the pairs, and between these and the vocabulary."""
    run = tmp_path / "run"
    for name in ("held-out", "vocab"):
        with monkeypatch.context() as patch:
            publish = RunFolder.publish

            def killed(self: RunFolder, what: str, write: Any, killer: str = name, real: Any = publish) -> Path:
                if what == killer:
                    raise KeyboardInterrupt
                return real(self, what, write)  # type: ignore[no-any-return]

            patch.setattr(RunFolder, "publish", killed)
            with pytest.raises(KeyboardInterrupt):
                train(two_files(max_steps=1), run, quiet=True)
    assert (run / "held-out").exists()
    train(two_files(max_steps=1), run, quiet=True)
    train(two_files(max_steps=1), tmp_path / "other", quiet=True)
    assert saved_pairs(run) == saved_pairs(tmp_path / "other")
    assert weights(run, 1) == weights(tmp_path / "other", 1)


def test_whether_pairs_are_held_out_cannot_change_once_there_is_a_vocabulary(
    tmp_path: Path, tiny_config: MakeConfig, two_files: MakeConfig
) -> None:
    without = two_files()
    build_vocabulary(without, tmp_path / "run")
    named = without.model_copy(update={"data": without.data.model_copy(update={"valid": without.data.train})})
    with pytest.raises(UserError, match=r"its vocabulary was built with data.valid = null"):
        train(named, tmp_path / "run", quiet=True)


def test_alignments_stay_with_their_pairs(tmp_path: Path, two_files: MakeConfig) -> None:
    """The file has a line for each line of data.train, those that are held out too."""
    config = two_files(max_steps=1, guided_attention={"prior": "alignments", "alignments": str(tmp_path / "a")})
    lines = (tmp_path / "train.de").read_text().splitlines()
    links = [" ".join(f"{word}-{word}" for word in range(len(line.split()))) for line in lines]
    (tmp_path / "a").write_text("".join(f"{line}\n" for line in links))  # a shifted line would name missing words
    run = tmp_path / "run"
    corpora = open_corpora(config, RunFolder(run), resuming=False)
    codecs, _ = load_or_build_codecs(config, corpora.train, None, None, progress=False)
    encoded = prepare_training_data(config, corpora, codecs, [], progress=False).train
    assert isinstance(encoded, EncodedCorpus)
    assert 300 < len(encoded) < 400 - 10
    for pair in range(len(encoded)):
        assert encoded.links(pair)[:, 0].tolist() == list(range(len(encoded.ids(pair)[1])))
    train(config, run, quiet=True)
