"""A training run from config to finished model: `tfm train` calls `train`, and so can any program.

It settles whether a run begins or goes on, and holds the folder meanwhile; `session` does the training.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from transformer_cli.config import Config, dump_config, load_config
from transformer_cli.config.presets import resolve_preset
from transformer_cli.data.corpora import count_pairs
from transformer_cli.errors import UserError
from transformer_cli.evaluation.metrics import load_scorers
from transformer_cli.storage.checkpoint import load_training_state
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder
from transformer_cli.training.continuation import check_continuation, check_corpora, finished_because
from transformer_cli.training.distributed import SINGLE_PROCESS, Ranks, join_ranks
from transformer_cli.training.fine_tuning import check_start
from transformer_cli.training.hardware import tuned_process
from transformer_cli.training.recorder import check_trace, load_tensorboard
from transformer_cli.training.session import Session
from transformer_cli.training.state import Progress, TrainingResult, read_progress, result_of
from transformer_cli.training.stopping import Interrupted, stop_on_signals
from transformer_cli.training.training_data import load_or_build_codecs, prepare_training_data
from transformer_cli.variants.embeddings import check_vector_files


@dataclass(frozen=True)
class RunState:
    """Where a run stands."""

    run: RunFolder
    config: Config  # its preset resolved
    resuming: bool  # what is in the folder is gone on with; else nothing of it is read
    index: CheckpointIndex
    progress: Progress
    finished: str | None  # why nothing is left to do
    notes: list[str]  # what the config changes, for the user to see


def check_beforehand(run: RunFolder, config: Config) -> None:
    """Raise `UserError` for what can be told at once, before time is spent on the data."""
    run.check_writable()
    run.check_own()
    check_start(config, run)
    load_scorers(("bleu", "chrf"), config.data.target_language)
    if config.training.tensorboard:
        load_tensorboard()


def find_run_state(run: RunFolder, asked: Config, config: Config, resuming: bool, resume: bool | None) -> RunState:
    """Where the run stands; `asked` is the config before its preset was resolved.

    `resume` True: there must be something to go on with. Raises `UserError` also where the config may not go on with
    what is there.
    """
    index, progress, notes = CheckpointIndex(), Progress(), []
    if resuming:
        index = run.index()
        if run.config_path.exists():
            trained = index.last is not None
            notes = check_continuation(run, load_config(run.config_path), config, has_checkpoint=trained, asked=asked)
        if index.last is not None:
            run.check_last(index)
            progress = read_progress(load_training_state(run.step_folder(index.last)))
    if resume and index.last is None:
        raise UserError(f"{run.path}: nothing to resume here; leave --resume out to begin")
    finished = finished_because(config, progress) if index.finished else None
    return RunState(run, config, resuming, index, progress, finished, notes)


def make_session(
    beginning: RunState, device: torch.device, quiet: bool, ranks: Ranks = SINGLE_PROCESS, trace: Path | None = None
) -> tuple[Session, list[str]]:
    """What trains from there on, and lines to show beside its own.

    Raises `UserError` for whatever is wrong with the data.
    """
    run, config, index = beginning.run, beginning.config, beginning.index
    if index.last is None:
        check_vector_files(config)
    codecs = load_or_build_codecs(config, run if beginning.resuming else None, index.last, progress=not quiet)
    material = prepare_training_data(config, *codecs, progress=not quiet, ranks=ranks.count)
    changed = check_corpora(run, beginning.progress, material.train.key, material.valid.key)
    session = Session(run, config, material, index, device, quiet, ranks, trace)
    return session, [*beginning.notes, *changed]


__all__ = ["Interrupted", "TrainingResult", "train"]


def train(
    config: Config,
    path: str | Path,
    *,
    resume: bool | None = None,
    fresh: bool = False,
    device: str = "auto",
    quiet: bool = False,
    profile: Path | None = None,
) -> TrainingResult:
    """Train in the run folder `path`, or go on there where a run was interrupted.

    `resume` True: there must be something to go on with. `fresh`: an old folder is renamed aside first. `profile`: the
    file for a trace of some updates. Raises `UserError` before anything is written, and `Interrupted` after SIGINT or
    SIGTERM, with the state saved.
    """
    run = RunFolder(path)
    with join_ranks(device) as (ranks, torch_device), ExitStack() as stack:
        quiet = quiet or not ranks.is_main
        stack.enter_context(tuned_process(torch_device))
        with ranks.main_process_first():
            if ranks.is_main:
                check_beforehand(run, config)
                if profile is not None:
                    check_trace(profile)
            asked = config
            config, preset = resolve_preset(asked, partial(count_pairs, progress=not quiet))
            for line in [] if quiet else preset:  # at once: what goes wrong later may come of these values
                print(line, file=sys.stderr)
            resuming = run.exists() and (not fresh or not ranks.is_main)
            if resuming and ranks.is_main:
                stack.enter_context(run.lock())  # from here on nobody else changes what is read
            beginning = find_run_state(run, asked, config, resuming, resume)
            if beginning.finished:
                _say_finished(beginning, beginning.finished, quiet)
                return result_of(run, config, beginning.progress, beginning.finished)
            session, notes = make_session(beginning, torch_device, quiet, ranks, profile)
            session.probe()
            if ranks.is_main:
                notes += _take_folder(run, fresh, resuming, stack)
                session.write_beginning()
        material = session.material
        if not ranks.agree((material.train.key, material.valid.key, beginning.index.last, dump_config(config))):
            raise UserError(
                f"{run.path}: not every machine finds the same data, vocabulary, config and checkpoint there; give all "
                "of them the same files, best by a shared file system (docs/scaling.md)"
            )
        stop = stack.enter_context(stop_on_signals())
        stack.callback(session.recorder.close)
        return session.run_to_end(stop, notes)


def _take_folder(run: RunFolder, fresh: bool, resuming: bool, stack: ExitStack) -> list[str]:
    """Make the run folder ready for writing and hold it; returns lines to show."""
    notes = []
    if fresh and run.exists():
        notes.append(f"renamed {run.path} to {run.set_aside()}")
    run.create()
    if not resuming:
        stack.enter_context(run.lock())
        if run.exists():
            raise UserError(f"{run.path}: another tfm began a run here meanwhile; choose another folder with --out")
    run.clean_temporaries()
    return notes


def _say_finished(beginning: RunState, finished: str, quiet: bool) -> None:
    if not quiet:
        way_on = _how_to_go_on(beginning.config)
        print(f"{beginning.run.path}: this run is finished ({finished}); {way_on}", file=sys.stderr)
        for note in beginning.notes:
            print(f"not applied, for nothing was left to do: {note}", file=sys.stderr)


def _how_to_go_on(config: Config) -> str:
    if config.training.schedule == "cosine":
        return "its cosine schedule has come down to zero: train anew with --fresh or in another folder"
    return "raise the limit to go on, or begin anew with --fresh"
