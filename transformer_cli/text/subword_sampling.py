"""Random segmentations of a word, drawn with a generator that the caller seeds: unigram sampling and BPE-dropout.

Sentencepiece samples too, but from a generator that is one per thread and cannot be seeded for each sentence. `subword`
uses these; their distributions are sentencepiece's.
"""

import heapq
import math
import random
from bisect import bisect
from collections.abc import Mapping

CACHED_WORDS = 1 << 16
CACHED_STEPS = 1 << 18
LONGEST_CACHED = 32  # characters
UNKNOWN_PENALTY = 10.0  # below the lowest score, as in sentencepiece

Choices = tuple[list[float], list[int]]  # for an end: cumulative probabilities but the last, and starts


class UnigramSampler:
    """Draws a segmentation x with probability ∝ p(x)^α (Kudo 2018, "Subword Regularization", with l = ∞).

    Exact, by forward filtering and backward sampling. `scores` are log-probabilities of the pieces; a character that
    is not a piece may stand alone.
    """

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = dict(scores)
        self._longest = max(map(len, scores), default=1)
        self._unknown = min(scores.values(), default=0.0) - UNKNOWN_PENALTY
        self._tables: dict[tuple[str, float], list[Choices]] = {}

    def draw(self, word: str, strength: float, rng: random.Random) -> list[str]:
        """Draw a segmentation at α = `strength`: the smaller, the flatter."""
        key = (word, strength)
        table = self._tables.get(key)
        if table is None:
            table = self._table(word, strength)
            if len(word) <= LONGEST_CACHED:
                if len(self._tables) >= CACHED_WORDS:
                    self._tables.clear()
                self._tables[key] = table
        parts = []
        end = len(word)
        while end:
            cumulative, starts = table[end]
            start = starts[bisect(cumulative, rng.random())] if cumulative else starts[0]
            parts.append(word[start:end])
            end = start
        parts.reverse()
        return parts

    def best(self, word: str) -> list[str]:
        """Return the likeliest segmentation (Viterbi)."""
        total = [0.0]
        back = [0]
        for end in range(1, len(word) + 1):
            score, start = max((total[start] + score, start) for start, score in self._edges(word, end))
            total.append(score)
            back.append(start)
        parts = []
        end = len(word)
        while end:
            parts.append(word[back[end] : end])
            end = back[end]
        return parts[::-1]

    def _edges(self, word: str, end: int) -> list[tuple[int, float]]:
        """Return the starts of pieces that end at `end`, with their scores."""
        edges = []
        for start in range(max(0, end - self._longest), end):
            score = self._scores.get(word[start:end])
            if score is not None:
                edges.append((start, score))
        if not edges or edges[-1][0] != end - 1:
            edges.append((end - 1, self._unknown))
        return edges

    def _table(self, word: str, strength: float) -> list[Choices]:
        forward = [0.0]  # the log of the summed weights of all segmentations of word[:end]
        table: list[Choices] = [([], [])]
        for end in range(1, len(word) + 1):
            edges = self._edges(word, end)
            weights = [forward[start] + strength * score for start, score in edges]
            highest = max(weights)
            shares = [math.exp(weight - highest) for weight in weights]
            norm = sum(shares)
            forward.append(highest + math.log(norm))
            cumulative = []
            so_far = 0.0
            for share in shares[:-1]:
                so_far += share / norm
                cumulative.append(so_far)
            table.append((cumulative, [start for start, _ in edges]))
        return table


class _Step:
    """How far the merging of a word has come, and the merge that is next: accepting and dropping it lead further."""

    __slots__ = ("after_drop", "after_merge", "dropped", "parts", "place")

    def __init__(self, parts: tuple[str, ...], dropped: tuple[bool, ...], place: int | None) -> None:
        self.parts = parts
        self.dropped = dropped  # for every two neighbours: whether their merge was dropped
        self.place = place  # of the left part of the next merge; None: no merge is left
        self.after_merge: _Step | None = None
        self.after_drop: _Step | None = None


class BytePairSampler:
    """Byte-pair encoding in which each merge is dropped with a probability (Provilkov et al. 2020, "BPE-Dropout").

    As in sentencepiece, a dropped merge of two neighbours stays dropped while they remain neighbours. `scores`: the
    higher, the earlier a piece is merged. The steps of short words are kept, since common words come again and again.
    """

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = dict(scores)
        self._first_steps: dict[str, _Step] = {}
        self._kept_steps = 0

    def draw(self, word: str, strength: float, rng: random.Random) -> list[str]:
        """Draw a segmentation, each merge dropped with probability `strength`."""
        if len(word) > LONGEST_CACHED:
            return self._merge(word, strength, rng)
        step = self._first_steps.get(word) or self._first_step(word)
        while (place := step.place) is not None:
            if rng.random() < strength:
                step = step.after_drop or self._drop(step, place)
            else:
                step = step.after_merge or self._accept(step, place)
        return list(step.parts)

    def best(self, word: str) -> list[str]:
        """Return the segmentation without dropout."""
        return self._merge(word, 0.0, None)

    def _first_step(self, word: str) -> _Step:
        if self._kept_steps > CACHED_STEPS:
            self._first_steps.clear()
            self._kept_steps = 0
        step = self._step(tuple(word), (False,) * (len(word) - 1))
        self._first_steps[word] = step
        return step

    def _drop(self, step: _Step, place: int) -> _Step:
        step.after_drop = self._step(step.parts, (*step.dropped[:place], True, *step.dropped[place + 1 :]))
        return step.after_drop

    def _accept(self, step: _Step, place: int) -> _Step:
        parts = step.parts
        merged = (*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :])
        before = step.dropped[: max(0, place - 1)]
        after = step.dropped[place + 2 :]
        fresh = (False,) * (len(merged) - 1 - len(before) - len(after))  # the merged part has new neighbours
        step.after_merge = self._step(merged, before + fresh + after)
        return step.after_merge

    def _step(self, parts: tuple[str, ...], dropped: tuple[bool, ...]) -> _Step:
        """Return the step with the best merge that was not dropped: the highest score, the leftmost of equals."""
        self._kept_steps += 1
        place, highest = None, -math.inf
        for left, was_dropped in enumerate(dropped):
            score = None if was_dropped else self._scores.get(parts[left] + parts[left + 1])
            if score is not None and score > highest:
                place, highest = left, score
        return _Step(parts, dropped, place)

    def _merge(self, word: str, dropout: float, rng: random.Random | None) -> list[str]:
        """Do the same for words of any length, in n log n."""
        parts = list(word)
        end = len(parts)
        after = list(range(1, end + 1))  # the place of the next part
        before = list(range(-1, end - 1))
        agenda: list[tuple[float, int, int]] = []  # (-score, place, length of the merged part)

        def offer(left: int) -> None:
            if left >= 0 and after[left] < end:
                merged = parts[left] + parts[after[left]]
                if merged in self._scores:
                    heapq.heappush(agenda, (-self._scores[merged], left, len(merged)))

        for place in range(end):
            offer(place)
        while agenda:
            _, left, length = heapq.heappop(agenda)
            right = after[left]
            if not parts[left] or right >= end or len(parts[left]) + len(parts[right]) != length:
                continue  # one of the two was merged with another since
            if rng is not None and rng.random() < dropout:
                continue
            parts[left] += parts[right]
            parts[right] = ""
            after[left] = after[right]
            if after[left] < end:
                before[after[left]] = left
            offer(before[left])
            offer(left)
        return [part for part in parts if part]
