"""A training run from config to finished model: `tfm train` calls `train`, and so can any program.

It settles whether a run begins or goes on, and holds the folder meanwhile; `session` does the training.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from transformer_cli.checkpoint import load_training_state
from transformer_cli.config import Config, dump_config, load_config
from transformer_cli.errors import UserError
from transformer_cli.evaluation.metrics import load_scorers
from transformer_cli.presets import resolve_preset
from transformer_cli.run_folder import CheckpointIndex, RunFolder
from transformer_cli.training.continuation import check_continuation, check_corpora, finished_because
from transformer_cli.training.distributed import join_ranks
from transformer_cli.training.preparation import load_or_build_codecs, prepare_material
from transformer_cli.training.profiling import check_trace
from transformer_cli.training.recorder import load_tensorboard
from transformer_cli.training.result import TrainingResult, result_of
from transformer_cli.training.session import Session
from transformer_cli.training.state import Progress, read_progress
from transformer_cli.training.stopping import Interrupted, stop_on_signals
from transformer_cli.training.tuning import tuned_process

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
        quiet = quiet or not ranks.leads
        stack.enter_context(tuned_process(torch_device))
        with ranks.leader_first():
            if ranks.leads:
                check_beforehand(run, config)
                if profile is not None:
                    check_trace(profile)
            config, preset = resolve_preset(config, progress=not quiet)
            for line in [] if quiet else preset:  # at once: what goes wrong later may come of these values
                print(line, file=sys.stderr)
            goes_on = run.exists() and (not fresh or not ranks.leads)
            if goes_on and ranks.leads:
                stack.enter_context(run.lock())  # from here on nobody else changes what is read
            index, progress, notes = find_beginning(run, config) if goes_on else (CheckpointIndex(), Progress(), [])
            if resume and index.last is None:
                raise UserError(f"{run.path}: nothing to resume here; leave --resume out to begin")
            finished = finished_because(config, progress)
            if finished and index.finished:
                _say_finished(run, config, finished, notes, quiet)
                return result_of(run, config, progress, finished)
            codecs = load_or_build_codecs(config, run if goes_on else None, index.last, progress=not quiet)
            material = prepare_material(config, *codecs, progress=not quiet, ranks=ranks.count)
            notes += check_corpora(run, progress, material.train.key, material.valid.key)
            session = Session(run, config, material, index, torch_device, quiet, ranks, profile)
            session.probe()
            if ranks.leads:
                notes += _take_folder(run, fresh, goes_on, stack)
                session.write_beginning()
        if not ranks.agree((material.train.key, material.valid.key, index.last, dump_config(config))):
            raise UserError(
                f"{run.path}: not every machine finds the same data, vocabulary, config and checkpoint there; give all "
                "of them the same files, best by a shared file system (docs/scaling.md)"
            )
        stop = stack.enter_context(stop_on_signals())
        stack.callback(session.recorder.close)
        return session.run_to_end(stop, notes)


def check_beforehand(run: RunFolder, config: Config) -> None:
    """Raise `UserError` for what can be told at once, before time is spent on the data."""
    run.check_writable()
    run.check_own()
    load_scorers(("bleu", "chrf"), config.data.target_language)
    if config.training.tensorboard:
        load_tensorboard()


def _take_folder(run: RunFolder, fresh: bool, goes_on: bool, stack: ExitStack) -> list[str]:
    """Make the run folder ready for writing and hold it; returns lines to show."""
    notes = []
    if fresh and run.exists():
        notes.append(f"renamed {run.path} to {run.set_aside()}")
    run.create()
    if not goes_on:
        stack.enter_context(run.lock())
        if run.exists():
            raise UserError(f"{run.path}: another tfm began a run here meanwhile; choose another folder with --out")
    run.clean_temporaries()
    return notes


def _say_finished(run: RunFolder, config: Config, finished: str, notes: list[str], quiet: bool) -> None:
    if not quiet:
        print(f"{run.path}: this run is finished ({finished}); {_how_to_go_on(config)}", file=sys.stderr)
        for note in notes:
            print(f"not applied, for nothing was left to do: {note}", file=sys.stderr)


def find_beginning(run: RunFolder, config: Config) -> tuple[CheckpointIndex, Progress, list[str]]:
    """Where a run stands that has begun, and what the config changes; raises `UserError` where it may not."""
    index = run.index()
    notes = []
    if run.config_path.exists():
        notes = check_continuation(run, load_config(run.config_path), config, has_checkpoint=index.last is not None)
    if index.last is None:
        return index, Progress(), notes
    run.check_last(index)
    return index, read_progress(load_training_state(run.step_folder(index.last))), notes


def _how_to_go_on(config: Config) -> str:
    if config.training.schedule == "cosine":
        return "its cosine schedule has come down to zero: train anew with --fresh or in another folder"
    return "raise the limit to go on, or begin anew with --fresh"
