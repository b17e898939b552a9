"""The state of a run: all that its next update depends on, captured, saved while training continues, and restored.

A run resumed from it continues bit for bit: weights, optimizer moments, random generators, loss scale, place in the
plan. `run` restores a `Learner`, `session` saves it.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from transformer_cli.config import Config, TrainingConfig
from transformer_cli.data.loader import START, Position
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.checkpoint import TrainingState, save_training_state, save_weights, stored_weights
from transformer_cli.storage.publishing import reach, remove
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder, step_name
from transformer_cli.text.codec import Codecs
from transformer_cli.training.averaging import MovingAverage
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import AGAINST_DIVERGENCE, Update
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.schedules import decay

CPU_RANDOM, CUDA_RANDOM = "random.cpu", "random.cuda"  # of rank 0; the others' carry their rank behind a dot

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # Adam's and AdamW's state of a parameter

RandomState = dict[str, Tensor]


# --- progress -----------------------------------------------------------------------------------------------------


# Of a progress's values; the others came later, and older runs lack them.
NOTED_FIRST = {"step", "position", "seconds", "scores", "validations_without_best", "train_corpus", "valid_corpus"}


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0  # updates applied
    position: Position = START  # where the plan continues
    seconds: float = 0.0  # spent training, validation included, over all sessions
    scores: dict[int, float] = field(default_factory=dict)  # step → the best metric's value there
    lowest_loss: float | None = None  # of all validations
    validations_without_best: int = 0  # since the last with a new best score or the lowest loss
    decay_from: int | None = None  # the step after which the rate of schedule wsd falls, once patience is over
    validation_seconds: float = 0.0  # of `seconds`
    skipped: int = 0  # updates without a finite loss and gradient
    skipped_in_row: int = 0  # of them, since the last update that was applied
    halvings: int = 0  # batches halved because memory ran out
    train_corpus: str = ""  # `EncodedCorpus.key`: the plan is over these pairs and no others
    valid_corpus: str = ""  # the scores are over these pairs

    def count(self, update: Update) -> None:
        """Move to where an update has brought the run."""
        self.step, self.position = update.step, update.next_position
        skipped = not (update.applied or update.overflow)
        self.skipped += skipped
        self.skipped_in_row = 0 if update.applied else self.skipped_in_row + skipped
        self.halvings += update.halvings

    def judge(self, value: float, loss: float) -> bool:
        """Note what a validation of this step found; return whether its value of the best metric is a new best.

        A lower loss is progress too: a hard corpus has a BLEU of zero until attention finds the source.
        """
        better = value > self.best_score()
        lowest = math.isfinite(loss) and (self.lowest_loss is None or loss < self.lowest_loss)
        self.lowest_loss = loss if lowest else self.lowest_loss
        self.validations_without_best = 0 if better or lowest else self.validations_without_best + 1
        self.scores[self.step] = value
        return next(iter(self.ranked()), None) == self.step

    def finished_because(self, training: TrainingConfig) -> str | None:
        """Return why training is over, None while it continues: a pure function of the config and the progress."""
        if training.max_steps is not None and self.step >= training.max_steps:
            return f"max_steps = {training.max_steps:,} reached"
        if training.max_epochs is not None and self.position.epoch >= training.max_epochs:
            return f"max_epochs = {training.max_epochs:,} reached"
        if training.schedule == "wsd":
            ended = self.decay_from is not None and self.step >= decay(training, self.decay_from)[1]
        else:
            ended = self.is_impatient(training)
        return "validation no longer improved (patience)" if ended else None

    def is_impatient(self, training: TrainingConfig) -> bool:
        """Return whether the last `training.patience` validations brought no improvement."""
        return training.patience is not None and self.validations_without_best >= training.patience

    def ranked(self) -> list[int]:
        """Return the validated steps, best first, of equals the later, which has learned more where BLEU is still zero;
        never one whose score is not finite.
        """
        finite = [step for step, score in self.scores.items() if math.isfinite(score)]
        return sorted(finite, key=lambda step: (-self.scores[step], -step))

    def best_score(self) -> float:
        """Return the best of all validated steps' scores; -inf where there is none."""
        return max((self.scores[step] for step in self.ranked()), default=-math.inf)

    def to_values(self) -> dict[str, Any]:
        """Return it as JSON values, which `read_progress` reads; JSON knows text keys only."""
        return {**asdict(self), "position": list(self.position), "scores": {str(k): v for k, v in self.scores.items()}}


