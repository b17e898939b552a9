"""Where two systems differ: in which groups of sentences, and in which sentences most. Behind `tfm compare`. No torch.

Groups, which `tfm report` has too, are by the length of the source, by how often its rarest word is in the training
data, and by numbers and names. A group has the difference of the scores of its sentences with an interval, as
`comparing` computes it for all; no tests, of which there would be many.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from transformer_cli.data.corpora import open_split
from transformer_cli.data.quality.words import words_of
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.errors import UserError
from transformer_cli.evaluation.comparing import Measure, compare_two
from transformer_cli.storage.origin import find_data, is_on_hub
from transformer_cli.text.lines import with_bar

LEAST = 10  # sentences of a group that is shown
TRIALS = 1000
QUARTERS = (0.25, 0.5, 0.75)
FREQUENCIES = {
    "not in it": 1,
    "1 to 9 times": 10,
    "10 to 99 times": 100,
    "100 to 999 times": 1000,
    "more often": np.inf,
}
_UPPER = re.compile(r"[^\W\d_]*")

Chosen = NDArray[np.bool_]


@dataclass(frozen=True)
class Group:
    """Some sentences of the test set."""

    name: str
    sentences: int
    difference: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Sentence:
    """A sentence and what it adds to the difference, by exchanging its outputs: half of what changes."""

    line: int  # from 1
    change: float
    source: str | None
    reference: str | None
    a: str | None  # of the first run of each side
    b: str | None


@dataclass(frozen=True)
class Where:
    """Where system `b` differs from system `a`."""

    a: int
    b: int
    name: str  # of the metric
    groups: dict[str, list[Group]]  # by what
    sentences: list[Sentence]  # those where b gains most, then those where it loses most


@dataclass(frozen=True)
class Texts:
    """The texts behind the numbers; what is not known is None."""

    sources: Sequence[str] | None
    references: Sequence[str] | None
    outputs: Sequence[Sequence[Sequence[str]]]  # of systems, of runs


def find_where(
    one: Measure, b: int, texts: Texts, training: Mapping[str, int] | None = None, *, most: int = 10
) -> Where:
    """Return where the systems 0 and `b` differ by one metric.

    training: how often each word of the sources is in the training data. most: sentences on either side.
    """
    groups: dict[str, list[Group]] = {}
    for by, name, chosen in groups_of(texts.sources, texts.references, training):
        if chosen.sum() >= LEAST:
            found = compare_two(one.within(chosen), 0, b, trials=TRIALS)
            groups.setdefault(by, []).append(Group(name, int(chosen.sum()), found.difference, found.interval))
    changes = contributions(one, b)
    gains = changes if one.higher_is_better else -changes
    order = np.argsort(-gains, kind="stable").tolist()
    every = [_sentence(place, float(changes[place]), b, texts) for place in order if gains[place]]
    seen = [one for one in every if one.a is None or one.a != one.b]  # later runs may differ where the first ones agree
    up, down = ([one for one in seen if (gains[one.line - 1] > 0) == better] for better in (True, False))
    sentences = [*up[:most], *down[: -most - 1 : -1]]
    return Where(0, b, one.name, groups, sentences)


def contributions(one: Measure, b: int) -> NDArray[np.float64]:
    """Return what each sentence adds to the difference of system `b` from system 0: (sentences,)."""
    before, after = one.statistics[0].mean(axis=0), one.statistics[b].mean(axis=0)  # (N, K)
    low, high = before.sum(axis=0), after.sum(axis=0)
    exchanged = one.scores(high - after + before) - one.scores(low - before + after)
    return np.asarray((one.scores(high) - one.scores(low) - exchanged) / 2, dtype=np.float64)


def _sentence(place: int, change: float, b: int, texts: Texts) -> Sentence:
    def at(lines: Sequence[str] | None) -> str | None:
        return None if lines is None else lines[place]

    outputs = [system[0] if system else None for system in texts.outputs]
    return Sentence(place + 1, change, at(texts.sources), at(texts.references), at(outputs[0]), at(outputs[b]))


def groups_of(
    sources: Sequence[str] | None, references: Sequence[str] | None, training: Mapping[str, int] | None
) -> Iterator[tuple[str, str, Chosen]]:
    """Yield what groups are by, the name of a group and which sentences are in it; it may be none.

    training: how often each word of the sources is in the training data.
    """
    known = sources if sources is not None else references
    if known is None:
        return
    side = "source" if sources is not None else "reference"
    words = [words_of(line) for line in known]
    lengths = np.array([len(line) for line in words])
    edges = sorted({0, *(int(edge) for edge in np.quantile(lengths, QUARTERS)), int(lengths.max())})
    for low, high in pairwise(edges):
        name = f"{high} words" if high == low + 1 else f"{low + 1} to {high} words" if low else f"up to {high} words"
        yield f"length of the {side}", name, (lengths > low if low else lengths >= 0) & (lengths <= high)
    if training is not None:
        rarest = np.array([min((training.get(word, 0) for word in line), default=0) for line in words])
        least = 0.0
        for name, limit in FREQUENCIES.items():
            yield "rarest word of the source in the training data", name, (rarest >= least) & (rarest < limit)
            least = limit
    numbers = np.array([any(map(str.isdigit, line)) for line in known])
    names = np.zeros_like(numbers)
    if sources is not None and references is not None:
        names = np.array([has_name(*pair) for pair in zip(sources, references, strict=True)])
    for name, chosen in {"with a number": numbers, "with a name": names, "with neither": ~numbers & ~names}.items():
        yield "numbers and names", name, chosen


def has_name(source: str, reference: str) -> bool:
    """Return whether both have a word with a capital letter, not at the beginning, that is the same: mostly a name."""
    return bool(_capitalized(source) & _capitalized(reference))


def _capitalized(text: str) -> set[str]:
    words = [_UPPER.match(word.lstrip("\"'“„«‘(")) for word in text.split()[1:]]
    return {found[0] for found in words if found is not None and found[0][:1].isupper() and len(found[0]) > 1}


@dataclass(frozen=True)
class TrainingWords:
    """What the training data has of the words of some sources."""

    pairs: int  # that were read
    counts: Mapping[str, int]  # of a word in the sources of these pairs
    target_counts: Mapping[str, int]  # of the same word in their targets


def count_words(
    found: FoundModel, sources: Sequence[str], most: int | None = None, progress: bool = False
) -> TrainingWords:
    """Return how often each word of the sources is in the first `most` pairs of the training data; None: in all.

    Raises `UserError` where that is gone, or on the hub, which may mean a long download.
    """
    data = find_data(found.config.data, "train", found.folder)
    if any(is_on_hub(source) for source in data.sources.values()):
        raise UserError("the training data is on the Hugging Face hub; its words are not counted")
    wanted = {word for source in sources for word in words_of(source)}
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    pairs = 0
    for pair in with_bar(
        islice(open_split(data, "train").pairs(), most), "counting words of the training data", progress
    ):
        for text, count in zip(pair, counts, strict=True):
            count.update(word for word in words_of(text) if word in wanted)
        pairs += 1
    return TrainingWords(pairs, *counts)


def count_in_training(
    models: Sequence[FoundModel], sources: Sequence[str], progress: bool = False
) -> tuple[Mapping[str, int] | None, str | None]:
    """Return `count_words` of the first model whose training data is still there, or why there is none.

    Both are None without models.
    """
    reason = None
    for model in models:
        try:
            return count_words(model, sources, progress=progress).counts, None
        except UserError as error:
            reason = f"no groups by the rarest word: {error}"
    return None, reason
