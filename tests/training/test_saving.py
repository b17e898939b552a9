"""The state of a run is captured whole, saved as it was at that step while training continues, and restored exactly."""

import errno
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.build import build_model
from transformer_cli.config import Config, ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position, UpdateBatches
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.checkpoint import TrainingState, load_training_state, load_weights, stored_weights
from transformer_cli.storage.holding import TEMPORARY
from transformer_cli.storage.run_folder import WEIGHTS, CheckpointIndex, RunFolder, step_name
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs
from transformer_cli.training.averaging import MovingAverage
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import Update, build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.run import train
from transformer_cli.training.saving import Learner, Progress, Saver, capture_random, read_progress, take_snapshot

MakeConfig = Callable[..., Config]

# --- progress and state -----------------------------------------------------------------------------------------------


CPU = torch.device("cpu")
CONFIG = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01)
BATCH = Batch.from_ids([([5, 6, 7], [8, 9]), ([4], [5, 6, 7, 8])])

steps = st.integers(0, 10**9)
progresses = st.builds(
    Progress,
    step=steps,
    position=st.builds(Position, steps, steps),
    seconds=st.floats(0, 1e9),
    scores=st.dictionaries(steps, st.floats(-1e3, 1e3)),
    lowest_loss=st.none() | st.floats(0, 1e3),
    validations_without_best=steps,
    skipped=steps,
    skipped_in_row=steps,
)


@given(progresses)
def test_progress_survives_json(progress: Progress) -> None:
    values = json.loads(json.dumps(progress.to_values()))
    assert read_progress({"progress": values}) == progress
    assert json.loads(json.dumps(values)) == read_progress({"progress": values}).to_values()


def test_progress_of_an_older_run_is_read() -> None:
    """Before skipped updates and the like were counted."""
    values = Progress(step=7, position=Position(1, 2), scores={5: 1.5}, train_corpus="a", valid_corpus="b").to_values()
    for later in ("lowest_loss", "decay_from", "validation_seconds", "skipped", "skipped_in_row", "halvings"):
        del values[later]
    progress = read_progress({"progress": values})
    assert progress == Progress(step=7, position=Position(1, 2), scores={5: 1.5}, train_corpus="a", valid_corpus="b")
    assert isinstance(progress.position, Position)


def test_patience_counts_validations_without_a_better_score_or_a_lower_loss() -> None:
    progress = Progress()
    scores = [0.0, 0.0, 0.0, 2.0, 1.0, 1.5, 1.0, 2.0, 3.0]
    losses = [5.0, 4.0, 4.0, 4.5, math.nan, 4.0, 3.9, 3.9, 9.0]
    without = []
    for progress.step, (score, loss) in enumerate(zip(scores, losses, strict=True)):
        progress.judge(score, loss)
        without.append(progress.validations_without_best)
    assert without == [0, 0, 1, 0, 1, 2, 0, 1, 0]
    assert progress.lowest_loss == 3.9
    assert progress.scores[8] == progress.best_score() == 3.0


def test_ranking_is_by_score_and_of_equals_the_later_is_better() -> None:
    assert Progress(scores={10: 1.0, 20: 3.0, 30: 2.0, 40: 3.0}).ranked() == [40, 20, 30, 10]
    progress, best = Progress(), []
    for progress.step, score in enumerate([0.0, 0.0, 2.0, 1.0, 2.0, math.nan]):  # zero until the source is found
        best.append(progress.judge(score, 5.0))
    assert best == [True, True, True, False, True, False]
    assert progress.validations_without_best == 3, "patience waits for better ones"


def test_a_score_that_is_not_finite_is_never_best() -> None:
    progress = Progress(scores={10: math.nan, 20: 1.0, 30: -math.inf, 40: 2.0, 50: math.inf})
    assert progress.ranked() == [40, 20]
    assert progress.best_score() == 2.0
    assert Progress(scores={10: math.nan}).best_score() == -math.inf


def make_learner(seed: int, precision: str = "fp32") -> Learner:
    """A model with dropout and its optimizer."""
    torch.manual_seed(seed)
    shape = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, heads=2, d_ff=16, dropout=0.5)
    objective = TranslationObjective(build_model(shape, 12, 12), 0.1)
    average = MovingAverage(objective.model, None)
    progress = Progress(step=3)
    learner = Learner(objective, build_optimizer(objective, CONFIG), Precision(precision, CPU), average, progress)
    if precision == "fp16":  # a scale that overflows at first, and soon grows again
        learner.precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    return learner


def train_on(learner: Learner, updates: int) -> list[Update]:
    """Train on one batch again and again."""
    batches = (UpdateBatches(Position(0, number + 1), [BATCH]) for number in range(updates))
    return list(train_steps(learner.objective, learner.optimizer, learner.precision, CONFIG, batches))


