"""How good a model is: translate a test set and score the result. Behind `tfm evaluate`; other programs may call it.

Inputs are checked before the first sentence is translated.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.config import Config
from transformer_cli.data.corpora import dropped, open_corpus
from transformer_cli.errors import UserError
from transformer_cli.evaluation.metrics import Score, corpus_scores, load_scorers
from transformer_cli.text.lines import read_lines

if TYPE_CHECKING:
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.translator import Translator

WINDOW = 2048  # sentences translated between two reports of progress


@dataclass(frozen=True)
class Evaluation:
    """The translations of a test set, their scores in the order of the metrics asked for, and the time it took."""

    translations: list[str]
    scores: list[Score]
    seconds: float  # translating alone


@dataclass(frozen=True)
class EvaluationSet:
    """Sentences with one or more sets of translations, aligned line by line."""

    sources: list[str]
    references: list[list[str]]
    notes: list[str]  # what was dropped while reading


def read_test_set(source: Path, references: Sequence[Path]) -> EvaluationSet:
    """Read a source file and its reference files (plain or .gz).

    Raises `UserError` where a file is empty, is not UTF-8, or a reference has another number of lines than the source.
    """
    notes: list[str] = []
    sources = _read(source, notes)
    if not sources:
        raise UserError(f"{source}: is empty; name a file with at least one line")
    sets = []
    for path in references:
        lines = _read(path, notes)
        if len(lines) != len(sources):
            raise UserError(
                f"{path}: has {len(lines):,} lines, but {source} has {len(sources):,}; give files aligned line by line"
            )
        sets.append(lines)
    return EvaluationSet(sources, sets, notes)


def configured_test_set(config: Config) -> EvaluationSet:
    """What `data.test` in a model's config names; `UserError` where it names nothing, or its data is faulty."""
    if config.data.test is None:
        raise UserError("the model's config names no data.test; give --source and --reference")
    corpus = open_corpus(config.data.test, config.data.source_language, config.data.target_language)
    pairs = list(corpus.pairs())
    return EvaluationSet([source for source, _ in pairs], [[target for _, target in pairs]], list(corpus.notes))


def _read(path: Path, notes: list[str]) -> list[str]:
    text = read_lines(path)
    lines = list(text)
    notes += dropped(text)
    return lines


def evaluate(
    translator: "Translator",
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    options: "SearchOptions | None" = None,
    report: Callable[[int], None] | None = None,
) -> Evaluation:
    """Translate `sources` and score them against one or more sets of references.

    options: how to search; None takes the model's own way. report: called with the number of sentences done.
    Raises `UserError` for an unknown metric, or a tokeniser that is not installed, before anything is translated.
    """
    language = translator.config.data.target_language
    load_scorers(metrics, language)
    began = time.monotonic()
    translations: list[str] = []
    for start in range(0, len(sources), WINDOW):
        window = translator.translate_batch(sources[start : start + WINDOW], options, alignments=False)
        translations += [translation.text for translation in window]
        if report is not None:
            report(len(translations))
    seconds = time.monotonic() - began
    return Evaluation(translations, corpus_scores(translations, references, language, metrics), seconds)
