"""Minimum Bayes risk: of several translations, the one that is most like all of them (Kumar and Byrne 2004).

The utility is sentence chrF (as Eikema and Aziz 2022 weigh samples by their like). `Translator` calls it; no torch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from transformer_cli.decoding.translation import Candidate

ORDERS = range(1, 7)  # characters of an n-gram
BETA = 2  # how many times recall weighs what precision does


def by_utility(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates by their expected chrF, which becomes their `utility`, best first; of equals the first.

    The expectation runs over the candidates themselves, all alike: what is drawn twice counts twice. Scores stay the
    model's.
    """
    texts = list(dict.fromkeys(candidate.text for candidate in candidates))
    places = [texts.index(candidate.text) for candidate in candidates]
    mass = np.zeros(len(texts))
    np.add.at(mass, places, 1.0)
    utility = chrf_table(texts) @ (mass / mass.sum())  # (texts,)
    ranked = [
        replace(candidate, utility=float(utility[place])) for candidate, place in zip(candidates, places, strict=True)
    ]
    return sorted(ranked, key=lambda candidate: -(candidate.utility or 0.0))


def chrf_table(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return sacreBLEU's sentence chrF2, 0 to 1, of each text (row) with each (column) as its reference: (N, N).

    All pairs together: some milliseconds for 100 sentences, which n-gram by n-gram take half a second.
    """
    count = len(texts)
    precision, recall, orders = (np.zeros((count, count)) for _ in range(3))
    for order in ORDERS:
        grams = _counts(["".join(text.split()) for text in texts], order)  # (N, n-grams)
        totals = grams.sum(axis=1)  # (N,)
        matches = _overlaps(grams)
        both = (totals[:, None] > 0) & (totals[None, :] > 0)
        precision += matches / np.maximum(totals, 1)[:, None]
        recall += matches / np.maximum(totals, 1)[None, :]
        orders += both
    table = (1 + BETA**2) * precision * recall
    divisor = (BETA**2 * precision + recall) * np.maximum(orders, 1)  # both sums stand for means over the orders
    table = np.divide(table, divisor, out=np.zeros_like(table), where=divisor > 0)
    np.fill_diagonal(table, 1.0)  # of texts without a character too
    return table


def _counts(texts: Sequence[str], order: int) -> NDArray[np.int64]:
    """Return how often each text holds each n-gram of so many characters."""
    grams = [Counter(text[start : start + order] for start in range(len(text) - order + 1)) for text in texts]
    columns = {gram: column for column, gram in enumerate(dict.fromkeys(gram for counter in grams for gram in counter))}
    table = np.zeros((len(texts), len(columns)), dtype=np.int64)
    for row, counter in enumerate(grams):
        table[row, [columns[gram] for gram in counter]] = list(counter.values())
    return table


def _overlaps(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Σ min(a, b) over n-grams for every two texts: Σ over k of how many n-grams both hold k times or more."""
    shared = np.zeros((len(counts), len(counts)))
    most = np.sort(counts, axis=0)[-2] if len(counts) > 1 else counts[0]  # no two texts hold a gram oftener
    for times in range(1, int(most.max(initial=0)) + 1):
        enough = (counts[:, most >= times] >= times).astype(np.float32)
        shared += enough @ enough.T
    return shared
