"""One process's part of a run: trains from a start or a checkpoint to the end or an interruption.

It decides when to validate, save and stop; the loop trains, the recorder tells, the run folder keeps.
`beginning` makes it.
"""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import torch

from transformer_cli.build import build_model, build_objective, set_target_ids
from transformer_cli.config import Config, dump_config
from transformer_cli.data.loader import Position, SubwordSampling, UpdateBatches, load_updates
from transformer_cli.storage.checkpoint import load_training_state, load_weights
from transformer_cli.storage.publishing import atomic_write
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder, average_name
from transformer_cli.training.averaging import MovingAverage, average_checkpoints, steps_to_average
from transformer_cli.training.continuation import finished_because
from transformer_cli.training.distributed import SINGLE_PROCESS, Ranks
from transformer_cli.training.fine_tuning import freeze_parts, load_start
from transformer_cli.training.hardware import Precision, compile_layers
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.memory import probe_memory
from transformer_cli.training.recorder import Profiling, Recorder
from transformer_cli.training.saving import Saver
from transformer_cli.training.state import (
    Progress,
    TrainingResult,
    capture_random,
    capture_state,
    describe_result,
    ranks_of,
    restore_state,
    result_of,
)
from transformer_cli.training.stopping import Interrupted, Stop
from transformer_cli.training.training_data import TrainingData, describe_training
from transformer_cli.training.validation import Validator
from transformer_cli.variants.embeddings import load_vectors


