"""All checks of a corpus together, in two passes over it: the second on some processes, each taking lines in parts.

`tfm doctor` reports what is found, `filters` leaves it out of training. No torch.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from transformer_cli.config.sections import FilterKind
from transformer_cli.data.corpora import Corpus
from transformer_cli.data.quality.alignment import SHIFTS, AlignmentModel, Region, ShiftedRegions
from transformer_cli.data.quality.languages import LEAST_LEARNED, LanguageIdentifier
from transformer_cli.data.quality.pair_checks import PairChecks, log_ratio, prose
from transformer_cli.data.quality.repeats import KnownPairs, TextHashes
from transformer_cli.data.quality.words import NUMBER, Words
from transformer_cli.processes import Prepare, map_in_processes

if TYPE_CHECKING:
    from transformer_cli.cluster import Cluster

KINDS: tuple[str, ...] = get_args(FilterKind)
OVERLAPS = {"valid": "overlap_valid", "test": "overlap_test"}  # those that a pair has with another corpus

EXCUSED = {  # what follows from another fault is not counted twice
    "length_ratio": ("misaligned", "wrong_language"),
    "number_mismatch": ("misaligned",),
    "url_mismatch": ("misaligned",),
    "markup": ("misaligned",),
    "duplicate_source": ("empty_side", "template", "identical_sides"),
}

SAMPLE = 30_000  # pairs that languages, lengths and word vectors are learned from
PART = 5_000  # lines that a process takes at a time
MARGIN = -SHIFTS.start  # lines before and after them, with which they may be aligned
LEAST_COPIED = 3  # words that a copied text has
USUAL_RATIOS = 6.0  # standard deviations of the logarithm of the lengths' ratio …
RATIO_BOUNDS = (1.8, 3.0)  # … within which the bound on it that is learned lies

Pair = tuple[str, str]
Around = tuple[list[Pair], int, int]  # a part with the lines around it, and where its own begin and end
Lines = NDArray[np.int64]


class EitherSide:
    """Pairs, and the same with their sides exchanged: what a source with a tag, which may be of the other direction, is
    compared with."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    @property
    def notes(self) -> list[str]:
        """Return what the last whole pass dropped."""
        return self.corpus.notes

    def pairs(self) -> Iterator[Pair]:
        """Yield all pairs, and then all of them exchanged."""
        yield from self.corpus.pairs()
        for source, target in self.corpus.pairs():
            yield target, source

    def content_hash(self) -> str:
        """Return a hash of the corpus, other than its own."""
        return f"either side {self.corpus.content_hash()}"

    def describe(self) -> str:
        """Return what the corpus is."""
        return self.corpus.describe()


def either_side(corpora: Mapping[str, Corpus]) -> dict[str, Corpus]:
    """Return each corpus as one that has its texts on both sides."""
    return {name: EitherSide(corpus) for name, corpus in corpora.items()}


@dataclass(frozen=True)
class Bounds:
    """What depends on the model that is to be trained, or on the user."""

    max_length: int = 256  # tokens
    length_ratio: float | None = None  # None: by the spread of the corpus' own


@dataclass(frozen=True, eq=False)
class Judge:
    """What a corpus is judged by: checks, and what was learned from a sample of it."""

    checks: PairChecks
    languages: LanguageIdentifier | None
    alignment: AlignmentModel | None
    others: Mapping[str, KnownPairs]  # valid, test

    @classmethod
    def learn(cls, sample: Sequence[Pair], bounds: Bounds, others: Mapping[str, Corpus] | None = None) -> "Judge":
        """Learn from some pairs of the corpus; others: those that it must not share texts with, by name."""
        ratios = sorted(log_ratio(source, target) for source, target in sample)
        low, usual, high = (
            (ratios[int(share * (len(ratios) - 1))] for share in (0.25, 0.5, 0.75)) if ratios else (0,) * 3
        )
        most = min(max(math.exp(USUAL_RATIOS * (high - low) / 1.349), RATIO_BOUNDS[0]), RATIO_BOUNDS[1])
        checks = PairChecks(bounds.max_length, math.exp(usual), bounds.length_ratio or most)
        sources, targets = [pair[0] for pair in sample], [pair[1] for pair in sample]
        return cls(
            checks,
            LanguageIdentifier.learn(sources, targets),
            AlignmentModel.learn(Words.of(sources), Words.of(targets)) if len(sample) >= LEAST_LEARNED else None,
            {name: KnownPairs([*corpus.pairs()]) for name, corpus in (others or {}).items()},
        )


def learn_languages(corpus: Corpus, languages: tuple[str, str], seed: int = 1) -> LanguageIdentifier | None:
    """Return what tells the languages of a corpus apart; None where it is too small, or they look alike."""
    sample, _ = _sample(corpus.pairs(), seed)
    return LanguageIdentifier.learn([pair[0] for pair in sample], [pair[1] for pair in sample], languages)


