"""What a corpus says more than once, and what it shares with another one: found by hashes of 64 bits. No torch.

Eight bytes for each text in each form stay in memory: five million pairs take 135 MB, and at most twice that while
they are compared.
"""

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_cli.data.quality.words import NUMBER, Hashes, Words

LEAST_OF_TEMPLATE = 10  # pairs of one form, with other numbers each
LEAST_WORDS = 5  # of a text that may be near another
LEAST_OWN = 3  # words of a text that has one meaning: "Yes." has many translations by nature
LEAST_SHARED = 0.4  # of the trigrams of words of a text are in another one that it is near to …
COMMON = 100  # … but for those that more texts have, which say nothing of them
MOST_COMPARED = 3  # texts that share the most trigrams with one, where one that is near is enough
NEAR = 0.85  # of the words of two texts, in order, are the same
CLEARLY = 16  # how much better sides fit, as `alignment` counts it, for a difference that is more than chance
PARTS = 16  # of all hashes, by one of their bytes, of which one at a time is put in order
SEEN_BITS = 20  # of a table that says whether a trigram may stand in any of the texts

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TextHashes:
    """Some pairs, in order, each text as the hash of its words; 0 in `template`: a pair without numbers."""

    source: Hashes
    target: Hashes
    template: Hashes  # the source, with one number for all
    case: NDArray[np.int8]  # which sides are in capitals, which in small letters
    brief: Mask  # (N, 2): which sides have fewer than `LEAST_OWN` words

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], sources: Words, targets: Words) -> "TextHashes":
        """Return those of some pairs, given with the words of their sides."""
        is_number = (sources.hashes & NUMBER).astype(bool)
        template = _of_texts(sources, np.where(is_number, NUMBER, sources.hashes))
        has_number = np.bincount(sources.owners[is_number], minlength=len(template)) > 0
        case = np.fromiter((3 * _case(source) + _case(target) for source, target in pairs), np.int8, len(pairs))
        brief = np.stack([sources.counts, targets.counts], axis=1) < LEAST_OWN
        return cls(sources.texts, targets.texts, template * has_number, case, brief)

    @classmethod
    def join(cls, parts: list["TextHashes"]) -> "TextHashes":
        """Return parts of a corpus as one, and empty their list."""
        parts = parts or [cls.of([], Words.of([]), Words.of([]))]
        columns = [[getattr(part, one.name) for part in parts] for one in fields(cls)]
        parts.clear()  # whose columns go one after the other, so that all of them are never there twice
        return cls(*(np.concatenate(columns.pop(0)) for _ in fields(cls)))

    def duplicate_pairs(self) -> Mask:
        """Return which pairs repeat another one, exactly or but for case, spaces and punctuation.

        The one that stays is the first whose case is the most usual in the corpus: a copy in capitals goes, wherever it
        stands.
        """
        ranks = np.unique(np.bincount(self.case, minlength=1), return_inverse=True)[1].astype(np.int8)
        usual = ranks[self.case]
        pairs = self.source * np.uint64(0x9E3779B97F4A7C15)
        pairs ^= self.target
        found = usual < _best_of_equal(pairs, usual)
        _set_apart(pairs, found)
        return found | came_before(pairs)

    def ambiguous(self, duplicates: Mask, fit: NDArray[np.int8]) -> tuple[Mask, Mask]:
        """Return which pairs, duplicates apart, share a side that is not brief with another one that stays, and which
        contradict it.

        fit: how much speaks for it that a pair's sides are translations of each other, as `alignment` counts it (N,).
        Pairs that fit clearly worse than another with the same side don't stay; of those left, the first stays. Those
        contradict that fit clearly worse, and rather as the sides of two different pairs do.
        """
        own = fit.astype(np.int16)
        worse, found = np.zeros((2, len(fit)), dtype=bool)
        for side in (0, 1):
            worse |= own < _best_of_equal(self._texts(side, duplicates), own) - CLEARLY
        for side in (0, 1):
            found |= came_before(self._texts(side, duplicates | worse))
        return found | worse, worse & (own < 0)

    def _texts(self, side: int, without: Mask) -> Hashes:
        """Return the texts of a side; brief ones, and those of some pairs, are like no other."""
        texts = (self.target if side else self.source).copy()
        _set_apart(texts, without | self.brief[:, side])
        return texts

    def templates(self, duplicates: Mask) -> Mask:
        """Return which pairs, duplicates apart, differ from many others by their numbers alone."""
        found = np.zeros(len(self.source), dtype=bool)
        rest = np.flatnonzero((self.template != 0) & ~duplicates)
        _, places, counts = np.unique(self.template[rest], return_inverse=True, return_counts=True)
        found[rest] = counts[places] >= LEAST_OF_TEMPLATE
        return found

    def shared_with(self, other: "TextHashes") -> Mask:
        """Return which pairs have a side, normalized, that is one of the other corpus' on the same side."""
        return np.isin(self.source, other.source) | np.isin(self.target, other.target)


