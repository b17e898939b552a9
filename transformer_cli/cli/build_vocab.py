"""`tfm build-vocab`: trains tokenizers and counts vocabularies into a run folder, before or without training."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli.options import ConfigFile, Overrides, Quiet, RunOut, run_folder_path
from transformer_cli.cli.streams import align, note
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.config import Config


def build_vocab(
    config: ConfigFile,
    out: RunOut = None,
    overrides: Overrides = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Build anew where RUN has a vocabulary; the old RUN is renamed aside, never deleted."
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train the tokenizers and build the vocabularies.

    Writes RUN/config.yaml and RUN/vocab/, and prints sizes, coverage and the share of unknown tokens on the
    validation set. `tfm train` does the same by itself where RUN has no vocabulary.

    \b
    tfm build-vocab configs/multi30k_de_en.yaml
    tfm build-vocab my.yaml --set vocabulary.size=4000
    """
    from transformer_cli.config import load_config

    settings = load_config(config, overrides or [])
    run = run_folder_path(config, out)
    rows = build_vocabulary(settings, run, fresh=fresh, quiet=quiet)
    print("\n".join(align(rows)))
    if not quiet:
        note(f"wrote {run / 'config.yaml'} and {run / 'vocab'}")


def build_vocabulary(config: "Config", path: Path, *, fresh: bool = False, quiet: bool = False) -> list[list[str]]:
    """Build and save the vocabularies of a run; return the rows of the table of sizes and coverage.

    Nothing is written before all data was read. Raises `UserError` for bad data, and where the run has a vocabulary
    already and `fresh` is false: its checkpoints, or a copy of it elsewhere, may depend on it.
    """
    from transformer_cli.config import dump_config
    from transformer_cli.config.presets import resolve_preset
    from transformer_cli.data.corpora import count_pairs, open_corpus
    from transformer_cli.storage.publishing import atomic_write
    from transformer_cli.storage.run_folder import RunFolder
    from transformer_cli.text.build import build_codecs, describe

    if config.training.init_from is not None:
        raise UserError(
            "training.init_from: a run has the vocabulary of the model that it starts from, so there is none to build; "
            "go on with tfm train"
        )
    run = RunFolder(path)
    run.check_writable()
    run.check_own()
    if not fresh and (run.vocab_path.exists() or run.index().steps):
        raise UserError(
            f"{path}: this run has a vocabulary already; name another folder with --out, or give --fresh to rename"
            " this one aside and build anew"
        )
    config, preset = resolve_preset(config, partial(count_pairs, progress=not quiet))
    if not quiet:
        for line in preset:
            note(line)
    languages = config.data.source_language, config.data.target_language
    train = open_corpus(config.data.train, *languages)
    valid = open_corpus(config.data.valid, *languages)
    for _ in valid.pairs():  # a fault in it shows before the long part
        pass
    codecs, notes = build_codecs(config, train.pairs, progress=not quiet)
    rows = describe(codecs, valid.pairs())
    if fresh and run.exists():
        notes = [*notes, f"renamed {path} to {run.set_aside()}"]
    run.create()
    with run.lock():
        if not fresh and run.vocab_path.exists():
            raise UserError(f"{path}: another tfm built a vocabulary here meanwhile; choose another folder with --out")
        run.clean_temporaries()
        atomic_write(run.config_path, dump_config(config))
        run.publish_vocabulary(codecs.save)
    if not quiet:
        for line in [*train.notes, *valid.notes, *notes]:
            note(line)
    return [[str(cell) for cell in row] for row in rows]
