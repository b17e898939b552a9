"""Regions of a corpus whose sides are shifted against each other by some lines. No torch.

A line lost on one side shifts all that follows. Here each target word has a random vector, each source word the mean of
the target sentences that it stands beside (random indexing, Sahlgren 2005, across languages), and a sentence the sum of
its words': those of a pair point the same way, whatever the languages, and say how well its sides fit each other. A
path through all shifts, in which to change costs as much as some lines of evidence (Viterbi), finds where a region
begins and ends.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_cli.data.quality.words import Words

SHIFTS = range(-10, 11)  # lines; the target of a source line is that many lines after it
UNSHIFTED = -SHIFTS.start  # its place among them
SIZE = 64  # of a vector
PLACES = 1 << 16  # of words: the first bits of their hashes
AT_ONCE = 1000  # texts whose words' vectors are in memory
LEAST_SEEN = 8  # sentences that a word must stand in
SHRINK = 2  # whole texts of other words, added to a word's: vectors of rare words are short
NAT = 16  # what evidence is counted in: parts of a nat
MOST_EVIDENCE = 4.0  # of one line, in nats: a pair that is badly translated is no proof
CHANGE = 25.0  # nats that it costs to go to another shift
LOOK = 8  # lines …
SUSPICIOUS = 12.0  # … whose evidence together must be more than this for another shift, before the path is sought …
AROUND = 20 * LOOK  # … through them and so many lines before and after
AT_LEAST = 1 << 16  # lines that are judged together

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Region:
    """Lines whose translations stand some lines away."""

    first: int  # from 1
    last: int
    shift: int  # 1: line n's translation is in line n + 1 of the target


@dataclass(frozen=True, eq=False)
class AlignmentModel:
    """Vectors of the words of both sides, and how alike the sentences of a pair are."""

    source: Array  # (PLACES, SIZE)
    target: Array  # (PLACES, SIZE)
    mean: Array  # (SIZE,) of all target sentences
    alike: tuple[float, float]  # mean and standard deviation of the cosine of the sentences of a pair …
    unlike: tuple[float, float]  # … and of those of two pairs

    @classmethod
    def learn(cls, sources: Words, targets: Words, seed: int = 1) -> "AlignmentModel":
        """Learn from some pairs, most of which are translations of each other."""
        words = _places(sources)
        seen = np.bincount(_places(targets), minlength=PLACES)
        weight = np.sqrt(np.log(len(targets.counts) / np.maximum(seen, 1)).clip(min=0)) * (seen >= LEAST_SEEN)
        drawn = np.random.default_rng(seed).standard_normal((PLACES, SIZE), dtype=np.float32)
        table = drawn * weight.astype(np.float32)[:, None]
        vectors = _vectors(targets, table)
        mean = vectors.mean(axis=0)
        vectors = _unit(vectors - mean)
        beside = np.zeros((PLACES, SIZE), dtype=np.float32)
        order = np.argsort(words, kind="stable")
        places, starts, counts = np.unique(words[order], return_index=True, return_counts=True)
        if len(starts):
            texts = sources.owners[order]
            share = (1 / sources.counts[texts]).astype(np.float32)  # of its text: a long one counts no more than others
            beside_each = vectors[texts]
            beside_each *= share[:, None]
            sums = np.add.reduceat(beside_each, starts)
            weights = np.add.reduceat(share, starts) + SHRINK
            beside[places] = sums / weights[:, None] * (counts >= LEAST_SEEN)[:, None]
        ours = _vectors(sources, beside)
        alike, unlike = (ours * vectors).sum(axis=1), (ours * np.roll(vectors, len(vectors) // 2, axis=0)).sum(axis=1)
        return cls(beside, table, mean, _moments(alike), _moments(unlike))

    def evidence(self, sources: Words, targets: Words) -> NDArray[np.int8]:
        """Return how much each line speaks for each shift, in sixteenths of a nat: (N, shifts).

        0 beyond the edges, and where no word of a text is known.
        """
        ours, theirs = _vectors(sources, self.source), _vectors(targets, self.target)
        known = [np.abs(side).max(axis=1, initial=0) > 0 for side in (ours, theirs)]
        theirs = _unit(theirs - self.mean)
        lines = len(ours)
        found = np.zeros((lines, len(SHIFTS)), dtype=np.int8)
        for place, shift in enumerate(SHIFTS):
            start, end = max(0, -shift), min(lines, lines - shift)
            if start < end:
                cosine = (ours[start:end] * theirs[start + shift : end + shift]).sum(axis=1)
                ratio = _log_normal(cosine, *self.alike) - _log_normal(cosine, *self.unlike)
                ratio *= known[0][start:end] & known[1][start + shift : end + shift]
                found[start:end, place] = np.rint(NAT * ratio.clip(-MOST_EVIDENCE, MOST_EVIDENCE))
        return found


class ShiftedRegions:
    """Finds the regions of a corpus that are shifted, from the evidence of its lines, which it gets one part after the
    other: `regions`, all of them after `end`. Keeps what it has not judged yet, and how well the sides of each pair
    fit."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._fit: list[NDArray[np.int8]] = []
        self._waiting: list[NDArray[np.int8]] = []  # evidence, (lines, shifts) …
        self._start = 0  # … from this line on, counted from 0
        self._known = 0  # so many of these lines begin no group, or would have before
        self._lines, self._enough = 0, AT_LEAST  # how many wait, and how many are judged together

    def add(self, evidence: NDArray[np.int8]) -> None:
        """Take what `AlignmentModel.evidence` says of the next lines."""
        self._fit.append(evidence[:, UNSHIFTED].copy())
        self._waiting.append(evidence)
        self._lines += len(evidence)
        if self._lines >= self._enough:
            self._judge(is_end=False)

    def end(self) -> NDArray[np.int8]:
        """Judge what is left; return how well the sides of each pair fit, (N,)."""
        if self._waiting:
            self._judge(is_end=True)
        return np.concatenate([np.zeros(0, dtype=np.int8), *self._fit])

    def _judge(self, is_end: bool) -> None:
        """Find the regions in the lines that wait, but for those that the next lines have a say in."""
        evidence = np.concatenate(self._waiting)
        suspicious = _suspicious(evidence)
        suspicious = suspicious[suspicious >= self._known]
        groups = np.split(suspicious, np.flatnonzero(np.diff(suspicious) > 2 * AROUND) + 1) if len(suspicious) else []
        open_from = len(evidence) - LOOK
        if groups and not is_end and groups[-1][-1] >= open_from - 2 * AROUND:
            open_from = min(open_from, int(groups.pop()[0]))
        for group in groups:
            start = max(0, int(group[0]) - AROUND)
            part = evidence[start : int(group[-1]) + AROUND + 1].astype(np.float64) / NAT
            self.regions += _follow(part, self._start + start)
        kept = max(0, open_from - AROUND - LOOK)  # with what comes before the next group
        self._waiting, self._known = [evidence[kept:].copy()], open_from - kept
        self._start, self._lines = self._start + kept, len(evidence) - kept
        self._enough = max(AT_LEAST, 2 * self._lines)  # a region without end is not judged again with each part


