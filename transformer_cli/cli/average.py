"""`tfm average`: one model from the mean of several checkpoints' weights."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli.options import QUIET, option
from transformer_cli.cli.streams import note
from transformer_cli.errors import UserError


def average(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT", help="Checkpoint folders; or one run folder with --last.")
    ],
    out: Path = option("--out MODEL", "The new model folder; it must not exist.", ...),
    last: int | None = option("--last N", "Average the last N checkpoints of a run.", min=1),
    quiet: bool = QUIET,
) -> None:
    """Average the weights of checkpoints into a new model.

    \b
    tfm average checkpoints/run/step-00009000 checkpoints/run/step-00010000 \\
        --out checkpoints/averaged
    tfm average checkpoints/run --last 5 --out checkpoints/last-five
    """
    from transformer_cli.storage.run_folder import RunFolder

    folders = choose_checkpoints(checkpoints, last)
    RunFolder(out).check_writable()

    from transformer_cli.training import averaging as checkpoint_average

    checkpoint_average.average(folders, out)
    if not quiet:
        note(f"averaged {', '.join(folder.name for folder in folders)} into {out}")


def choose_checkpoints(paths: Sequence[Path], last: int | None) -> list[Path]:
    """Return the checkpoint folders that the arguments mean; raise `UserError` where a run has fewer than `last`."""
    from transformer_cli.storage.run_folder import RunFolder

    if last is None:
        if len(paths) < 2:
            raise UserError(f"{paths[0]}: one checkpoint has no average; name several, or a run folder with --last N")
        return list(paths)
    if len(paths) > 1:
        raise UserError("--last: takes one run folder; name that alone, or the checkpoints without --last")
    if not os.path.isdir(paths[0]):
        raise UserError(f"{paths[0]}: is not a folder; give a run folder with --last")
    run = RunFolder(paths[0])
    steps = sorted(run.index().steps)
    if len(steps) < last:
        kept = f"{len(steps)} checkpoint{'s' * (len(steps) != 1)}"
        raise UserError(f"{paths[0]}: has {kept}, not {last}; lower --last, or train with a larger keep_last")
    return [run.step_folder(step) for step in steps[-last:]]
