"""Several encoded corpora as one, each as often in an epoch as its weight says. Training makes it of `data.train`.

A weight of 2.5 takes every pair twice in each epoch, and a half of them, drawn anew for each, once more: a pure
function of seed and epoch, so that a run resumes anywhere.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from transformer_cli.data.encoded import EncodedCorpus, Ids


class Mixture:
    """Encoded corpora side by side, their N pairs numbered from 0. Picklable.

    A pair that comes c times in an epoch has the numbers n, n + N, …, n + (c - 1) · N there: `epoch` gives them, and
    every method takes them, so that what is drawn for a pair is drawn for each time that it comes.
    """

    def __init__(self, corpora: Sequence[EncodedCorpus], weights: Sequence[float]):
        assert len(corpora) == len(weights) > 0
        self.corpora, self.weights = list(corpora), list(weights)
        self._starts = np.cumsum([0, *map(len, corpora)]).tolist()
        self.has_texts = all(corpus.has_texts for corpus in corpora)
        self.has_links = False  # alignments are of one corpus
        self.left_out_empty = sum(corpus.left_out_empty for corpus in corpora)
        self.left_out_long = sum(corpus.left_out_long for corpus in corpora)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def key(self) -> str:
        """Return a hash of the corpora and their weights."""
        parts = [[corpus.key for corpus in self.corpora], self.weights]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def epoch(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the pairs of an epoch, rising; of each corpus there is one at least."""
        numbers = []
        for place, (corpus, weight) in enumerate(zip(self.corpora, self.weights, strict=True)):
            own = np.arange(len(corpus)) + self._starts[place]
            whole = int(weight)
            rest = round((weight - whole) * len(corpus)) or int(not whole)
            numbers += [own + copy * len(self) for copy in range(whole)]
            # A bit generator alone: unlike numpy's distributions it gives the same bits in every version.
            bits = np.random.PCG64(np.random.SeedSequence((seed, epoch, place)))
            drawn = np.argsort(bits.random_raw(len(corpus)), kind="stable")[:rest] if rest else own[:0]
            numbers.append(np.sort(own[drawn]) + whole * len(self))
        return np.sort(np.concatenate(numbers))

    def ids(self, pair: int) -> tuple[Ids, Ids]:
        """Return the source and target ids of a pair, without specials."""
        corpus, own = self._find(pair)
        return corpus.ids(own)

    def ids_of(self, pairs: npt.NDArray[np.integer[Any]]) -> list[tuple[Ids, Ids]]:
        """Return the same of many pairs, fetched together from each corpus."""
        own = pairs % len(self)
        places = np.searchsorted(self._starts, own, side="right") - 1
        found: dict[int, tuple[Ids, Ids]] = {}
        for place, corpus in enumerate(self.corpora):
            where = np.flatnonzero(places == place)
            found |= zip(where.tolist(), corpus.ids_of(own[where] - self._starts[place]), strict=True)
        return [found[place] for place in range(len(pairs))]

    def texts(self, pair: int) -> tuple[str, str]:
        """Return the source and target text of a pair, where the corpora were encoded with `keep_text`."""
        corpus, own = self._find(pair)
        return corpus.texts(own)

    def _find(self, pair: int) -> tuple[EncodedCorpus, int]:
        own = pair % len(self)
        place = bisect_right(self._starts, own) - 1
        return self.corpora[place], own - self._starts[place]

    @cached_property
    def source_lengths(self) -> npt.NDArray[np.int32]:
        """(N,) tokens of each source, `</s>` not counted."""
        return np.concatenate([corpus.source_lengths for corpus in self.corpora])

    @cached_property
    def target_lengths(self) -> npt.NDArray[np.int32]:
        """(N,) tokens of each target, `</s>` not counted."""
        return np.concatenate([corpus.target_lengths for corpus in self.corpora])
