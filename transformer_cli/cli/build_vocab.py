"""`tfm build-vocab`: trains tokenizers and counts vocabularies into a run folder, before or without training."""

from typing import Annotated

from transformer_cli.cli.options import ConfigFile, Overrides, Quiet, RunOut, option, run_folder_path
from transformer_cli.cli.streams import align, note


def build_vocab(
    config: ConfigFile,
    out: RunOut = None,
    overrides: Overrides = None,
    fresh: Annotated[
        bool,
        option("--fresh", "Build again where RUN has a vocabulary; the old RUN is renamed, never deleted."),
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
    from transformer_cli.training.start import build_vocabulary

    settings = load_config(config, overrides or [])
    run = run_folder_path(config, out)
    rows = build_vocabulary(settings, run, fresh=fresh, progress=not quiet, note=(lambda _: None) if quiet else note)
    print("\n".join(align(rows)))
    if not quiet:
        note(f"wrote {run / 'config.yaml'} and {run / 'vocab'}")