def _suspicious(evidence: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return the lines around which another shift fits clearly better."""
    best = np.zeros(len(evidence), dtype=np.float32)
    for place in range(len(SHIFTS)):
        if place != UNSHIFTED:
            gain = evidence[:, place].astype(np.float32) - evidence[:, UNSHIFTED]
            best = np.maximum(best, np.convolve(gain, np.ones(LOOK, dtype=np.float32), mode="same"))
    return np.flatnonzero(best > NAT * SUSPICIOUS)


def _follow(evidence: NDArray[np.float64], start: int) -> list[Region]:
    """Return the shifted regions along the best path through some lines, the first of which is number `start`."""
    shifts = np.arange(len(SHIFTS))
    came_from = np.zeros(evidence.shape, dtype=np.int8)
    score = np.where(shifts == UNSHIFTED, 0.0, -CHANGE)
    for line, gain in enumerate(evidence):
        change = score.max() - CHANGE
        came_from[line] = np.where(score >= change, shifts, score.argmax())
        score = np.maximum(score, change) + gain
    path = np.zeros(len(evidence), dtype=np.int64)
    state = int(score.argmax())
    for line in range(len(evidence) - 1, -1, -1):
        path[line] = state
        state = int(came_from[line, state])
    edges = [0, *(np.flatnonzero(np.diff(path)) + 1).tolist(), len(path)]
    return [
        Region(start + first + 1, start + last, SHIFTS[int(path[first])])
        for first, last in itertools.pairwise(edges)
        if path[first] != UNSHIFTED and evidence[first:last, path[first]].sum() > 0  # else they are just bad pairs
    ]


def _places(words: Words) -> NDArray[np.int64]:
    return (words.hashes >> np.uint64(48)).astype(np.int64)


def _vectors(texts: Words, table: Array) -> Array:
    """Return the sum of its words' vectors for each text, scaled to length 1: (N, SIZE)."""
    sums = np.zeros((len(texts.counts), SIZE), dtype=np.float32)
    there = texts.counts > 0
    lines, starts, places = np.flatnonzero(there), texts.starts[there], _places(texts)
    for first in range(0, len(lines), AT_ONCE):
        some = starts[first : first + AT_ONCE]
        end = starts[first + AT_ONCE] if first + AT_ONCE < len(starts) else len(places)
        sums[lines[first : first + AT_ONCE]] = np.add.reduceat(table[places[some[0] : end]], some - some[0])
    return _unit(sums)


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), dtype=np.float32)


def _moments(values: Array) -> tuple[float, float]:
    """Return mean and standard deviation, by the median and the quartiles: some pairs are no translations."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return float(median), max(0.01, float(high - low) / 1.349)


def _log_normal(values: Array, mean: float, deviation: float) -> Array:
    return np.asarray(-((values - mean) ** 2) / (2 * deviation**2) - np.log(deviation), dtype=np.float32)