def captured(learner: Learner) -> TrainingState:
    """A copy of the state, which no later update changes."""
    state = learner.capture([capture_random()])
    return TrainingState({key: value.clone() for key, value in state.tensors.items()}, state.values)


@pytest.mark.parametrize(("precision", "updates"), [("fp32", 3), ("fp16", 20)])
def test_a_restored_learner_continues_bit_for_bit(precision: str, updates: int) -> None:
    first = make_learner(1, precision)
    began = train_on(first, updates)
    assert (began[0].overflow, began[-1].overflow) == (precision == "fp16", False)
    weights = {name: tensor.clone() for name, tensor in first.objective.state_dict().items()}
    state = captured(first)
    expected = train_on(first, updates)
    assert any(update.overflow for update in expected) == (precision == "fp16"), "the scale grows and falls again"

    second = make_learner(2, precision)
    second.objective.load_state_dict(weights)
    second.restore(state)
    assert second.progress == first.progress
    assert [repr(update) for update in train_on(second, updates)] == [repr(update) for update in expected]
    assert second.precision.scaler.state_dict() == first.precision.scaler.state_dict()
    for name, tensor in first.objective.state_dict().items():
        assert torch.equal(tensor, second.objective.state_dict()[name]), name


@pytest.mark.parametrize("left_out", ["random.cpu", "optimizer"])
def test_without_any_part_of_the_state_it_continues_differently(left_out: str) -> None:
    """The test above can fail: each part of the state matters."""
    first = make_learner(seed=1)
    train_on(first, 3)
    weights = {name: tensor.clone() for name, tensor in first.objective.state_dict().items()}
    state = captured(first)
    train_on(first, 3)
    second = make_learner(seed=2)
    second.objective.load_state_dict(weights)
    if left_out == "random.cpu":
        state.tensors["random.cpu"] = torch.get_rng_state()
    kept = {key: value for key, value in state.tensors.items() if not key.startswith(left_out + ".")}
    second.restore(TrainingState(kept, state.values))
    train_on(second, 3)
    after = second.objective.state_dict()
    assert any(not torch.equal(tensor, after[name]) for name, tensor in first.objective.state_dict().items())


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"progress": None},
        {"progress": {"step": "x"}},
        {"progress": {**Progress().to_values(), "position": [1]}},
        {"progress": {**Progress().to_values(), "position": [0, -1]}},
        {"progress": {**Progress().to_values(), "position": [1 << 64, 0]}},
        {"progress": {**Progress().to_values(), "step": -1}},
        {"progress": {**Progress().to_values(), "step": float("inf")}},
        {"progress": {**Progress().to_values(), "scores": []}},
        {"progress": {key: value for key, value in Progress().to_values().items() if key != "position"}},
    ],
)
def test_garbage_is_refused_as_progress(broken: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="does not fit"):
        read_progress(broken)


def test_a_state_of_another_model_is_refused() -> None:
    learner = make_learner(seed=1)
    train_on(learner, 1)
    state = captured(learner)
    key = next(key for key in state.tensors if key.startswith("optimizer.exp_avg."))
    with pytest.raises(UserError, match="another shape"):
        learner.restore(TrainingState({**state.tensors, key: torch.zeros(3, 3, 3)}, state.values))