class NearTexts:
    """Knows texts that are nearly one of those given, but for a word or two."""

    def __init__(self, words: Words) -> None:
        self._texts = _by_text(words)
        holders: defaultdict[int, list[int]] = defaultdict(list)
        for trigram, owner in zip(*(values.tolist() for values in _trigrams(words)), strict=True):
            holders[trigram].append(owner)
        self._holders = {trigram: texts for trigram, texts in holders.items() if len(texts) <= COMMON}
        self._seen = np.zeros(1 << SEEN_BITS, dtype=bool)
        self._seen[_places(np.array([*self._holders], dtype=np.uint64))] = True

    def find(self, words: Words) -> Mask:
        """Return which of some texts are near one of those given."""
        found = np.zeros(len(words.counts), dtype=bool)
        for line, near in self._near(words, MOST_COMPARED):
            found[line] = any(True for _ in near)
        return found

    def found_by(self, words: Words) -> Mask:
        """Return which of those given some texts are near."""
        found = np.zeros(len(self._texts), dtype=bool)
        for _, near in self._near(words, None):
            found[[*near]] = True
        return found

    def _near(self, words: Words, most: int | None) -> Iterator[tuple[int, Iterator[int]]]:
        """Yield each of some texts that may be near one of those given, with the numbers of those that it is near.

        most: how many it is compared with; None: all that share enough trigrams.
        """
        trigrams, owners = _trigrams(words)
        may_be = self._seen[_places(trigrams)]
        shared = np.bincount(owners[may_be], minlength=len(words.counts))
        found = (words.counts >= LEAST_WORDS) & (shared >= LEAST_SHARED * (words.counts - 2))
        last = np.cumsum((words.counts - 2).clip(min=0))  # trigrams
        for line in np.flatnonzero(found).tolist():
            start, count = words.starts[line], words.counts[line]
            text, its = words.hashes[start : start + count], trigrams[last[line] - count + 2 : last[line]]
            yield line, self._near_one(text.tolist(), its.tolist(), most)

    def _near_one(self, text: list[int], trigrams: list[int], most: int | None) -> Iterator[int]:
        shared = Counter(number for trigram in trigrams for number in self._holders.get(trigram, ()))
        for number, count in shared.most_common(most):
            if count < LEAST_SHARED * len(trigrams):
                return
            matcher = difflib.SequenceMatcher(None, text, self._texts[number], autojunk=False)
            if matcher.real_quick_ratio() >= NEAR and matcher.quick_ratio() >= NEAR and matcher.ratio() >= NEAR:
                yield number


