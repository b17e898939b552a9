"""One process's part of a run: trains from a start or a checkpoint to the end or an interruption.

It decides when to validate, save and stop; the loop trains, the recorder tells, the run folder keeps. `run` makes it.
"""

import math
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from transformer_cli.checkpoint import load_training_state, load_weights, write_average
from transformer_cli.config import Config, dump_config
from transformer_cli.data.loader import SubwordSampling, load_batches
from transformer_cli.model.build import build_model
from transformer_cli.publishing import atomic_write
from transformer_cli.run_folder import CheckpointIndex, RunFolder, average_name
from transformer_cli.training.continuation import finished_because
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.precision import Precision
from transformer_cli.training.preparation import Material, describe_training
from transformer_cli.training.probe import probe_memory
from transformer_cli.training.recorder import Recorder
from transformer_cli.training.saving import Saver
from transformer_cli.training.state import Progress, capture_state, restore_state
from transformer_cli.training.stopping import Interrupted, Stop
from transformer_cli.training.validation import Validator


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended."""

    run: Path  # what `tfm translate` takes
    finished: str  # why it ended
    step: int
    best_step: int | None
    best_value: float | None  # of training.best_metric
    seconds: float  # over all sessions


class Session:
    """One process's part of a run, from its start or its last checkpoint to its end or an interruption."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        material: Material,
        index: CheckpointIndex,
        device: torch.device,
        quiet: bool,
    ) -> None:
        self.run, self.config, self.material = run, config, material
        self.codecs = material.codecs
        torch.manual_seed(config.training.seed)
        sizes = len(self.codecs.source.vocabulary), len(self.codecs.target.vocabulary)
        self.model = build_model(config.model, *sizes).to(device)
        self.objective = TranslationObjective(self.model, config.training.label_smoothing)
        self.optimizer = build_optimizer(self.objective, config.training)
        self.precision = Precision(config.training.precision, device)
        self.progress = Progress()
        if index.last is not None:
            folder = run.step_folder(index.last)
            load_weights(folder, self.model)
            state = load_training_state(folder)
            self.progress = restore_state(state, self.model, self.optimizer, self.precision.scaler)
        self.progress.train_corpus, self.progress.valid_corpus = material.train.key, material.valid.key
        self.validator = Validator(self.objective, self.codecs, config, material.valid, self.precision)
        self.saver = Saver(run, config, self.codecs, index)
        self.recorder = Recorder(run, config.training, self.progress.step, self._total_steps(), quiet)

    def probe(self) -> None:
        """Raise `UserError` where the memory does not suffice; changes nothing."""
        probe_memory(
            self.objective,
            self.precision,
            self.config.training,
            self.material.train,
            self.material.plan,
            self._sampling(),
        )

    def run_to_end(self, stop: Stop, notes: list[str]) -> TrainingResult:
        """Train until the run is finished (`TrainingResult`) or a signal comes (`Interrupted`)."""
        for line in [*self.material.notes, *notes, *describe_training(self.config, self.material, self.model)]:
            self.recorder.say(line)
        where = f"resumed after step {self.progress.step:,}" if self.progress.step else "new"
        self.recorder.say(f"run          {self.run.path} ({where}) on {self._hardware()}")
        self._write_beginning()
        with closing(self.saver):
            # A run killed between its last update and its average has only the average left to do.
            finished = finished_because(self.config, self.progress) or self._train(stop)
            self._leave_if_stopped(stop)
            self._average()
            self.saver.change_index(finished=finished)
        result = result_of(self.run, self.config, self.progress, finished)
        self._summarise(result)
        return result

    def _leave_if_stopped(self, stop: Stop) -> None:
        if stop.signal_number is not None:
            self.saver.wait()
            step = self.progress.step
            self.recorder.say(f"interrupted; saved step {step:,}: the same command goes on from there")
            raise Interrupted(stop.signal_number)

    def _write_beginning(self) -> None:
        """The config and vocabulary of the run, as they are now; metrics past the resumed step go."""
        atomic_write(self.run.config_path, dump_config(self.config))
        if not self.run.vocab_path.exists():
            self.run.publish_vocabulary(self.codecs.save)
        self.run.cut_metrics(self.progress.step)

    def _train(self, stop: Stop) -> str:
        """Update after update, validating and saving when it is time; returns why it ended."""
        training, progress = self.config.training, self.progress
        began, seconds_before = time.monotonic(), progress.seconds
        batches = load_batches(
            self.material.train,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            start=progress.position,
            workers=self.config.data.workers,
            pin=self.precision.device.type == "cuda",
            sampling=self._sampling(),
        )
        steps = train_steps(self.objective, self.optimizer, self.precision, training, batches, progress.step)
        self.recorder.start()
        with closing(steps):
            for update in steps:
                self.saver.check()
                progress.step, progress.position = update.step, update.next_position
                progress.seconds = seconds_before + time.monotonic() - began
                self.recorder.update(update)
                finished = finished_because(self.config, progress)
                is_best = False
                if update.step % training.validate_every == 0 or finished:
                    is_best = self._validate()
                    finished = finished_because(self.config, progress)
                    progress.seconds = seconds_before + time.monotonic() - began
                if update.step % training.save_every == 0 or is_best or finished or stop.signal_number:
                    self._save()
                if finished:
                    return finished
                self._leave_if_stopped(stop)
        raise AssertionError("the plan never ends")

    def _validate(self) -> bool:
        """Validate now; True if the step is among the best and must be kept."""
        progress, training = self.progress, self.config.training
        began = time.monotonic()
        validation = self.validator.validate()
        value = validation.value(training.best_metric)
        is_best = value > max(progress.scores.values(), default=-float("inf"))
        progress.validations_without_best = 0 if is_best else progress.validations_without_best + 1
        progress.scores[progress.step] = value
        self.recorder.validation(progress.step, validation, is_best, time.monotonic() - began)
        return progress.step in progress.ranked()[: training.keep_best]

    def _save(self) -> None:
        """Copy this step's checkpoint; it is published, named in the index and kept or dropped in the background."""
        began = time.monotonic()
        state = capture_state(self.model, self.optimizer, self.precision.scaler, self.progress)
        self.saver.save(self.model, state, self.progress)
        self.recorder.leave_out(time.monotonic() - began)

    def _average(self) -> None:
        """Average the last checkpoints, and keep the result where it beats every single one."""
        count, training, index = self.config.training.average_last, self.config.training, self.saver.index
        if count is None or len(index.steps) < 2:
            return
        steps = index.steps[-count:]
        name = average_name(steps[-1])
        folders = [self.run.step_folder(step) for step in steps]
        path = self.run.publish(name, lambda folder: write_average(folders, folder))
        load_weights(path, self.model)
        validation = self.validator.validate()
        value = validation.value(training.best_metric)
        better = value > max(*self.progress.scores.values(), index.average_score or -math.inf)
        if better:
            self.saver.change_index(average=name, average_score=value)
        self.run.prune(self.saver.index.names())
        verdict = "better than every step: kept as the best" if better else "no better: dropped"
        self.recorder.say(
            f"average of the last {len(steps)} checkpoints: loss {validation.loss:.3f}  BLEU {validation.bleu:.2f}  "
            f"chrF {validation.chrf:.2f}  ({verdict})"
        )

    def _summarise(self, result: TrainingResult) -> None:
        minutes = result.seconds / 60
        self.recorder.say(f"finished     {result.finished}; {result.step:,} steps in {minutes:,.1f} minutes")
        if result.best_step is not None:
            metric = self.config.training.best_metric
            self.recorder.say(f"best         step {result.best_step:,}, validation {metric} {result.best_value:.2f}")
        self.recorder.say(f'model        {self.run.path}: tfm translate {self.run.path} "…"')

    def _total_steps(self) -> int | None:
        """Where the bar ends: max_steps, or the updates of max_epochs, whichever comes first."""
        training, epoch = self.config.training, self.material.updates_an_epoch
        limits = [training.max_steps, training.max_epochs and training.max_epochs * epoch]
        return min((limit for limit in limits if limit is not None), default=None)

    def _sampling(self) -> SubwordSampling | None:
        training = self.config.training
        if not training.subword_sampling:
            return None
        return SubwordSampling(self.codecs, training.subword_sampling, training.seed, self.config.data.max_length)

    def _hardware(self) -> str:
        device = self.precision.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
        return f"{device} ({name}), {self.precision.name}"


def result_of(run: RunFolder, config: Config, progress: Progress, finished: str) -> TrainingResult:
    """How a run that is finished ended."""
    ranked = progress.ranked()
    best = ranked[0] if ranked else None
    value = None if best is None else progress.scores[best] * (-1 if config.training.best_metric == "loss" else 1)
    return TrainingResult(run.path, finished, progress.step, best, value, progress.seconds)
