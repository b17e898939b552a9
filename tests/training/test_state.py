import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position, UpdateBatches
from transformer_cli.errors import UserError
from transformer_cli.storage.checkpoint import TrainingState
from transformer_cli.training.averaging import MovingAverage
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import Update, build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.saving import Learner, Progress, capture_random, read_progress

CONFIG = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01)
BATCH = Batch.from_ids([([5, 6, 7], [8, 9]), ([4], [5, 6, 7, 8])])

steps = st.integers(0, 10**9)
progresses = st.builds(
    Progress,
    step=steps,
    position=st.builds(Position, steps, steps),
    seconds=st.floats(0, 1e9),
    scores=st.dictionaries(steps, st.floats(-1e3, 1e3)),
    validations_without_best=steps,
    skipped=steps,
    skipped_in_row=steps,
)


@given(progresses)
def test_progress_survives_json(progress: Progress) -> None:
    values = json.loads(json.dumps(progress.to_values()))
    assert read_progress(TrainingState({}, {"progress": values})) == progress
    assert json.loads(json.dumps(values)) == read_progress(TrainingState({}, {"progress": values})).to_values()


def test_ranking_is_by_score_then_by_age() -> None:
    assert Progress(scores={10: 1.0, 20: 3.0, 30: 2.0, 40: 3.0}).ranked() == [20, 40, 30, 10]


def test_a_score_that_is_no_number_is_never_best() -> None:
    progress = Progress(scores={10: math.nan, 20: 1.0, 30: -math.inf, 40: 2.0, 50: math.inf})
    assert progress.ranked() == [40, 20]
    assert progress.best_score() == 2.0
    assert Progress(scores={10: math.nan}).best_score() == -math.inf


class Session:
    """A model with dropout and its optimiser, trained on one batch again and again."""

    def __init__(self, seed: int, precision: str = "fp32") -> None:
        torch.manual_seed(seed)
        shape = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, heads=2, d_ff=16, dropout=0.5)
        self.objective = TranslationObjective(build_model(shape, 12, 12), 0.1)
        self.optimizer = build_optimizer(self.objective, CONFIG)
        self.precision = Precision(precision, torch.device("cpu"))
        if precision == "fp16":  # a scale that overflows at first, and soon grows again
            self.precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)

    def train(self, updates: int) -> list[Update]:
        batches = (UpdateBatches(Position(0, number + 1), [BATCH]) for number in range(updates))
        return list(train_steps(self.objective, self.optimizer, self.precision, CONFIG, batches))

    @property
    def learner(self) -> Learner:
        average = MovingAverage(self.objective.model, None)
        return Learner(self.objective, self.optimizer, self.precision, average, Progress(step=3))

    def capture(self) -> TrainingState:
        return self.learner.capture([capture_random()])

    def restore(self, state: TrainingState) -> Progress:
        learner = self.learner
        learner.restore(state)
        return learner.progress


@pytest.mark.parametrize(("precision", "updates"), [("fp32", 3), ("fp16", 20)])
def test_a_restored_session_goes_on_bit_for_bit(precision: str, updates: int) -> None:
    first = Session(1, precision)
    began = first.train(updates)
    assert (began[0].overflow, began[-1].overflow) == (precision == "fp16", False)
    weights = {name: tensor.clone() for name, tensor in first.objective.state_dict().items()}
    state = first.capture()
    state = TrainingState({key: value.clone() for key, value in state.tensors.items()}, state.values)
    expected = first.train(updates)
    assert any(update.overflow for update in expected) == (precision == "fp16"), "the scale grows and falls again"

    second = Session(2, precision)
    second.objective.load_state_dict(weights)
    assert second.restore(state).step == 3
    assert [repr(update) for update in second.train(updates)] == [repr(update) for update in expected]
    assert second.precision.scaler.state_dict() == first.precision.scaler.state_dict()
    for name, tensor in first.objective.state_dict().items():
        assert torch.equal(tensor, second.objective.state_dict()[name]), name


@pytest.mark.parametrize("left_out", ["random.cpu", "optimizer"])
def test_without_any_part_of_the_state_it_goes_on_differently(left_out: str) -> None:
    """The test above can fail: each part of the state matters."""
    first = Session(seed=1)
    first.train(3)
    weights = {name: tensor.clone() for name, tensor in first.objective.state_dict().items()}
    state = first.capture()
    state = TrainingState({key: value.clone() for key, value in state.tensors.items()}, state.values)
    first.train(3)
    second = Session(seed=2)
    second.objective.load_state_dict(weights)
    if left_out == "random.cpu":
        state.tensors["random.cpu"] = torch.get_rng_state()
    kept = {key: value for key, value in state.tensors.items() if not key.startswith(left_out + ".")}
    second.restore(TrainingState(kept, state.values))
    second.train(3)
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
    ],
)
def test_garbage_is_no_progress(broken: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="does not fit"):
        read_progress(TrainingState({}, broken))


def test_a_state_of_another_model_is_refused() -> None:
    session = Session(seed=1)
    session.train(1)
    state = session.capture()
    key = next(key for key in state.tensors if key.startswith("optimizer.exp_avg."))
    with pytest.raises(UserError, match="another shape"):
        session.restore(TrainingState({**state.tensors, key: torch.zeros(3, 3, 3)}, state.values))