class KnownPairs:
    """Some pairs, such as a test set's: others share a text with them where a side of both, normalized, is the same or
    nearly.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._hashes, sides = hash_pairs(pairs)
        self._near = [NearTexts(words) for words in sides]

    def find(self, hashes: TextHashes, sides: Sequence[Words]) -> Mask:
        """Return which of some pairs, given with the words of their sides, share a text with these."""
        found = hashes.shared_with(self._hashes)
        for words, near in zip(sides, self._near, strict=True):
            found |= near.find(words)
        return found

    def found_by(self, hashes: TextHashes, sides: Sequence[Words]) -> Mask:
        """Return which of these pairs share a text with some pairs, given with the words of their sides."""
        found = self._hashes.shared_with(hashes)
        for words, near in zip(sides, self._near, strict=True):
            found |= near.found_by(words)
        return found


def hash_pairs(pairs: Sequence[tuple[str, str]]) -> tuple[TextHashes, tuple[Words, Words]]:
    """Return the hashes of some pairs, and the words of their sides."""
    sources, targets = (Words.of(pair[side] for pair in pairs) for side in (0, 1))
    return TextHashes.of(pairs, sources, targets), (sources, targets)


def _by_text(words: Words) -> list[list[int]]:
    return [some.tolist() for some in np.split(words.hashes, words.starts[1:])]


def _trigrams(words: Words) -> tuple[Hashes, NDArray[np.int64]]:
    """Return a hash of each three words that follow each other in a text, and the text."""
    hashes, owners = words.hashes, words.owners
    mixed = hashes[:-2] * np.uint64(0x9E3779B97F4A7C15) + hashes[1:-1] * np.uint64(0xC2B2AE3D27D4EB4F) + hashes[2:]
    whole = owners[:-2] == owners[2:]
    return mixed[whole], owners[:-2][whole]


def _places(hashes: Hashes) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - SEEN_BITS)).astype(np.int64)


def _of_texts(words: Words, hashes: Hashes) -> Hashes:
    """Return a hash of each text's words, in order; 0 where there are none."""
    place = (np.arange(len(hashes)) - words.starts[words.owners]).astype(np.uint64)
    mixed = (hashes ^ place * np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(0x165667B19E3779F9)
    sums = np.zeros(len(words.counts), dtype=np.uint64)
    there = words.counts > 0
    if len(hashes):
        sums[there] = np.add.reduceat(mixed, words.starts[there])
    return sums


def _case(text: str) -> int:
    """Return 1 for a text in capitals, 2 for one in small letters, 0 for all others, and scripts without case."""
    return 1 if text.isupper() else 2 if text.islower() else 0


def _set_apart(hashes: Hashes, some: Mask) -> None:
    """Make some hashes different from all others: no hash is so small, but by chance."""
    hashes[some] = np.flatnonzero(some)


def _best_of_equal(hashes: Hashes, values: NDArray[Any]) -> NDArray[Any]:
    """Return for each place the highest of the values at places with the same hash."""
    best = values.copy()
    for order, again in _by_hash(hashes):
        first = np.flatnonzero(~again)
        if len(order):
            highest = np.maximum.reduceat(values[order], first)
            best[order] = np.repeat(highest, np.diff(first, append=len(order)))
    return best


def came_before(hashes: Hashes) -> Mask:
    """Return which values came before."""
    found = np.zeros(len(hashes), dtype=bool)
    for order, again in _by_hash(hashes):
        found[order] = again
    return found


def _by_hash(hashes: Hashes) -> Iterator[tuple[NDArray[np.int64], Mask]]:
    """Yield places, those of equal hashes beside each other and rising, and which have the hash of the one before.

    A part of the hashes at a time is put in order, so that little more memory than theirs is needed.
    """
    some = np.ascontiguousarray(hashes).view(np.uint8)[:: hashes.itemsize] % PARTS
    for part in range(PARTS):
        order = np.flatnonzero(some == part)
        own = hashes[order]
        by_hash = np.argsort(own, kind="stable")
        order, own = order[by_hash], own[by_hash]
        yield order, np.append(False, own[1:] == own[:-1])[: len(order)]
