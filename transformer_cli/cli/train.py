"""`tfm build-vocab` and `tfm train`: from a config to a run folder with a vocabulary, and to one with a model."""

from pathlib import Path

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import align, check_output, note


def build_vocab(
    config: opt.ConfigFile,
    out: Path | None = opt.RUN_OUT,
    overrides: list[str] | None = opt.OVERRIDES,
    fresh: bool = opt.option(
        "--fresh", "Build again where RUN has a vocabulary; the old RUN is renamed, never deleted.", False
    ),
    quiet: bool = opt.QUIET,
) -> None:
    """Train the tokenizers and build the vocabularies.

    \b
    tfm build-vocab configs/multi30k_de_en.yaml
    tfm build-vocab my.yaml --set vocabulary.size=4000

    Writes RUN/config.yaml and RUN/vocab/, and prints sizes, coverage and the share of unknown tokens on the
    validation set. `tfm train` does the same by itself where RUN has no vocabulary.
    """
    from transformer_cli.storage.origin import load_found_config
    from transformer_cli.training.start import build_vocabulary

    settings = load_found_config(config, overrides or [])
    run = opt.run_folder_path(config, out)
    rows = build_vocabulary(settings, run, fresh=fresh, progress=not quiet, note=(lambda _: None) if quiet else note)
    print("\n".join(align(rows)))
    if not quiet:
        note(f"wrote {run / 'config.yaml'} and {run / 'vocab'}")


def train(
    context: typer.Context,
    config: opt.ConfigFile,
    out: Path | None = opt.RUN_OUT,
    overrides: list[str] | None = opt.OVERRIDES,
    resume: bool = opt.option(
        "--resume", "Continue the run in RUN; an error where there is nothing to continue.", False
    ),
    fresh: bool = opt.option("--fresh", "Start again; an existing RUN is renamed, never deleted.", False),
    dry_run: bool = opt.option(
        "--dry-run", "Print sizes, memory, time and the first batch, then exit. RUN is not changed.", False
    ),
    profile: Path | None = opt.option(
        "--profile FILE",
        "Write a trace of updates 6 to 13 (.json or .json.gz), report what took longest, then continue training.",
    ),
    until: int | None = opt.option(
        "--until STEP", "Pause after STEP, rounded up to a multiple of training.validate_every; save the state.", min=1
    ),
    device: str = opt.DEVICE,
    quiet: bool = opt.QUIET,
) -> None:
    """Train a translator; continue RUN where it was interrupted.

    \b
    tfm train configs/multi30k_de_en.yaml
    tfm train my.yaml --out checkpoints/trial --set training.max_steps=1000
    tfm train my.yaml --set model.preset=auto --dry-run

    Builds the vocabulary first if RUN has none. The same command again continues a run; max_steps (not
    with cosine, nor with wsd once its rate falls), max_epochs, patience, keep_last, keep_best, average_last,
    average_best, save_every, max_skipped, workers and decoding.* may then differ. With --until it pauses on the way:
    the schedule still ends at max_steps, and the weights in the end are those of a run that never paused. Ctrl-C
    (SIGINT) and SIGTERM save the state and exit with 130 and 143.
    """
    from transformer_cli.storage.origin import load_found_config

    opt.check_together(context)
    settings = load_found_config(config, overrides or [])
    if profile is not None:
        check_output(profile, context.params, option="profile")
    if dry_run:
        from transformer_cli.training import dry_run as rehearsal

        path, going_on = opt.run_folder_path(config, out), True if resume else None
        for line in rehearsal.dry_run(settings, path, resume=going_on, fresh=fresh, device=device, quiet=quiet):
            print(line, flush=True)
        return

    from transformer_cli.training import run

    try:
        run.train(
            settings,
            opt.run_folder_path(config, out),
            resume=True if resume else None,
            fresh=fresh,
            device=device,
            quiet=quiet,
            profile=profile,
            until=until,
        )
    except run.Interrupted as interrupted:
        raise typer.Exit(128 + interrupted.signal_number) from None
