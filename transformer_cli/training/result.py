"""How a run ended: what `training.run.train` returns, and the lines that say it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformer_cli.config import Config
from transformer_cli.run_folder import RunFolder
from transformer_cli.training.state import Progress


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
