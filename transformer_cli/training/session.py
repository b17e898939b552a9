"""One process's part of a run: trains from its start or its last checkpoint to its end, a pause or an interruption.

`run` makes its parts. It decides when to validate, save and stop; the loop trains, the recorder shows, the saver keeps.
"""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from transformer_cli.config import Config
from transformer_cli.decoding.devices import processor
from transformer_cli.storage.run_folder import RunFolder, average_name
from transformer_cli.training.averaging import average_checkpoints, steps_to_average
from transformer_cli.training.distributed import Interrupted, Ranks
from transformer_cli.training.loop import train_steps
from transformer_cli.training.recorder import Profiling, Recorder
from transformer_cli.training.saving import Learner, Progress, Saver, capture_random
from transformer_cli.training.schedules import decay
from transformer_cli.training.training_data import TrainingData, describe_training
from transformer_cli.training.validation import Validation, Validator

LEAST_GAIN = 0.5  # of `Validation.source_gain`, for a model that translates: docs/training.md


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended, or stands where it paused."""

    run: Path  # what `tfm translate` takes
    finished: str | None  # why it ended; None: it paused
    step: int
    best_step: int | None
    best_value: float | None  # of training.best_metric
    seconds: float  # over all sessions


def result_of(run: RunFolder, config: Config, progress: Progress, finished: str | None) -> TrainingResult:
    """Return how a run that is finished ended; `finished` None: how it stands where it paused."""
    best = next(iter(progress.ranked()), None)
    value = None if best is None else progress.scores[best] * (-1 if config.training.best_metric == "loss" else 1)
    return TrainingResult(run.path, finished, progress.step, best, value, progress.seconds)


def describe_result(result: TrainingResult, config: Config, progress: Progress) -> Iterator[str]:
    """Yield lines to show at the end."""
    validating = progress.validation_seconds / max(result.seconds, 1e-9)
    minutes = f"{result.seconds / 60:,.1f} minutes, {validating:.1%} of them validation"
    if result.finished is None:
        yield f"paused       after {result.step:,} steps in {minutes}; the same command without --until continues"
    else:
        yield f"finished     {result.finished}; {result.step:,} steps in {minutes}"
    counts = {"skipped (not finite)": progress.skipped, "halved (out of memory)": progress.halvings}
    if any(counts.values()):
        yield "updates      " + ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    if result.best_step is not None:
        metric = config.training.best_metric
        yield f"best         step {result.best_step:,}, validation {metric} {result.best_value:.2f}"
    yield f'model        {result.run}: tfm translate {result.run} "…"'


@dataclass
class Session:
    """One process's part of a run, from its start or its last checkpoint to its end, a pause or an interruption."""

    data: TrainingData
    learner: Learner
    validator: Validator
    saver: Saver
    recorder: Recorder
    ranks: Ranks
    profiling: Profiling | None = None
    until: int | None = None  # the step to pause after, where the run is not finished before
    validation: Validation | None = None  # the last one

    def __post_init__(self) -> None:
        self.config, self.run, self.progress = self.data.config, self.saver.run, self.learner.progress

    def run_to_end(self, notes: list[str]) -> TrainingResult:
        """Train until the run is finished or is to pause (`TrainingResult`), or a signal comes (`Interrupted`)."""
        model, average, progress = self.learner.model, self.learner.average, self.progress
        self.ranks.copy_weights(model)  # equal already, unless machines differ
        with average.shown():
            self.ranks.copy_weights(model)
        for line in [*notes, *describe_training(self.data, model, self.progress.decay_from)]:
            self.recorder.say(line)
        where = f"resumed after step {progress.step:,}" if progress.step else "new"
        self.recorder.say(f"run          {self.run.path} ({where}) on {self._hardware()}")
        with closing(self.saver):
            self._finish_validation()
            # A run killed between its last update and its average has only the average left to do.
            finished = self._finished() or (None if self._pauses() else self._train())
            if finished is not None:
                self._average()
            if self.ranks.is_main:
                self.saver.wait()
                self.run.prune()  # a kill may have come after the last save and before this
                self.saver.change_index(finished=finished)
        result = result_of(self.run, self.config, progress, finished)
        for line in [*describe_result(result, self.config, progress), *self._doubts(finished)]:
            self.recorder.say(line)
        return result

    def _hardware(self) -> str:
        precision = self.learner.precision
        device = precision.device
        threads = torch.get_num_threads()
        on_cpu = "1 thread" if threads == 1 else f"{threads} threads"
        name = (
            torch.cuda.get_device_name(device)
            if device.type == "cuda"
            else ", ".join(filter(None, [processor(), on_cpu]))
        )
        alone = f"{device} ({name}), {precision.name}"
        return alone if self.ranks.count == 1 else f"{self.ranks.count} processes, each with {alone}"

    def _finished(self) -> str | None:
        return self.progress.finished_because(self.config.training)

    def _pauses(self) -> bool:
        return self.until is not None and self.progress.step >= self.until

    def _train(self) -> str | None:
        """Train update after update, validating and saving when it is time; return why it ended, None where it is only
        to pause."""
        training, progress, learner = self.config.training, self.progress, self.learner
        began, seconds_before = time.monotonic(), progress.seconds
        pin = learner.precision.device.type == "cuda"
        updates = self.data.updates(progress.position, self.config.data.workers, pin, self.ranks)
        updates = self.profiling.watch(updates) if self.profiling else updates
        steps = train_steps(
            learner.objective,
            learner.optimizer,
            learner.precision,
            training,
            updates,
            progress.step,
            self.ranks,
            progress.skipped_in_row,
            lambda: progress.decay_from,
        )
        steps = self.profiling.record(steps) if self.profiling else steps
        self.recorder.start(self._hardware())
        with closing(steps):
            for update in steps:
                self.saver.check()
                progress.count(update)
                progress.seconds = seconds_before + time.monotonic() - began
                if update.applied:
                    learner.average.update(update.step)
                self.recorder.update(update)
                is_best = self._is_due() and self._validate()
                progress.seconds = seconds_before + time.monotonic() - began
                finished = self._finished()
                save = update.applied and update.step % training.save_every == 0
                if save or is_best or finished or self._pauses() or update.signal:
                    self._save()
                if update.signal:
                    self._leave(update.signal)
                if finished or self._pauses():
                    return finished
        raise AssertionError("the plan never ends")

    def _finish_validation(self) -> None:
        """Validate the step that the run continues from, where an interruption kept it from being validated."""
        if self._is_due():
            self._validate()
            self._save()  # now with its score

    def _is_due(self) -> bool:
        """Return whether this step is to be validated, and is not yet."""
        step = self.progress.step
        wanted = self._finished() is not None or step % self.config.training.validate_every == 0
        return wanted and step > 0 and step not in self.progress.scores

    def _validate(self) -> bool:
        """Validate now; True if the step is among the best and must be kept. A signal meanwhile ends the session."""
        progress, training = self.progress, self.config.training
        began = time.monotonic()
        with self.learner.average.shown():
            validation = self.validator.validate()
        seconds = time.monotonic() - began
        progress.validation_seconds += seconds
        if validation is None:
            self._save()  # without its score: the next session starts with this validation
            self._leave()
        self.validation = validation
        is_best = progress.judge(validation.value(training.best_metric), validation.loss)
        self.recorder.validation(progress.step, validation, is_best, seconds)
        self._decay_if_impatient()
        return progress.step in progress.ranked()[: training.keep_best]

    def _decay_if_impatient(self) -> None:
        """Let the rate of schedule wsd fall from here on where nothing gets better any more at its peak."""
        training, progress = self.config.training, self.progress
        latest, _ = decay(training, None) if training.schedule == "wsd" else (0, 0)
        at_peak = progress.decay_from is None and training.warmup_steps <= progress.step < latest
        if at_peak and progress.is_impatient(training):
            progress.decay_from = progress.step
            last, zero = self.data.last_step(progress.step), decay(training, progress.step)[1]
            self.recorder.ends_at(last)
            self.recorder.say(
                f"no improvement in {training.patience:,} validations (patience): the learning rate falls to zero by "
                f"step {zero:,}" + f", but max_epochs ends training at step {last:,}" * (last < zero)
            )

    def _doubts(self, finished: str | None) -> Iterator[str]:
        """Yield what speaks against the finished model: that it might be better, that it hardly looks at the source."""
        validation, training, progress = self.validation, self.config.training, self.progress
        impatient = training.schedule == "cosine" or training.patience is None or progress.decay_from is not None
        if finished and progress.step == training.max_steps and not impatient:
            yield (
                f"limit        training.max_steps = {training.max_steps:,} ended this training before patience did: a "
                "higher one may give a better model (with --fresh, or in another folder)"
            )
        if finished and validation is not None and validation.source_gain < LEAST_GAIN:  # nan is not less
            yield (
                "warning      this model has not learned to translate: what it writes hardly follows from the source. "
                f"On validation, its perplexity is {validation.perplexity:.1f}{validation.other_source()}. "
                'docs/training.md, "When nothing is learned from the source", says what to do'
            )

    def _save(self) -> None:
        """Copy this step's checkpoint; it is published, named in the index and kept or dropped in the background."""
        began = time.monotonic()
        randoms = self.ranks.gather(capture_random())
        if self.ranks.is_main:
            self.saver.save(self.learner, randoms)
        self.recorder.leave_out(time.monotonic() - began)

    def _leave(self, signal_number: int | None = None) -> NoReturn:
        """End as the signal wants it; the state is saved, or being saved."""
        self.saver.wait()  # the others wait too: torchrun ends all when the first has ended
        signals = self.ranks.gather(signal_number or self.ranks.stop.signal_number)
        self.recorder.say(f"interrupted; saved step {self.progress.step:,}: the same command continues from there")
        raise Interrupted(next(filter(None, signals)))

    def _average(self) -> None:
        """Average the last or the best checkpoints, and keep the result where it beats every single one."""
        training, index = self.config.training, self.ranks.gather(self.saver.index)[0]  # only rank 0 knows it
        steps = steps_to_average(training, index)
        if not steps or index.last is None:
            return
        name = average_name(index.last)
        average_checkpoints(self.run, name, steps, self.learner.model, self.ranks)
        validation = self.validator.validate()
        if validation is None:
            self._leave()
        value = validation.value(training.best_metric)
        again = index.average == name  # after a kill between this and the end: the folder was just replaced
        earlier = -math.inf if again or index.average_score is None else index.average_score
        better = value > max(self.progress.best_score(), earlier)
        if self.ranks.is_main:
            if better:
                self.saver.change_index(average=name, average_score=value)
            elif again:
                self.saver.change_index(average=None, average_score=None)
            self.run.prune()
        which = "last" if training.average_last else "best"
        verdict = "better than every step: kept as the best" if better else "no better: dropped"
        self.recorder.say(
            f"average of the {which} {len(steps)} checkpoints: loss {validation.loss:.3f}  BLEU {validation.bleu:.2f}  "
            f"chrF {validation.chrf:.2f}  ({verdict})"
        )
