"""Everything beside the weights that the next update depends on, to and from plain tensors and values.

A run resumed from it goes on bit for bit: optimiser moments, random generators, loss scale, place in the plan.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_cli.config import Config
from transformer_cli.data.loader import Position
from transformer_cli.errors import UserError
from transformer_cli.storage.checkpoint import TrainingState
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.loop import Update

CPU_RANDOM, CUDA_RANDOM = "random.cpu", "random.cuda"  # of rank 0; the others' carry their rank behind a dot

RandomState = dict[str, Tensor]


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0  # updates applied
    position: Position = field(default=Position(0, 0))  # where the plan goes on
    seconds: float = 0.0  # spent training, validation included, over all sessions
    scores: dict[int, float] = field(default_factory=dict)  # step → the best metric's value there
    validations_without_best: int = 0
    validation_seconds: float = 0.0  # of `seconds`
    skipped: int = 0  # updates without a finite loss and gradient
    skipped_in_row: int = 0  # of them, since the last update that was applied
    halvings: int = 0  # batches halved for want of memory
    train_corpus: str = ""  # `EncodedCorpus.key`: the plan is over these pairs and no others
    valid_corpus: str = ""  # the scores are over these pairs

    def count(self, update: Update) -> None:
        """Go on to where an update has brought the run."""
        self.step, self.position = update.step, update.next_position
        skipped = not (update.applied or update.overflow)
        self.skipped += skipped
        self.skipped_in_row = 0 if update.applied else self.skipped_in_row + skipped
        self.halvings += update.halvings

    def ranked(self) -> list[int]:
        """The validated steps, best first; of equals the earlier. One whose score is no number is never among them."""
        numbers = [step for step, score in self.scores.items() if math.isfinite(score)]
        return sorted(numbers, key=lambda step: (-self.scores[step], step))

    def best_score(self) -> float:
        """Of all validated steps; -inf where there is none."""
        return max((self.scores[step] for step in self.ranked()), default=-math.inf)

    def to_values(self) -> dict[str, Any]:
        """As JSON values; JSON knows text keys only."""
        return {**asdict(self), "position": list(self.position), "scores": {str(k): v for k, v in self.scores.items()}}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Progress":
        """The reverse of `to_values`; raises KeyError, TypeError, ValueError or OverflowError for anything else."""
        step, position = int(values["step"]), Position(*map(int, values["position"]))
        if not all(0 <= number < 1 << 62 for number in (step, *position)):
            raise ValueError("a step or place that no run reaches")
        return cls(
            step=step,
            position=position,
            seconds=float(values["seconds"]),
            scores={int(step): float(score) for step, score in values["scores"].items()},
            validations_without_best=int(values["validations_without_best"]),
            validation_seconds=float(values.get("validation_seconds", 0.0)),  # these came later than the others
            skipped=int(values.get("skipped", 0)),
            skipped_in_row=int(values.get("skipped_in_row", 0)),
            halvings=int(values.get("halvings", 0)),
            train_corpus=str(values["train_corpus"]),
            valid_corpus=str(values["valid_corpus"]),
        )


def capture_random() -> RandomState:
    """The state of this process's random generators."""
    state = {CPU_RANDOM: torch.get_rng_state()}
    if torch.cuda.is_available():
        state[CUDA_RANDOM] = torch.cuda.get_rng_state()
    return state


def capture_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    progress: Progress,
    randoms: Sequence[RandomState] | None = None,
) -> TrainingState:
    """The state after an update, by the parameters' names; tensors are not copied.

    `randoms`: of every rank, by rank; this process's alone where it is left out.
    """
    randoms = randoms or [capture_random()]
    tensors = {_of_rank(name, rank): tensor for rank, state in enumerate(randoms) for name, tensor in state.items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    values = {"progress": progress.to_values(), "scaler": scaler.state_dict(), "ranks": len(randoms)}
    return TrainingState(tensors, values)


def restore_state(
    state: TrainingState,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    rank: int = 0,
) -> Progress:
    """Put back what `capture_state` took; raises `UserError` where the state belongs to another model.

    A rank that the state does not know of keeps the random state that it has.
    """
    progress = read_progress(state)
    try:
        for name, parameter in model.named_parameters():
            moments = {key.split(".", 2)[1]: value for key, value in state.tensors.items() if _moment_of(key) == name}
            for key, value in moments.items():
                if key != "step" and value.shape != parameter.shape:
                    raise ValueError(f"{key} of {name} has another shape")
            if moments:
                optimizer.state[parameter] = {
                    key: value if key == "step" and parameter.device.type == "cpu" else value.to(parameter.device)
                    for key, value in moments.items()
                }
        if rank < ranks_of(state):
            torch.set_rng_state(state.tensors[_of_rank(CPU_RANDOM, rank)])
            if _of_rank(CUDA_RANDOM, rank) in state.tensors and torch.cuda.is_available():
                torch.cuda.set_rng_state(state.tensors[_of_rank(CUDA_RANDOM, rank)])
        if state.values["scaler"]:
            scaler.load_state_dict(state.values["scaler"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise _unusable(error) from None
    return progress


def read_progress(state: TrainingState) -> Progress:
    """How far the run was; raises `UserError` for anything that is no progress."""
    try:
        return Progress.from_values(state.values["progress"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _unusable(error) from None


def ranks_of(state: TrainingState) -> int:
    """How many processes trained; runs that were begun before this was noted had one."""
    count = state.values.get("ranks", 1)
    if not isinstance(count, int) or count < 1:
        raise _unusable(ValueError("a number of processes that cannot be"))
    return count


def _of_rank(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


def _unusable(error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:100]
    return UserError(f"the training state does not fit the model ({reason}); begin anew with --fresh")


def _moment_of(key: str) -> str | None:
    kind, _, rest = key.partition(".")
    return rest.partition(".")[2] if kind == "optimizer" else None


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended."""

    run: Path  # what `tfm translate` takes
    finished: str  # why it ended
    step: int
    best_step: int | None
    best_value: float | None  # of training.best_metric
    seconds: float  # over all sessions


def result_of(run: RunFolder, config: Config, progress: Progress, finished: str) -> TrainingResult:
    """How a run that is finished ended."""
    ranked = progress.ranked()
    best = ranked[0] if ranked else None
    value = None if best is None else progress.scores[best] * (-1 if config.training.best_metric == "loss" else 1)
    return TrainingResult(run.path, finished, progress.step, best, value, progress.seconds)


def describe_result(result: TrainingResult, config: Config, progress: Progress) -> Iterator[str]:
    """Lines to show at the end."""
    share = progress.validation_seconds / max(result.seconds, 1e-9)
    minutes = f"{result.seconds / 60:,.1f} minutes, {share:.1%} of them validation"
    yield f"finished     {result.finished}; {result.step:,} steps in {minutes}"
    counts = {"skipped (not finite)": progress.skipped, "halved for want of memory": progress.halvings}
    if any(counts.values()):
        yield "updates      " + ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    if result.best_step is not None:
        metric = config.training.best_metric
        yield f"best         step {result.best_step:,}, validation {metric} {result.best_value:.2f}"
    yield f'model        {result.run}: tfm translate {result.run} "…"'