def read_progress(state: Mapping[str, Any]) -> Progress:
    """Return how far the run was, as its state's values say; raises `UserError` for what is not a run's progress."""
    try:
        values = state["progress"]
        missing = NOTED_FIRST - values.keys()
        progress = TypeAdapter(Progress).validate_python(values)
        if missing or not all(0 <= number < 1 << 62 for number in (progress.step, *progress.position)):
            raise ValueError(f"no {min(missing)}" if missing else "a step or place that no run reaches")
    except (KeyError, ValueError, AttributeError) as error:
        raise _unusable(error) from None
    return progress


def ranks_of(state: Mapping[str, Any]) -> int:
    """Return how many processes trained; runs that were begun before this was noted had one."""
    count = state.get("ranks", 1)
    if not isinstance(count, int) or count < 1:
        raise _unusable(ValueError("a number of processes that cannot be"))
    return count


def _unusable(error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:100]
    return UserError(f"the training state does not fit the model ({reason}); start again with --fresh")


# --- capturing and restoring --------------------------------------------------------------------------------------


def capture_random() -> RandomState:
    """Return the state of this process's random generators."""
    state = {CPU_RANDOM: torch.get_rng_state()}
    if torch.cuda.is_available():
        state[CUDA_RANDOM] = torch.cuda.get_rng_state()
    return state