class Session:
    """One process's part of a run, from its start or its last checkpoint to its end or an interruption."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        material: TrainingData,
        index: CheckpointIndex,
        device: torch.device,
        quiet: bool,
        ranks: Ranks = SINGLE_PROCESS,
        trace: Path | None = None,
    ) -> None:
        """`trace`: where to write a profile of some updates."""
        self.run, self.config, self.material, self.ranks = run, config, material, ranks
        self.codecs, self.stop = material.codecs, Stop()
        torch.manual_seed(config.training.seed)
        sizes = len(self.codecs.source.vocabulary), len(self.codecs.target.vocabulary)
        self.model = build_model(config.model, *sizes)
        set_target_ids(self.model, self.codecs)
        if index.last is None and config.training.init_from is not None:
            load_start(config, self.model)
        self.notes = []
        if index.last is None:
            self.notes += load_vectors(config, self.model, self.codecs, progress=not quiet and ranks.is_main)
        self.notes += freeze_parts(self.model, config.training.freeze)
        self.model.to(device)
        if config.training.compile:
            compile_layers(self.model)
        self.objective = build_objective(self.model, config)
        self.optimizer = build_optimizer(self.objective, config.training)
        self.average = MovingAverage(self.model, config.training.ema_decay)
        self.precision = Precision(config.training.precision, device)
        self.progress = Progress()
        torch.manual_seed(ranks.seed(config.training.seed))  # each rank drops out for itself
        if index.last is not None:
            self._resume(run.step_folder(index.last))
        self.progress.train_corpus, self.progress.valid_corpus = material.train.key, material.valid.key
        self.validator = Validator(
            self.objective, self.codecs, config, material.valid, self.precision, ranks, self.stop
        )
        self.saver = Saver(run, config, self.codecs, index)
        self.recorder = Recorder(run, config.training, self.progress.step, self.total_steps(), quiet, ranks.is_main)
        self.profiling = Profiling(trace, device, self.recorder.say) if trace and ranks.is_main else None

    def probe(self) -> None:
        """Raise `UserError` where the memory does not suffice; changes nothing."""
        probe_memory(
            self.objective,
            self.precision,
            self.config.training,
            self.material.train,
            self.material.plan,
            self.sampling(),
        )

    def _resume(self, folder: Path) -> None:
        load_weights(folder, self.model)
        state = load_training_state(folder)
        scaler = self.precision.scaler
        self.progress = restore_state(state, self.model, self.optimizer, scaler, self.ranks.rank)
        self.average.restore(state.tensors)
        before, now = ranks_of(state), self.ranks.count
        if before != now:
            batches = self.config.training.accumulation
            self.notes.append(
                f"processes changed from {before} to {now}: an update takes {batches * now} batches, not "
                f"{batches * before}; training goes on at the same place, but not as it would have"
            )

    def run_to_end(self, stop: Stop, notes: list[str]) -> TrainingResult:
        """Train until the run is finished (`TrainingResult`) or a signal comes (`Interrupted`)."""
        self.stop = self.validator.stop = stop
        self.ranks.copy_weights(self.model)  # equal already, unless machines differ
        with self.average.shown():
            self.ranks.copy_weights(self.model)
        about = describe_training(self.config, self.material, self.model)
        for line in [*self.material.notes, *notes, *self.notes, *about]:
            self.recorder.say(line)
        where = f"resumed after step {self.progress.step:,}" if self.progress.step else "new"
        self.recorder.say(f"run          {self.run.path} ({where}) on {self._hardware()}")
        with closing(self.saver):
            self._finish_validation()
            # A run killed between its last update and its average has only the average left to do.
            finished = finished_because(self.config, self.progress) or self._train()
            self._average()
            if self.ranks.is_main:
                self.saver.change_index(finished=finished)
        result = result_of(self.run, self.config, self.progress, finished)
        for line in describe_result(result, self.config, self.progress):
            self.recorder.say(line)
        return result

    def _leave(self, signal_number: int | None = None) -> NoReturn:
        """The state is saved, or being saved: end as the signal wants it."""
        self.saver.wait()  # the others wait too: torchrun ends all when the first has ended
        signals = self.ranks.gather(signal_number or self.stop.signal_number)
        step = self.progress.step
        self.recorder.say(f"interrupted; saved step {step:,}: the same command goes on from there")
        raise Interrupted(next(filter(None, signals)))

    def write_beginning(self) -> None:
        """The config and vocabulary of the run, as they are now; metrics past the checkpoint go."""
        atomic_write(self.run.config_path, dump_config(self.config))
        if not self.run.vocab_path.exists():
            self.run.publish_vocabulary(self.codecs.save)
        progress = self.progress
        self.run.metrics.cut(progress.step, progress.skipped_in_row, validated=progress.step in progress.scores)

    def _finish_validation(self) -> None:
        """Validate the step that the run goes on from, where an interruption kept it from being validated."""
        if self._is_due():
            self._validate()
            self._save()  # now with its score

    def _is_due(self) -> bool:
        """Whether this step is to be validated, and is not yet."""
        progress = self.progress
        finished = finished_because(self.config, progress)
        wanted = finished is not None or progress.step % self.config.training.validate_every == 0
        return wanted and progress.step > 0 and progress.step not in progress.scores

    def _train(self) -> str:
        """Update after update, validating and saving when it is time; returns why it ended."""
        training, progress = self.config.training, self.progress
        began, seconds_before = time.monotonic(), progress.seconds
        updates = self.load_updates(progress.position, self.config.data.workers)
        updates = self.profiling.watch(updates) if self.profiling else updates
        steps = train_steps(
            self.objective,
            self.optimizer,
            self.precision,
            training,
            updates,
            progress.step,
            self.ranks,
            self.stop,
            progress.skipped_in_row,
        )
        steps = self.profiling.record(steps) if self.profiling else steps
        self.recorder.start()
        with closing(steps):
            for update in steps:
                self.saver.check()
                progress.count(update)
                progress.seconds = seconds_before + time.monotonic() - began
                if update.applied:
                    self.average.update(update.step)
                self.recorder.update(update)
                is_best = self._is_due() and self._validate()
                progress.seconds = seconds_before + time.monotonic() - began
                finished = finished_because(self.config, progress)
                save = update.applied and update.step % training.save_every == 0
                if save or is_best or finished or update.signal:
                    self._save()
                if update.signal:
                    self._leave(update.signal)
                if finished:
                    return finished
        raise AssertionError("the plan never ends")

    def _validate(self) -> bool:
        """Validate now; True if the step is among the best and must be kept. A signal meanwhile ends the session."""
        progress, training = self.progress, self.config.training
        began = time.monotonic()
        with self.average.shown():
            validation = self.validator.validate()
        seconds = time.monotonic() - began
        progress.validation_seconds += seconds
        if validation is None:
            self._save()  # without its score: the next session begins with this validation
            self._leave()
        value = validation.value(training.best_metric)
        is_best = value > progress.best_score()
        progress.validations_without_best = 0 if is_best else progress.validations_without_best + 1
        progress.scores[progress.step] = value
        self.recorder.validation(progress.step, validation, is_best, seconds)
        return progress.step in progress.ranked()[: training.keep_best]

    def _save(self) -> None:
        """Copy this step's checkpoint; it is published, named in the index and kept or dropped in the background."""
        began = time.monotonic()
        randoms = self.ranks.gather(capture_random())
        if self.ranks.is_main:
            state = capture_state(self.model, self.optimizer, self.precision.scaler, self.progress, randoms)
            state.tensors.update(self.average.learned())
            with self.average.shown():
                self.saver.save(self.model, state, self.progress)
        self.recorder.leave_out(time.monotonic() - began)

    def _average(self) -> None:
        """Average the last or the best checkpoints, and keep the result where it beats every single one."""
        training, index = self.config.training, self.ranks.gather(self.saver.index)[0]  # only rank 0 knows it
        steps = steps_to_average(training, index)
        if not steps or index.last is None:
            return
        name = average_name(index.last)
        average_checkpoints(self.run, name, steps, self.model, self.ranks)
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
            self.run.prune(self.saver.index.names())
        which = "last" if training.average_last else "best"
        verdict = "better than every step: kept as the best" if better else "no better: dropped"
        self.recorder.say(
            f"average of the {which} {len(steps)} checkpoints: loss {validation.loss:.3f}  BLEU {validation.bleu:.2f}  "
            f"chrF {validation.chrf:.2f}  ({verdict})"
        )

    def load_updates(self, start: Position, workers: int) -> Iterator[UpdateBatches]:
        """This process's share of the updates from a place in the plan on, read by so many processes beside it."""
        training = self.config.training
        return load_updates(
            self.material.train,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            accumulation=training.accumulation,
            start=start,
            rank=self.ranks.rank,
            ranks=self.ranks.count,
            workers=workers,
            pin=self.precision.device.type == "cuda",
            pad_to=training.pad_to,
            sampling=self.sampling(),
        )

    def total_steps(self) -> int:
        """Where training ends at the latest: max_steps, or the updates of max_epochs, whichever comes first."""
        training, epoch = self.config.training, self.material.updates_an_epoch
        limits = [training.max_steps, training.max_epochs and training.max_epochs * epoch]
        return min(limit for limit in limits if limit is not None)

    def sampling(self) -> SubwordSampling | None:
        """What drawing segmentations anew needs; None where they stay."""
        training = self.config.training
        if not training.subword_sampling:
            return None
        return SubwordSampling(self.codecs, training.subword_sampling, training.seed, self.config.data.max_length)

    def _hardware(self) -> str:
        device = self.precision.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
        alone = f"{device} ({name}), {self.precision.name}"
        return alone if self.ranks.count == 1 else f"{self.ranks.count} processes, each with {alone}"
