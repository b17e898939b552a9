"""The words of texts as the checks of a corpus compare them: without case and punctuation, as numbers. No torch."""

import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# In scripts that write no spaces between words, each character is a word.
_WORD = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+|\d+")
NUMBER = np.uint64(1)  # the last bit: whether a word is a number

Hashes = NDArray[np.uint64]


def words_of(text: str) -> list[str]:
    """Return the words of a text without case and punctuation."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.casefold())


@functools.lru_cache(1 << 17)
def hash_of(word: str) -> int:
    """Return 64 bits, the last of which says whether the word is a number."""
    return _hash(word) & ~1 | word.isdigit()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _joined(words: Sequence[str]) -> str:
    """Return words without what separates them, but for numbers: 2.5 is not 25."""
    text = "".join(words)
    return text if text.isalpha() else "".join(f" {word} " if word.isdigit() else word for word in words)


@dataclass(frozen=True, eq=False)
class Words:
    """The words of some texts, one after the other, as hashes."""

    hashes: Hashes
    counts: NDArray[np.int64]  # of each text
    texts: Hashes  # the same where texts are equal but for case, spaces and punctuation, also within words

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Words":
        """Return those of some texts."""
        texts = [*texts]
        words = [words_of(text) for text in texts]
        counts = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
        hashes = map(hash_of, itertools.chain.from_iterable(words))
        whole = (
            _hash(_joined(some) or text.strip()) for some, text in zip(words, texts, strict=True)
        )  # or signs alone
        return cls(
            np.fromiter(hashes, dtype=np.uint64, count=int(counts.sum())),
            counts,
            np.fromiter(whole, dtype=np.uint64, count=len(words)),
        )

    @functools.cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each text begins."""
        return np.cumsum(self.counts) - self.counts

    @functools.cached_property
    def owners(self) -> NDArray[np.int64]:
        """The text that each word stands in."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def __getitem__(self, texts: slice) -> "Words":
        first, last, _ = texts.indices(len(self.counts))
        ends = [0, *np.cumsum(self.counts).tolist()]
        return Words(self.hashes[ends[first] : ends[last]], self.counts[texts], self.texts[texts])