class Training:
    """A model and its optimiser, which any update changes everywhere, and what saves them."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        pairs = [("balan demer", "lanba merde"), ("finis", "nisfi")]
        codecs: Codecs = build_codecs(config, lambda: iter(pairs))[0]
        sizes = len(codecs.source.vocabulary), len(codecs.target.vocabulary)
        torch.manual_seed(1)
        self.run = run
        self.model: Transformer = build_model(config.model, *sizes)
        objective = TranslationObjective(self.model, 0.1)
        self.optimizer = build_optimizer(objective, config.training)
        precision, average = Precision("fp32", CPU), MovingAverage(self.model, None)
        self.learner = Learner(objective, self.optimizer, precision, average)
        self.progress = self.learner.progress
        self.saver = Saver(run, config, codecs, CheckpointIndex())
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1

    def update(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.rand_like(parameter)
        self.optimizer.step()
        self.progress.step += 1
        self.progress.scores[self.progress.step] = float(self.progress.step)

    def state(self) -> Any:
        return self.learner.capture([capture_random()])

    def save(self) -> None:
        self.saver.save(self.learner, [capture_random()])

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in stored_weights(self.model).items()}


@pytest.fixture
def training(tmp_path: Path, tiny_config: MakeConfig) -> Iterator[Training]:
    run = RunFolder(tmp_path / "run")
    run.create()
    training = Training(run, tiny_config(tmp_path, keep_last=2))
    yield training
    training.saver.close()


class Gate:
    """Holds `RunFolder.publish` back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened, publish = threading.Event(), threading.Event(), RunFolder.publish

        def held(run: RunFolder, name: str, write: Callable[[Path], None]) -> Path:
            self.reached.set()
            assert self.opened.wait(60)
            return publish(run, name, write)

        monkeypatch.setattr(RunFolder, "publish", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def entries(run: RunFolder) -> list[str]:
    return sorted(path.name for path in run.path.iterdir())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- what is saved ----------------------------------------------------------------------------------------------------


def test_a_snapshot_does_not_change_when_training_continues(training: Training) -> None:
    training.update()
    state = training.state()
    expected = {name: tensor.clone() for name, tensor in state.tensors.items()}
    weights, values = training.weights(), repr(state.values)
    snapshot = take_snapshot(training.learner, [capture_random()])
    training.update()
    torch.rand(1)
    assert (snapshot.progress.step, snapshot.progress.scores) == (1, {1: 1.0})
    assert same(snapshot.weights, weights)
    assert not same(snapshot.weights, training.weights())
    assert same(snapshot.state.tensors, expected)
    assert repr(snapshot.state.values) == values
    now = training.state().tensors
    kept = {name for name, tensor in now.items() if torch.equal(tensor, snapshot.state.tensors[name])}
    assert kept == set(), "the test shows nothing of what stays as it was"


@pytest.mark.gpu
def test_a_snapshot_of_a_gpu_lies_in_the_machines_memory(training: Training) -> None:
    training.model.cuda()
    training.update()
    expected = {name: tensor.cpu() for name, tensor in training.weights().items()}
    snapshot = take_snapshot(training.learner, [capture_random()])
    training.update()
    assert same(snapshot.weights, expected)
    assert {tensor.device.type for tensor in snapshot.state.tensors.values()} == {"cpu"}


@pytest.mark.medium
def test_what_is_written_is_what_was_there_at_the_call(training: Training, gate: Gate) -> None:
    """Steps taken before the first byte is written leave no trace in it."""
    training.update()
    weights, moments = training.weights(), {k: v.clone() for k, v in training.state().tensors.items()}
    training.save()
    assert gate.reached.wait(60)
    training.update()
    training.update()
    gate.opened.set()
    assert training.saver.index == CheckpointIndex(steps=[1], best=[1], last=1)
    folder = training.run.step_folder(1)
    state = load_training_state(folder)
    assert same(state.tensors, moments)
    assert state.values["progress"]["step"] == 1
    assert state.values["progress"]["scores"] == {"1": 1.0}
    load_weights(folder, training.model)
    assert same(training.weights(), weights)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_model_that_is_not_finite_is_never_saved(training: Training, number: float) -> None:
    training.update()
    training.save()
    training.update()
    with torch.no_grad():
        next(reversed(list(training.model.parameters()))).view(-1)[-1] = number
    with pytest.raises(UserError, match=r"diverged: the weights after step 2 .*lower the learning rate.*warm up"):
        training.save()
    assert training.saver.index == CheckpointIndex(steps=[1], best=[1], last=1)
    assert entries(training.run) == ["checkpoints.json", step_name(1)]


def test_numbers_whose_sum_overflows_are_numbers(training: Training) -> None:
    training.update()
    with torch.no_grad():
        next(training.model.parameters()).fill_(3e38)
    training.save()
    assert training.saver.index.last == 1


# --- in the background ------------------------------------------------------------------------------------------------


def test_training_continues_meanwhile_and_the_next_save_waits(training: Training, gate: Gate) -> None:
    training.update()
    training.save()  # returns, though nothing can be published
    assert gate.reached.wait(60)
    training.saver.check()
    assert entries(training.run) == []
    training.update()
    second = threading.Thread(target=training.save)
    second.start()
    second.join(0.1)
    assert second.is_alive(), "two saves are in flight"
    gate.opened.set()
    second.join(60)
    training.saver.close()
    assert training.saver.index == CheckpointIndex(steps=[1, 2], best=[2], last=2)
    assert training.run.index() == training.saver.index


def test_closing_waits(training: Training, gate: Gate) -> None:
    training.update()
    training.save()
    opener = threading.Timer(0.1, gate.opened.set)
    opener.start()
    training.saver.close()
    opener.join()
    assert training.run.index().last == 1


def test_old_checkpoints_go_and_the_best_stays(training: Training) -> None:
    for _ in range(4):
        training.update()
        training.progress.scores[training.progress.step] = -float(training.progress.step)
        training.save()
    assert training.saver.index == CheckpointIndex(steps=[1, 3, 4], best=[1], last=4)
    assert entries(training.run) == ["checkpoints.json", *map(step_name, (1, 3, 4))]


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", ["storage.checkpoint.save_file", "training.saving.save_training_state", "atomic_write"]
)
def test_a_failed_save_is_reported_and_leaves_the_one_before(
    training: Training, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """While the weights, the state or the index is written."""
    training.update()
    training.save()
    training.saver.wait()
    before = {path: path.read_bytes() for path in training.run.path.rglob("*") if path.is_file()}
    place = "transformer_cli.storage.run_folder.atomic_write" if where == "atomic_write" else f"transformer_cli.{where}"
    monkeypatch.setattr(place, full)
    training.update()
    training.save()  # says nothing yet
    for ask in (training.saver.wait, training.saver.check, training.save, lambda: training.saver.index):
        with pytest.raises(OSError, match="No space left on device; this step is not saved, step 1 is") as raised:
            ask()
        assert raised.value.errno == errno.ENOSPC
        assert TEMPORARY not in str(raised.value)
    training.saver.close()
    assert {path: path.read_bytes() for path in training.run.path.rglob("*") if path.is_file()} == before
    assert training.run.index().last == 1


def test_training_ends_at_the_step_after_a_failed_save(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    publish, check = RunFolder.publish, Saver.check

    def publish_until_full(run: RunFolder, name: str, write: Callable[[Path], None]) -> Path:
        if name == step_name(8):
            done.set()
            full()
        return publish(run, name, write)

    def check_when_done(saver: Saver) -> None:
        while done.is_set() and saver.is_busy():  # as slow as a step of a larger model
            time.sleep(0.001)
        check(saver)

    config, run = tiny_config(tmp_path, validate_every=100), RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "publish", publish_until_full)
        patch.setattr(Saver, "check", check_when_done)
        with pytest.raises(OSError, match=r"step 4 is; fix that, and the same command continues"):
            train(config, run.path, quiet=True)
    assert run.index().steps == [4]
    assert len(run.metrics.path.read_text().splitlines()) in (9, 10)
    train(config, run.path, quiet=True)
    train(config, tmp_path / "whole", quiet=True)
    assert (run.step_folder(12) / WEIGHTS).read_bytes() == (tmp_path / "whole" / step_name(12) / WEIGHTS).read_bytes()


def test_a_run_that_diverges_at_once_saves_nothing(tmp_path: Path, tiny_config: MakeConfig) -> None:
    run = RunFolder(tmp_path / "run")
    with pytest.raises(UserError, match="training diverged"):
        train(tiny_config(tmp_path, factor=1e45, save_every=1), run.path, quiet=True)
    assert run.index() == CheckpointIndex()
    assert not [name for name in entries(run) if "step-" in name]


# --- a damaged checkpoint ---------------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize("name", [WEIGHTS, "training.safetensors", "training.json"])
def test_a_damaged_last_checkpoint_stops_a_run_and_the_advice_helps(
    tmp_path: Path, tiny_config: MakeConfig, name: str
) -> None:
    """Never by itself, for the run would lose steps; what the line says to do is enough, and ends in the same bits."""
    config, run = tiny_config(tmp_path, max_steps=12, keep_last=3, validate_every=100), RunFolder(tmp_path / "run")
    train(config, run.path, quiet=True)
    whole = (run.step_folder(12) / WEIGHTS).read_bytes()
    damaged = run.step_folder(12) / name
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError) as raised:
        train(config, run.path, quiet=True)
    assert str(damaged) in str(raised.value)
    assert re.search("step 8, which is whole: move checkpoints.json and step-00000012 out", str(raised.value))
    for moved in (run.index_path, run.step_folder(12)):
        os.rename(moved, tmp_path / moved.name)
    train(config, run.path, quiet=True)
    assert (run.step_folder(12) / WEIGHTS).read_bytes() == whole


def test_a_missing_checkpoint_stops_a_run_and_the_advice_helps(tmp_path: Path, tiny_config: MakeConfig) -> None:
    config, run = tiny_config(tmp_path, max_steps=12, keep_last=3, validate_every=100), RunFolder(tmp_path / "run")
    train(config, run.path, quiet=True)
    shutil.rmtree(run.step_folder(8))
    with pytest.raises(
        UserError, match=r"names step-00000008, which is missing.* step 12, .* move checkpoints.json out"
    ):
        train(config, run.path, quiet=True)
    run.index_path.unlink()
    assert train(config, run.path, quiet=True).step == 12
    for step in (4, 12):
        (run.step_folder(step) / WEIGHTS).write_bytes(b"")
    with pytest.raises(UserError, match=r"copy it again, or start again with --fresh"):
        train(config, run.path, quiet=True)
