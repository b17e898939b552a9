"""Random segmentations of a word, drawn with a generator that the caller seeds: unigram sampling and BPE-dropout.

Sentencepiece samples too, but from a generator that is one a thread and cannot be seeded for each sentence. `subword`
uses these; their distributions are sentencepiece's.
"""

import heapq
import math
import random
from bisect import bisect
from collections.abc import Mapping

CACHED_WORDS = 1 << 16
LONGEST_CACHED = 64  # characters
UNKNOWN_PENALTY = 10.0  # below the lowest score, as in sentencepiece

Choices = tuple[list[float], list[int]]  # for an end: cumulative probabilities but the last, and starts


class UnigramSampler:
    """Draws a segmentation x with probability ∝ p(x)^α (Kudo 2018, "Subword Regularization", with l = ∞).

    Exact, by forward filtering and backward sampling. `scores` are log-probabilities of the pieces; a character that
    is no piece may stand alone.
    """

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = dict(scores)
        self._longest = max(map(len, scores), default=1)
        self._unknown = min(scores.values(), default=0.0) - UNKNOWN_PENALTY
        self._tables: dict[tuple[str, float], list[Choices]] = {}

    def draw(self, word: str, strength: float, rng: random.Random) -> list[str]:
        """One segmentation at α = `strength`: the smaller, the flatter."""
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
        """The likeliest segmentation (Viterbi)."""
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
        """The starts of pieces that end at `end`, with their scores."""
        scores = self._scores
        edges = []
        for start in range(max(0, end - self._longest), end):
            score = scores.get(word[start:end])
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
            sofar = 0.0
            for share in shares[:-1]:
                sofar += share / norm
                cumulative.append(sofar)
            table.append((cumulative, [start for start, _ in edges]))
        return table


class BytePairSampler:
    """Byte-pair encoding in which each merge is dropped with a probability (Provilkov et al. 2020, "BPE-Dropout").

    As in sentencepiece, a dropped merge of two neighbours stays dropped while they remain neighbours. `scores`: the
    higher, the earlier a piece is merged.
    """

    def __init__(self, scores: Mapping[str, float]) -> None:
        self._scores = dict(scores)

    def draw(self, word: str, strength: float, rng: random.Random) -> list[str]:
        """One segmentation, each merge dropped with probability `strength`."""
        return self._merge(word, strength, rng)

    def best(self, word: str) -> list[str]:
        """The segmentation without dropout."""
        return self._merge(word, 0.0, None)

    def _merge(self, word: str, dropout: float, rng: random.Random | None) -> list[str]:
        parts = list(word)
        after = [*range(1, len(parts) + 1)]  # the place of the next part; len(parts): none
        before = [*range(-1, len(parts) - 1)]
        agenda: list[tuple[float, int, int]] = []  # (-score, place, length of the merged piece)

        def offer(left: int) -> None:
            right = after[left]
            if right < len(parts):
                merged = parts[left] + parts[right]
                score = self._scores.get(merged)
                if score is not None:
                    heapq.heappush(agenda, (-score, left, len(merged)))

        for place in range(len(parts) - 1):
            offer(place)
        while agenda:
            _, left, length = heapq.heappop(agenda)
            right = after[left]
            if not parts[left] or right >= len(parts) or len(parts[left]) + len(parts[right]) != length:
                continue  # one of the two has been merged with another since
            if rng is not None and rng.random() < dropout:
                continue
            parts[left] += parts[right]
            parts[right] = ""
            after[left] = after[right]
            if after[left] < len(parts):
                before[after[left]] = left
            if before[left] >= 0:
                offer(before[left])
            offer(left)
        return [part for part in parts if part]
