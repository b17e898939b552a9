"""The sentences that an exported model is checked with, and the check: the same translations as our own engine's.

Called by the exports; `tfm export --verify`, which is the default.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from transformer_cli.config import Config
from transformer_cli.data.corpora import open_corpus
from transformer_cli.errors import UserError
from transformer_cli.text.lines import read_lines

SENTENCES = 1000  # the most that are translated


def verification_sentences(config: Config, path: Path | None) -> list[str]:
    """The source sentences of a file (plain or .gz), else of `data.valid` in the model's config: the first SENTENCES.

    Lines without text are left out. Raises `UserError` where there are none, saying what to give.
    """
    try:
        lines: Iterable[str] = read_lines(path) if path is not None else _configured(config)
        found = [line for line in islice(lines, SENTENCES) if line.strip()]
    except UserError as error:
        if path is not None:
            raise
        raise UserError(
            f"data.valid of the model's config is needed to verify the export, but {error}; "
            "give source sentences with --sentences FILE, or leave the check out with --no-verify"
        ) from None
    if not found:
        raise UserError(f"{path or 'data.valid'}: holds no sentence to verify with; give others with --sentences FILE")
    return found


def _configured(config: Config) -> Iterator[str]:
    corpus = open_corpus(config.data.valid, config.data.source_language, config.data.target_language)
    return (source for source, _ in corpus.pairs())
