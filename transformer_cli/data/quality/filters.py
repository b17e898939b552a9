"""`data.filters`: training pairs that are left out, by what is wrong with them. No torch.

The lines are judged once for a process, when they are first read: an encoded corpus in the cache needs none of it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_cli.config import DataConfig
from transformer_cli.data.corpora import Corpus
from transformer_cli.data.encoded import LinkedCorpus
from transformer_cli.data.quality.judge import OVERLAPS, Bounds, judge_corpus

RULES = 3  # raised whenever the same corpus would be judged otherwise


class Filters:
    """Which lines of a corpus stay."""

    def __init__(
        self,
        corpus: Corpus,
        kinds: Mapping[str, float | None],
        data: DataConfig,
        others: Mapping[str, Corpus],
        *,
        seed: int = 1,
        progress: bool = False,
    ) -> None:
        """kinds: `DataConfig.filters_of` the source; others: valid and test, for the filters that compare with them."""
        self.corpus, self.data, self.kinds = corpus, data, kinds
        self._others = {name: other for name, other in others.items() if OVERLAPS[name] in self.kinds}
        self._seed, self._progress = seed, progress
        self.notes: list[str] = []

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """Which lines stay: (N,)."""
        bounds = Bounds(self.data.max_length, self.kinds.get("length_ratio"))
        found = judge_corpus(
            self.corpus,
            bounds,
            others=self._others,
            seed=self._seed,
            workers=self.data.workers,
            progress=self._progress,
        )
        kept = np.ones(found.pairs, dtype=bool)
        counts = []
        for kind in self.kinds:
            lines = found.left_out(kind)
            kept[lines - 1] = False
            counts.append(f"{len(lines):,} {kind}")
        several = isinstance(self.data.train, list)  # whose filters may be their own
        which, where = ("filters", f" of {self.corpus.describe()}") if several else ("data.filters", "")
        left_out = f"{found.pairs - kept.sum():,} of {found.pairs:,} pairs{where}"
        self.notes = [f"{which} leave out {left_out}: {', '.join(counts)}"]
        return kept

    def select(self, corpus: "Corpus | LinkedCorpus") -> "FilteredCorpus":
        """Return the pairs that stay, of the corpus that is judged or of another one of the same lines."""
        return FilteredCorpus(corpus, self)

    def content_hash(self) -> str:
        """Return a hash of what is filtered, and how."""
        others = {name: other.content_hash() for name, other in self._others.items()}
        parts = [RULES, dict(self.kinds), self.data.max_length, self._seed, self.corpus.content_hash(), others]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class FilteredCorpus:
    """The pairs that filters leave, of the corpus that they judge or of another one of the same lines."""

    def __init__(self, corpus: "Corpus | LinkedCorpus", filters: Filters) -> None:
        self.corpus, self.filters = corpus, filters

    @property
    def notes(self) -> list[str]:
        """Return what the last whole pass dropped, and how many pairs the filters left out."""
        return [*self.corpus.notes, *self.filters.notes]

    def pairs(self) -> Iterator[Any]:
        """Yield what the corpus yields, with links if it has them."""
        for pair, stays in zip(self.corpus.pairs(), self.filters.kept, strict=True):
            if stays:
                yield pair

    def content_hash(self) -> str:
        """Return a hash of the corpus and of the filters."""
        return hashlib.sha256(
            f"filtered {self.corpus.content_hash()} {self.filters.content_hash()}".encode()
        ).hexdigest()

    def describe(self) -> str:
        """Return what the corpus is."""
        return self.corpus.describe()
