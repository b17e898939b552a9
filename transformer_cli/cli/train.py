"""`tfm train`: one call of `training.run.train`, and the exit code after a signal."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli.options import (
    ConfigFile,
    Device,
    Overrides,
    Quiet,
    RunOut,
    check_together,
    option,
    run_folder_path,
)


def train(
    context: typer.Context,
    config: ConfigFile,
    out: RunOut = None,
    overrides: Overrides = None,
    resume: Annotated[
        bool, option("--resume", "Continue the run in RUN; an error where there is nothing to continue.")
    ] = False,
    fresh: Annotated[bool, option("--fresh", "Start again; an existing RUN is renamed, never deleted.")] = False,
    dry_run: Annotated[
        bool,
        option("--dry-run", "Print sizes, memory, time and the first batch, then exit. RUN is not changed."),
    ] = False,
    profile: Annotated[
        Path | None,
        option(
            "--profile FILE",
            "Write a trace of updates 6 to 13 (.json or .json.gz), report what took longest, then continue training.",
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train a translator; continue RUN where it was interrupted.

    Builds the vocabulary first if RUN has none. The same command again continues a run; max_steps (unless the schedule
    is cosine), max_epochs, patience, keep_last, keep_best, average_last, average_best, save_every, max_skipped, workers
    and decoding.* may then differ. Ctrl-C (SIGINT) and SIGTERM save the state and leave with 130 and 143.

    \b
    tfm train configs/multi30k_de_en.yaml
    tfm train my.yaml --out checkpoints/trial --set training.max_steps=1000
    tfm train my.yaml --set model.preset=auto --dry-run
    """
    from transformer_cli.config import load_config

    check_together(context)
    settings = load_config(config, overrides or [])
    if dry_run:
        from transformer_cli.training import dry_run as rehearsal

        path, going_on = run_folder_path(config, out), True if resume else None
        for line in rehearsal.dry_run(settings, path, resume=going_on, fresh=fresh, device=device, quiet=quiet):
            print(line, flush=True)
        return

    from transformer_cli.training import run

    try:
        run.train(
            settings,
            run_folder_path(config, out),
            resume=True if resume else None,
            fresh=fresh,
            device=device,
            quiet=quiet,
            profile=profile,
        )
    except run.Interrupted as interrupted:
        raise typer.Exit(128 + interrupted.signal_number) from None
