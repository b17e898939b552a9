"""How good a model is: translate a test set and score the result. Behind `tfm evaluate`; other programs may call it.

Inputs are checked before the first sentence is translated.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from transformer_cli.config import Config
from transformer_cli.data.corpora import COUNTED, dropped, open_corpus
from transformer_cli.errors import UserError
from transformer_cli.evaluation.metrics import Score, corpus_scores, load_scorers
from transformer_cli.text.lines import TextLines, read_lines

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
    files = [read_lines(path) for path in (source, *references)]
    lines: list[list[str]] = [[] for _ in files]
    for row in zip_longest(*files):  # side by side: a file that is much longer is never held
        if None in row:
            _refuse_unequal([source, *references], files, row, len(lines[0]))
        for held, line in zip(lines, row, strict=True):
            held.append(line)
    if not lines[0]:
        raise UserError(f"{source}: is empty; name a file with at least one line")
    return EvaluationSet(lines[0], lines[1:], [note for file in files for note in dropped(file)])


def _refuse_unequal(paths: Sequence[Path], files: Sequence[TextLines], row: Sequence[str | None], before: int) -> None:
    """Raise `UserError` for the first reference of another length; `row` is the first that lacks a line."""
    counts = [
        before if line is None else before + 1 + sum(1 for _ in islice(rest, COUNTED))
        for line, rest in zip(row, files, strict=True)
    ]
    if not counts[0]:
        raise UserError(f"{paths[0]}: is empty; name a file with at least one line")
    counted = [f"{count:,}" if count < COUNTED else f"over {COUNTED:,}" for count in counts]
    wrong = next(place for place, count in enumerate(counts) if count != counts[0])
    raise UserError(
        f"{paths[wrong]}: has {counted[wrong]} lines, but {paths[0]} has {counted[0]}; give files aligned line by line"
    )


def find_test_set(
    config: Config, source: Path | None, references: Sequence[Path] | None, split: Literal["test", "valid"]
) -> EvaluationSet:
    """Read the files that were given, else what `data.test` or `data.valid` in a model's config names.

    Raises `UserError` where there is none, or its data is faulty.
    """
    if (source is None) != (not references):
        raise UserError(
            f"--source and --reference belong together: give both, or neither for the config's data.{split}"
        )
    if source is not None and references:
        return read_test_set(source, references)
    named = config.data.test if split == "test" else config.data.valid
    if named is None:
        raise UserError("the model's config names no data.test; give --source and --reference")
    corpus = open_corpus(named, config.data.source_language, config.data.target_language)
    pairs = list(corpus.pairs())
    return EvaluationSet([source for source, _ in pairs], [[target for _, target in pairs]], list(corpus.notes))


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
    Raises `UserError` for an unknown metric, or a tokenizer that is not installed, before anything is translated.
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