@dataclass
class Learner:
    """What learns, and all else that its next update depends on."""

    objective: TranslationObjective
    optimizer: torch.optim.Optimizer
    precision: Precision
    average: MovingAverage
    progress: Progress = field(default_factory=Progress)

    @property
    def model(self) -> Transformer:
        """The model whose weights learn."""
        return self.objective.model

    def capture(self, randoms: Sequence[RandomState]) -> TrainingState:
        """Return the state after an update, by the parameters' names; tensors are not copied.

        `randoms`: of every rank, by rank.
        """
        tensors = {_of_rank(name, rank): tensor for rank, state in enumerate(randoms) for name, tensor in state.items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{key}.{name}"] = value
        tensors |= self.average.learned()
        scaler = self.precision.scaler.state_dict()
        values = {"progress": self.progress.to_values(), "scaler": scaler, "ranks": len(randoms)}
        return TrainingState(tensors, values)

    def restore(self, state: TrainingState, rank: int = 0) -> None:
        """Put back what `capture` took; the model has the checkpoint's weights already.

        A rank that the state does not know of keeps the random state that it has. Raises `UserError` where the state
        belongs to another model.
        """
        self.progress = read_progress(state.values)
        try:
            self._restore_moments(state.tensors)
            if rank < ranks_of(state.values):
                torch.set_rng_state(state.tensors[_of_rank(CPU_RANDOM, rank)])
                if _of_rank(CUDA_RANDOM, rank) in state.tensors and torch.cuda.is_available():
                    torch.cuda.set_rng_state(state.tensors[_of_rank(CUDA_RANDOM, rank)])
            if state.values["scaler"]:
                self.precision.scaler.load_state_dict(state.values["scaler"])
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise _unusable(error) from None
        self.average.restore(state.tensors)

    def _restore_moments(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            moments = {key: tensors[place] for key in MOMENTS if (place := f"optimizer.{key}.{name}") in tensors}
            for key, value in moments.items():
                if key != "step" and value.shape != parameter.shape:
                    raise ValueError(f"{key} of {name} has another shape")
                if key != "step" or parameter.device.type != "cpu":
                    moments[key] = value.to(parameter.device)
            if moments:
                self.optimizer.state[parameter] = moments


def _of_rank(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


# --- saving -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """A step's weights and training state, in the machine's memory, where no later step changes them."""

    weights: dict[str, Tensor]  # the moving average's, where there is one
    state: TrainingState
    progress: Progress


def take_snapshot(learner: Learner, randoms: Sequence[RandomState]) -> Snapshot:
    """Copy what is learned and its state; raises `UserError` where a weight is not finite."""
    progress, state = learner.progress, learner.capture(randoms)
    with learner.average.shown():
        weights = _copy(stored_weights(learner.model))
    for name, tensor in weights.items():
        # A sum is quicker than a look at each number, and finite only if all of them are.
        if tensor.is_floating_point() and not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise UserError(
                f"training diverged: the weights after step {progress.step:,} are not finite ({name}), so they are not "
                f"saved; {AGAINST_DIVERGENCE}, and start again with --fresh"
            )
    return Snapshot(weights, TrainingState(_copy(state.tensors), state.values), deepcopy(progress))


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


class Saver:
    """Writes the checkpoints of one session of a run, one at a time, and keeps their index.

    What is saved is copied in memory at once; folder, index and pruning follow in a thread. While a save is in flight,
    only its thread touches the checkpoints and their index.
    """

    def __init__(self, run: RunFolder, config: Config, codecs: Codecs, index: CheckpointIndex) -> None:
        self.run, self.config, self.codecs = run, config, codecs
        self._index = index
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tfm-save")
        self._in_flight: Future[CheckpointIndex] | None = None

    @property
    def index(self) -> CheckpointIndex:
        """What is saved, once nothing is in flight any more; raises what a failed save raised."""
        self.wait()
        return self._index

    def save(self, learner: Learner, randoms: Sequence[RandomState]) -> None:
        """Copy what is learned, and publish it in the background, after the save before has ended.

        Raises what that one raised, and `UserError` where the model is not finite.
        """
        self.wait()
        self._in_flight = self._thread.submit(self._write, take_snapshot(learner, randoms))

    def check(self) -> None:
        """Raise what a save in the background has raised by now (`OSError`); never wait."""
        if not self.is_busy():
            self.wait()

    def is_busy(self) -> bool:
        """Return whether a save is in flight."""
        return self._in_flight is not None and not self._in_flight.done()

    def wait(self) -> None:
        """Return when nothing is in flight; raise what the save raised, again each time it is asked."""
        if self._in_flight is not None:
            self._index = self._in_flight.result()
            self._in_flight = None

    def change_index(self, **entries: Any) -> None:
        """Change entries of the index, on the disk too, once nothing is in flight."""
        index = replace(self.index, **entries)
        self.run.write_index(index)
        self._index = index

    def close(self) -> None:
        """Wait for the save in flight, whatever becomes of it."""
        self._thread.shutdown()

    def _write(self, snapshot: Snapshot) -> CheckpointIndex:
        """Publish the checkpoint, name it in the index, drop those no longer kept. Runs in the thread."""
        name = step_name(snapshot.progress.step)

        def write(folder: Path) -> None:
            save_weights(folder, snapshot.weights, self.config, self.codecs)
            reach("writing")
            save_training_state(folder, snapshot.state)

        try:
            self.run.publish(name, write)
            index = self._index_with(snapshot)
            self.run.write_index(index)
        except OSError as error:
            if snapshot.progress.step not in self._index.steps:
                remove(self.run.path / name)  # not named by the index, it would only take room
            last = "no step is" if self._index.last is None else f"step {self._index.last:,} is"
            advice = f"this step is not saved, {last}; fix that, and the same command continues from there"
            raise OSError(error.errno, f"{error.strerror}; {advice}", error.filename) from error
        reach("after-index")
        self.run.prune()
        return index

    def _index_with(self, snapshot: Snapshot) -> CheckpointIndex:
        training = self.config.training
        steps = sorted({*self._index.steps, snapshot.progress.step})
        best = [step for step in snapshot.progress.ranked() if step in steps][: training.keep_best]
        kept = sorted({*steps[-training.keep_last :], *best})
        index = CheckpointIndex(steps=kept, best=best, last=snapshot.progress.step)
        # An average of an earlier end stays as long as no step is better.
        score = self._index.average_score
        if self._index.average is None or score is None or score <= snapshot.progress.best_score():
            return index
        return replace(index, average=self._index.average, average_score=score)
