"""The vocabularies of a run, built before it or without it: `tfm build-vocab`. No torch."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from transformer_cli.config import Config, dump_config
from transformer_cli.config.presets import resolve_preset
from transformer_cli.data.corpora import count_pairs, open_corpus
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import atomic_write
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.text.build import build_codecs, describe


def build_vocabulary(
    config: Config,
    path: Path,
    *,
    fresh: bool = False,
    progress: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> list[list[str]]:
    """Build and save the vocabularies of a run; return the rows of the table of sizes and coverage.

    Nothing is written before all data was read. Raises `UserError` for bad data, and where the run has a vocabulary
    already and `fresh` is false: its checkpoints, or a copy of it elsewhere, may depend on it.
    note: called with each sentence for the user.
    """
    if config.training.init_from is not None:
        raise UserError(
            "training.init_from: a run has the vocabulary of the model that it starts from, so there is none to build; "
            "continue with tfm train"
        )
    run = RunFolder(path)
    run.check_writable()
    run.check_own()
    if not fresh and (run.vocab_path.exists() or run.index().steps):
        raise UserError(
            f"{path}: this run has a vocabulary already; name another folder with --out, or give --fresh to rename"
            " this one aside and build anew"
        )
    config, preset = resolve_preset(config, partial(count_pairs, progress=progress))
    for line in preset:
        note(line)
    languages = config.data.source_language, config.data.target_language
    train = open_corpus(config.data.train, *languages)
    valid = open_corpus(config.data.valid, *languages)
    for _ in valid.pairs():  # a fault in it shows before the long part
        pass
    codecs, notes = build_codecs(config, train.pairs, progress=progress)
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
    for line in [*train.notes, *valid.notes, *notes]:
        note(line)
    return [[str(cell) for cell in row] for row in rows]
