"""`tfm import`: a run folder from a Marian model that others trained."""

import os
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli.options import QUIET, option
from transformer_cli.cli.streams import note
from transformer_cli.errors import UserError


def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder, a zip, or a name on the Hugging Face Hub.")
    ],
    out: Path = option("--out MODEL", "The new run folder; it must not exist.", ...),
    source_language: str | None = option(
        "--source-language CODE", "What it translates from, such as de.  [default: what the model states]"
    ),
    target_language: str | None = option(
        "--target-language CODE", "What it translates into, such as en.  [default: what the model states]"
    ),
    quiet: bool = QUIET,
) -> None:
    """Make a run folder of a Marian model, such as those of OPUS-MT.

    \b
    tfm import opus-mt-de-en --out checkpoints/opus
    tfm translate checkpoints/opus "Ein Hund schläft."

    SOURCE is one of these:

    \b
    a folder   of transformers' MarianMTModel (config.json, its weights,
               source.spm, target.spm, vocab.json), or of Marian's own files
               (.npz, source.spm, target.spm, vocab.yml, decoder.yml)
    a zip      of the latter, as OPUS-MT releases its models
    a name     on the Hugging Face Hub, such as Helsinki-NLP/opus-mt-de-en,
               downloaded unless it is in the cache

    All is checked first; the folder appears whole, or not at all. The model can be translated with, judged, exported,
    and fine-tuned: set training.init_from to it.
    """
    from transformer_cli.storage.run_folder import RunFolder

    if os.path.lexists(out):
        raise UserError(f"{out}: exists already; name a new folder with --out")
    RunFolder(out).check_writable()

    from transformer_cli.importing.convert import convert
    from transformer_cli.importing.find import original

    with original(source) as found:
        config = convert(found, (source_language, target_language), out)
    if not quiet:
        licensed = config.data.license or "not stated by the model"
        note(f"imported {source} to {out}; license: {licensed}")
        if config.vocabulary.symbols:
            tags = config.vocabulary.symbols
            note(f"note: it translates into several languages; choose one with --tag, such as {tags[0]}")
