"""Where two systems differ: in which groups of sentences, and in which sentences most. Behind `tfm compare`. No torch.

Groups are by the length of the source, by how often its rarest word is in the training data, and by numbers and names.
A group has the difference of the scores of its sentences with an interval, as `comparing` computes it for all; no
tests, of which there would be many.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
FREQUENCIES = {"not in it": 1, "1 to 9 times": 10, "10 to 99 times": 100, "100 times or more": np.inf}
ON_HUB = "the training data is on the Hugging Face hub; its words are not counted"  # which may mean a long download
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
    for by, name, chosen in _groups(texts, training):
        if chosen.sum() >= LEAST:
            found = compare_two(one.within(chosen), 0, b, trials=TRIALS)
            groups.setdefault(by, []).append(Group(name, int(chosen.sum()), found.difference, found.interval))
    changes = contributions(one, b)
    gains = changes if one.higher_is_better else -changes
    order = np.argsort(-gains, kind="stable").tolist()
    picked = [place for place in order[:most] if gains[place] > 0]
    picked += [place for place in order[: -most - 1 : -1] if gains[place] < 0]
    sentences = [_sentence(place, float(changes[place]), b, texts) for place in picked]
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


def _groups(texts: Texts, training: Mapping[str, int] | None) -> Iterator[tuple[str, str, Chosen]]:
    """Yield what groups are by, the name of a group and which sentences are in it."""
    known = texts.sources if texts.sources is not None else texts.references
    if known is None:
        return
    side = "source" if texts.sources is not None else "reference"
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
    if texts.sources is not None and texts.references is not None:
        names = np.array([has_name(*pair) for pair in zip(texts.sources, texts.references, strict=True)])
    for name, chosen in {"with a number": numbers, "with a name": names, "with neither": ~numbers & ~names}.items():
        yield "numbers and names", name, chosen


def has_name(source: str, reference: str) -> bool:
    """Return whether both have a word with a capital letter, not at the beginning, that is the same: mostly a name."""
    return bool(_capitalized(source) & _capitalized(reference))


def _capitalized(text: str) -> set[str]:
    words = [_UPPER.match(word.lstrip("\"'“„«‘(")) for word in text.split()[1:]]
    return {found[0] for found in words if found is not None and found[0][:1].isupper() and len(found[0]) > 1}


def count_in_training(
    models: Sequence[FoundModel], sources: Sequence[str], progress: bool = False
) -> tuple[dict[str, int] | None, str | None]:
    """Return how often each word of the sources is in the training data of the first model whose data is still there.

    Beside it: why there is none, for the user to see. A data set of the hub is left alone.
    """
    wanted = {word for line in sources for word in words_of(line)}
    reason = None
    for model in models:
        try:
            data = find_data(model.config.data, "train", model.folder)
            if any(is_on_hub(source) for source in data.sources.values()):
                raise UserError(ON_HUB)
            counts: Counter[str] = Counter()
            for source, _ in with_bar(
                open_split(data, "train").pairs(), "counting words of the training data", progress
            ):
                counts.update(word for word in words_of(source) if word in wanted)
        except UserError as error:
            reason = f"no groups by the rarest word: {error}"
            continue
        return dict(counts), None
    return None, reason
