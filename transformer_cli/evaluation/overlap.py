"""Which lines of a test set the training data has too. `tfm evaluate` scores a model without them.

The training data is read as a stream, by processes where there is much of it. No torch.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from transformer_cli.data.corpora import Corpus
from transformer_cli.data.held_out import open_trained
from transformer_cli.data.quality.repeats import KnownPairs, Mask, hash_pairs
from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import Evaluation, EvaluationSet, SubsetScore, subset_scores
from transformer_cli.processes import map_in_processes
from transformer_cli.text.lines import with_bar

if TYPE_CHECKING:
    from transformer_cli.decoding.loading import FoundModel

PART = 5_000  # pairs that a process takes at a time
FEW = 10  # parts that are faster without processes, which take a second to start

Pair = tuple[str, str]


@dataclass(frozen=True)
class Overlap:
    """Which lines of a test set the training data has too."""

    sentences: int  # of the test set
    lines: list[int]  # from 1
    unknown: str | None = None  # why nobody knows

    @property
    def rest(self) -> list[int]:
        """The lines that the training data does not have."""
        return sorted({*range(1, self.sentences + 1)} - {*self.lines})


def find_overlap(models: Sequence["FoundModel"], test_set: EvaluationSet, progress: bool = False) -> Overlap:
    """Compare a test set with what models were trained on. Where that cannot be read, the result says why."""
    sentences = len(test_set.sources)
    try:
        found = np.zeros(sentences, dtype=bool)
        for model in models:
            train = open_trained(model.config, model.folder, progress)
            workers = min(model.config.data.workers, os.cpu_count() or 1)
            found |= shared_lines(test_set, train, workers, progress)
    except (UserError, OSError) as error:
        return Overlap(sentences, [], str(error).split("; ")[0])
    return Overlap(sentences, (np.flatnonzero(found) + 1).tolist())


def scores_without(
    overlap: Overlap, evaluation: Evaluation, test_set: EvaluationSet, target_language: str
) -> list[SubsetScore]:
    """Return the scores of the lines that the training data does not have; none where there are none, or nobody knows.

    Raises as `corpus_scores` does.
    """
    if overlap.unknown is not None or not overlap.rest:
        return []
    if not overlap.lines:
        return [SubsetScore(**vars(one), by_chance=(one.score, one.score)) for one in evaluation.scores]
    metrics = [one.metric for one in evaluation.scores]
    return subset_scores(evaluation.translations, test_set.references, target_language, metrics, overlap.rest)


def shared_lines(test_set: EvaluationSet, train: Corpus, workers: int = 0, progress: bool = False) -> Mask:
    """Return which lines have a text in common with a training pair, on the same side: the source or any reference,
    exactly, normalized, or nearly. (N,)

    Pairs with an empty side are not trained on, and don't count. Raises `UserError` where the data cannot be read.
    """
    first, *others = test_set.references
    pairs = [*zip(test_set.sources, first, strict=True), *(("", text) for texts in others for text in texts)]
    prepare = partial(_prepare, KnownPairs(pairs))
    parts = _parts(with_bar(train.pairs(), "comparing with the training data", progress))
    few = [*islice(parts, FEW + 1)]
    many = workers > 1 and len(few) > FEW
    parts = chain(few, parts)
    found = np.zeros(len(pairs), dtype=bool)
    for some in map_in_processes(prepare, parts, workers) if many else map(prepare(0), parts):
        found |= some
    return np.asarray(found.reshape(len(test_set.references), -1).any(axis=0))


def _prepare(known: KnownPairs, number: int) -> "partial[Mask]":
    return partial(_found_by, known)


def _found_by(known: KnownPairs, part: Sequence[Pair]) -> Mask:
    return known.found_by(*hash_pairs(part))


def _parts(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    whole = (pair for pair in pairs if pair[0].strip() and pair[1].strip())
    while part := [*islice(whole, PART)]:
        yield part
