"""Where a run stands, and all that comes before its first update, for training and for a dry run alike.

`run` and `dry_run` ask in this order: `check_beforehand`, `find_beginning`, and, where something is left to do,
`make_session`. Nothing is written but the cache of encoded corpora.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from transformer_cli.checkpoint import load_training_state
from transformer_cli.config import Config, load_config
from transformer_cli.errors import UserError
from transformer_cli.evaluation.metrics import load_scorers
from transformer_cli.run_folder import CheckpointIndex, RunFolder
from transformer_cli.training.continuation import check_continuation, check_corpora, finished_because
from transformer_cli.training.distributed import ALONE, Ranks
from transformer_cli.training.fine_tuning import check_start
from transformer_cli.training.preparation import load_or_build_codecs, prepare_material
from transformer_cli.training.pretrained import check_vector_files
from transformer_cli.training.recorder import load_tensorboard
from transformer_cli.training.session import Session
from transformer_cli.training.state import Progress, read_progress


@dataclass(frozen=True)
class Beginning:
    """Where a run stands."""

    run: RunFolder
    config: Config  # its preset resolved
    goes_on: bool  # what is in the folder is gone on with; else nothing of it is read
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


def find_beginning(run: RunFolder, asked: Config, config: Config, goes_on: bool, resume: bool | None) -> Beginning:
    """Where the run stands; `asked` is the config before its preset was resolved.

    `resume` True: there must be something to go on with. Raises `UserError` also where the config may not go on with
    what is there.
    """
    index, progress, notes = CheckpointIndex(), Progress(), []
    if goes_on:
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
    return Beginning(run, config, goes_on, index, progress, finished, notes)


def make_session(
    beginning: Beginning, device: torch.device, quiet: bool, ranks: Ranks = ALONE, trace: Path | None = None
) -> tuple[Session, list[str]]:
    """What trains from there on, and lines to show beside its own.

    Raises `UserError` for whatever is wrong with the data.
    """
    run, config, index = beginning.run, beginning.config, beginning.index
    if index.last is None:
        check_vector_files(config)
    codecs = load_or_build_codecs(config, run if beginning.goes_on else None, index.last, progress=not quiet)
    material = prepare_material(config, *codecs, progress=not quiet, ranks=ranks.count)
    changed = check_corpora(run, beginning.progress, material.train.key, material.valid.key)
    session = Session(run, config, material, index, device, quiet, ranks, trace)
    return session, [*beginning.notes, *changed]