@dataclass(frozen=True, eq=False)
class Part:
    """What was found in some lines of a corpus."""

    lines: dict[str, Lines]  # by kind, from 0 within the part
    hashes: TextHashes
    evidence: NDArray[np.int8] | None  # of shifts
    characters: Counter[str]
    lengths: Counter[int]  # of source sentences, in characters, by the power of two above them
    ratios: Counter[int]  # of the sides' lengths, in quarters of the power of two by which they differ from the usual
    rare: dict[str, list[int]]  # lines in which characters stand that are rare in this part


@dataclass(eq=False)
class Judgement:
    """What is wrong with a corpus."""

    pairs: int = 0
    lines: dict[str, Lines] = field(default_factory=dict)  # by kind, from 1, rising
    contradictory: Lines = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # of those of duplicate_source
    regions: list[Region] = field(default_factory=list)  # that are misaligned
    characters: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)  # as in `Part`
    ratios: Counter[int] = field(default_factory=Counter)
    rare: dict[str, list[int]] = field(default_factory=dict)  # character: lines, from 1
    length_ratio: float = 0.0  # the bound that was used …
    usual_ratio: float = 1.0  # … on how far a pair's may be from this

    def left_out(self, kind: str) -> Lines:
        """Return the lines that the filter of a kind leaves out: all, but of several good translations none."""
        return self.contradictory if kind == "duplicate_source" else self.lines.get(kind, np.zeros(0, dtype=np.int64))


RARE = 5  # times that a character comes, at most, to be called rare


def judge_corpus(
    corpus: Corpus,
    bounds: Bounds = Bounds(),
    *,
    others: Mapping[str, Corpus] | None = None,
    seed: int = 1,
    workers: "int | Cluster" = 0,
    progress: bool = False,
) -> Judgement:
    """Return what is wrong with a corpus; others: `valid` and `test`, which it must not share texts with.

    Raises `UserError` where a corpus cannot be read.
    """
    disable = None if progress else True  # None: where stderr is not a terminal
    reading = tqdm(corpus.pairs(), desc="reading", unit=" pairs", unit_scale=True, disable=disable)
    sample, pairs = _sample(reading, seed)
    judge = Judge.learn(sample, bounds, others)
    parts = _parts(corpus.pairs())
    prepare = partial(_prepare, judge)
    results = _map(prepare, parts, workers if pairs > PART else 0)
    found = Judgement(pairs, length_ratio=judge.checks.length_ratio, usual_ratio=judge.checks.usual_ratio)
    lines: dict[str, list[Lines]] = {kind: [] for kind in KINDS}
    hashes: list[TextHashes] = []
    shifted = ShiftedRegions()
    start = 0
    with tqdm(total=pairs, desc="judging", unit=" pairs", unit_scale=True, disable=disable) as bar:
        for part in results:
            for kind, places in part.lines.items():
                lines[kind].append(places + start + 1)
            hashes.append(part.hashes)
            if part.evidence is not None:
                shifted.add(part.evidence)
            found.characters.update(part.characters)
            found.lengths.update(part.lengths)
            found.ratios.update(part.ratios)
            for character, where in part.rare.items():
                known = found.rare.setdefault(character, [])
                known += [start + line + 1 for line in where[: RARE + 1 - len(known)]]
            start += len(part.hashes.source)
            bar.update(len(part.hashes.source))
    found.rare = {one: where for one, where in found.rare.items() if found.characters[one] <= RARE}
    fit = np.zeros(start, dtype=np.int8)  # of the sides of each pair
    if judge.alignment is not None:
        fit, found.regions = shifted.end(), shifted.regions
        lines["misaligned"] += [np.arange(region.first, region.last + 1) for region in found.regions]
    everything = TextHashes.join(hashes)
    duplicates = everything.duplicate_pairs()
    ambiguous, contradictory = everything.ambiguous(duplicates, fit)
    repeats = {
        "duplicate_pair": duplicates,
        "duplicate_source": ambiguous,
        "template": everything.templates(duplicates),
    }
    for kind, mask in repeats.items():
        lines[kind].append(np.flatnonzero(mask) + 1)
    found.lines = _without_consequences(lines)
    named = found.lines.get("duplicate_source", np.zeros(0, dtype=np.int64))
    found.contradictory = named[contradictory[named - 1]]
    return found


def _without_consequences(lines: Mapping[str, Sequence[Lines]]) -> dict[str, Lines]:
    """Return the lines of each kind, in one piece, without those whose fault follows from another one."""
    together = {kind: np.concatenate(some) for kind, some in lines.items() if sum(map(len, some))}
    for kind, others in EXCUSED.items():
        excused = [together[other] for other in others if other in together]
        if kind in together and excused:
            together[kind] = np.setdiff1d(together[kind], np.concatenate(excused))
    return {kind: some for kind, some in together.items() if len(some)}


def _map(prepare: Prepare[Around, Part], parts: Iterable[Around], workers: "int | Cluster") -> Iterator[Part]:
    """Yield what is found in each part, in order; workers: processes that share the work, or machines."""
    if not isinstance(workers, int):
        return workers.map_in_order(prepare, parts)
    return map_in_processes(prepare, parts, workers) if workers else map(prepare(0), parts)


