"""Checkpoints written while training goes on: a copy in memory now; folder, index and pruning in a thread.

`session` saves through it. While a save is in flight, only its thread touches the checkpoints and their index.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.storage.checkpoint import TrainingState, save_training_state, save_weights, stored_weights
from transformer_cli.storage.publishing import reach, remove
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder, step_name
from transformer_cli.text.codec import Codecs
from transformer_cli.training.state import Progress


@dataclass(frozen=True)
class Snapshot:
    """A step's weights and training state, in the machine's memory, where no later step changes them."""

    step: int
    weights: dict[str, Tensor]
    state: TrainingState
    ranked: list[int]  # the validated steps, best first
    best_score: float  # of training.best_metric, turned so that higher is better


def take_snapshot(model: nn.Module, state: TrainingState, progress: Progress) -> Snapshot:
    """Copy the model and what `capture_state` gave; raises `UserError` where a weight is no number."""
    weights = _copy(stored_weights(model))
    for name, tensor in weights.items():
        # A sum is quicker than a look at each number, and finite only if all of them are.
        if tensor.is_floating_point() and not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise UserError(
                f"training diverged: the weights after step {progress.step:,} are no numbers ({name}), so they are not "
                "saved; lower the learning rate (training.factor or peak_learning_rate), warm up longer, or use "
                "precision bf16 or fp32, and begin anew with --fresh"
            )
    return Snapshot(
        step=progress.step,
        weights=weights,
        state=TrainingState(_copy(state.tensors), state.values),
        ranked=progress.ranked(),
        best_score=progress.best_score(),
    )


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


class Saver:
    """Writes the checkpoints of one session of a run, one at a time, and keeps their index."""

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

    def save(self, model: nn.Module, state: TrainingState, progress: Progress) -> None:
        """Copy the model and its state, and publish them in the background, after the save before has ended.

        Raises what that one raised, and `UserError` where the model is not finite.
        """
        self.wait()
        self._in_flight = self._thread.submit(self._write, take_snapshot(model, state, progress))

    def check(self) -> None:
        """Raise what a save in the background has raised by now (`OSError`); never wait."""
        if not self.is_busy():
            self.wait()

    def is_busy(self) -> bool:
        """Whether a save is in flight."""
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
        name = step_name(snapshot.step)

        def write(folder: Path) -> None:
            save_weights(folder, snapshot.weights, self.config, self.codecs)
            reach("writing")
            save_training_state(folder, snapshot.state)

        try:
            self.run.publish(name, write)
            index = self._index_with(snapshot)
            self.run.write_index(index)
        except OSError as error:
            if snapshot.step not in self._index.steps:
                remove(self.run.path / name)  # not named by the index, it would only take room
            last = "no step is" if self._index.last is None else f"step {self._index.last:,} is"
            advice = f"this step is not saved, {last}; mend that, and the same command goes on from there"
            raise OSError(error.errno, f"{error.strerror}; {advice}", error.filename) from error
        reach("after-index")
        self.run.prune(index.names())
        return index

    def _index_with(self, snapshot: Snapshot) -> CheckpointIndex:
        training = self.config.training
        steps = sorted({*self._index.steps, snapshot.step})
        best = [step for step in snapshot.ranked if step in steps][: training.keep_best]
        kept = sorted({*steps[-training.keep_last :], *best})
        index = CheckpointIndex(steps=kept, best=best, last=snapshot.step)
        # An average of an earlier end stays as long as no step is better.
        score = self._index.average_score
        if self._index.average is None or score is None or score <= snapshot.best_score:
            return index
        return replace(index, average=self._index.average, average_score=score)
