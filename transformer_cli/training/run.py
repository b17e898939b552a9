"""A training run from config to finished model: `tfm train` calls `train`, and so can any program.

It settles whether a run begins or goes on, and holds the folder meanwhile; `session` does the training.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from transformer_cli.config import Config, dump_config
from transformer_cli.errors import UserError
from transformer_cli.presets import resolve_preset
from transformer_cli.run_folder import RunFolder
from transformer_cli.training.beginning import Beginning, check_beforehand, find_beginning, make_session
from transformer_cli.training.distributed import join_ranks
from transformer_cli.training.profiling import check_trace
from transformer_cli.training.result import TrainingResult, result_of
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
            asked = config
            config, preset = resolve_preset(asked, progress=not quiet)
            for line in [] if quiet else preset:  # at once: what goes wrong later may come of these values
                print(line, file=sys.stderr)
            goes_on = run.exists() and (not fresh or not ranks.leads)
            if goes_on and ranks.leads:
                stack.enter_context(run.lock())  # from here on nobody else changes what is read
            beginning = find_beginning(run, asked, config, goes_on, resume)
            if beginning.finished:
                _say_finished(beginning, beginning.finished, quiet)
                return result_of(run, config, beginning.progress, beginning.finished)
            session, notes = make_session(beginning, torch_device, quiet, ranks, profile)
            session.probe()
            if ranks.leads:
                notes += _take_folder(run, fresh, goes_on, stack)
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


def _say_finished(beginning: Beginning, finished: str, quiet: bool) -> None:
    if not quiet:
        way_on = _how_to_go_on(beginning.config)
        print(f"{beginning.run.path}: this run is finished ({finished}); {way_on}", file=sys.stderr)
        for note in beginning.notes:
            print(f"not applied, for nothing was left to do: {note}", file=sys.stderr)


def _how_to_go_on(config: Config) -> str:
    if config.training.schedule == "cosine":
        return "its cosine schedule has come down to zero: train anew with --fresh or in another folder"
    return "raise the limit to go on, or begin anew with --fresh"