def _prepare(judge: Judge, number: int) -> "partial[Part]":
    return partial(_judge_part, judge)


def _judge_part(judge: Judge, part: Around) -> Part:
    """Judge some lines; what stands before `start` and from `end` on is there to be aligned with."""
    around, start, end = part
    sources, targets = (Words.of(pair[side] for pair in around) for side in (0, 1))
    pairs, own = around[start:end], (sources[start:end], targets[start:end])
    lines: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for line, (source, target) in enumerate(pairs):
        for kind in judge.checks(source, target):
            lines[kind].append(line)
    hashes = TextHashes.of(pairs, *own)
    lines["identical_sides"] += np.flatnonzero(_are_copies(hashes, own[0])).tolist()
    for name, known in judge.others.items():
        lines[OVERLAPS[name]] += np.flatnonzero(known.find(hashes, own)).tolist()
    if judge.languages is not None:
        _judge_languages(judge.languages, pairs, lines)
    evidence = None
    if judge.alignment is not None:
        evidence = judge.alignment.evidence(sources, targets)[start:end]
    characters = Counter("".join(side for pair in pairs for side in pair))
    return Part(
        {kind: np.array(some, dtype=np.int64) for kind, some in lines.items() if some},
        hashes,
        evidence,
        characters,
        Counter(len(source).bit_length() for source, _ in pairs),
        Counter(
            round(4 * (log_ratio(source, target) - math.log(judge.checks.usual_ratio)) / math.log(2))
            for source, target in pairs
        ),
        _rare_lines(pairs, characters),
    )


def _judge_languages(languages: LanguageIdentifier, pairs: Sequence[Pair], lines: dict[str, list[int]]) -> None:
    """Find sides in the wrong language, among pairs that have text on both sides and do not copy one."""
    texts = [[prose(pair[side]) for pair in pairs] for side in (0, 1)]
    scores = [languages.score(texts[side], side) for side in (0, 1)]
    swapped = languages.is_other(scores[0], 0) & languages.is_other(scores[1], 1)
    for line in np.flatnonzero(swapped).tolist():  # a third language on both sides is in the place of neither
        exchanged = (languages.score([texts[1 - side][line]], side) for side in (0, 1))
        swapped[line] = not any(languages.is_foreign(one, side)[0] for side, one in enumerate(exchanged))
    wrong = np.zeros(len(pairs), dtype=bool)
    for side in (0, 1):
        wrong |= languages.is_foreign(scores[side], side) | languages.is_other(scores[side], side)
    others = ("empty_side", "identical_sides", "encoding_damage", "mixed_scripts")
    excused = {line for kind in others for line in lines[kind]}
    lines["swapped_sides"] += [line for line in np.flatnonzero(swapped).tolist() if line not in excused]
    lines["wrong_language"] += [line for line in np.flatnonzero(wrong & ~swapped).tolist() if line not in excused]


def _are_copies(hashes: TextHashes, sources: Words) -> NDArray[np.bool_]:
    """Return which pairs have the same words on both sides, and enough of them to be more than a name or a title."""
    words = np.bincount(sources.owners[(sources.hashes & NUMBER) == 0], minlength=len(hashes.source))
    return np.asarray((hashes.source == hashes.target) & (words >= LEAST_COPIED))


def _rare_lines(pairs: Sequence[Pair], characters: Counter[str]) -> dict[str, list[int]]:
    rare = [character for character, count in characters.items() if count <= RARE]
    if not rare:
        return {}
    search = re.compile(f"[{re.escape(''.join(rare))}]").findall
    found: dict[str, list[int]] = {}
    for line, (source, target) in enumerate(pairs):
        for character in {*search(source), *search(target)}:
            found.setdefault(character, []).append(line)
    return found


def _sample(pairs: "Iterator[Pair] | tqdm[Pair]", seed: int) -> tuple[list[Pair], int]:
    """Return some pairs, each as likely as any other (reservoir sampling), and how many there are."""
    drawn = random.Random(seed)
    sample: list[Pair] = []
    number = -1
    for number, pair in enumerate(pairs):
        if len(sample) < SAMPLE:
            sample.append(pair)
        elif (place := int(drawn.random() * (number + 1))) < SAMPLE:
            sample[place] = pair
    return sample, number + 1


def _parts(pairs: Iterator[Pair]) -> Iterator[Around]:
    """Yield the lines in parts, each with those around it, and where its own begin and end."""
    before: list[Pair] = []
    ahead: list[Pair] = []
    for pair in pairs:
        ahead.append(pair)
        if len(ahead) == PART + MARGIN:
            yield [*before, *ahead], len(before), len(before) + PART
            before, ahead = ahead[PART - MARGIN : PART], ahead[PART:]
    if ahead:
        yield [*before, *ahead], len(before), len(before) + len(ahead)
