"""The lexicon: its statistics in plain Python, and that it finds what a made-up language translates by what."""

import math
import random
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from transformer_cli.data.batch import Batch
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.variants import lexicon
from transformer_cli.variants.lexicon import NOWHERE, ROUNDS, SPAN, TENSION, Lexicon, learn_lexicon

Sides = tuple[Sequence[int], Sequence[int]]


class Pairs(EncodedCorpus):
    """Pairs of ids as a corpus, without a file."""

    def __init__(self, pairs: Sequence[Sides]) -> None:
        self.pairs = pairs

    def ids(self, pair: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        source, target = self.pairs[pair]
        return np.array(source, np.uint16), np.array(target, np.uint16)

    def _lengths(self, column: str) -> NDArray[np.int32]:
        side = int(column == "target_ids")
        return np.array([len(pair[side]) for pair in self.pairs], np.int32)


def made_up(count: int, words: int = 40, seed: int = 1) -> tuple[list[Sides], list[list[int]]]:
    """A language whose words are another's plus 100, two neighbours exchanged at times; and where each comes from."""
    draw = random.Random(seed)
    pairs: list[Sides] = []
    places = []
    for _ in range(count):
        source = [draw.randrange(4, 4 + words) for _ in range(draw.randrange(1, 9))]
        order = [*range(len(source))]
        if len(order) > 2 and draw.random() < 0.5:
            at = draw.randrange(len(order) - 1)
            order[at], order[at + 1] = order[at + 1], order[at]
        pairs.append((source, [source[place] + 100 for place in order]))
        places.append(order)
    return pairs, places


def by_hand(pairs: Sequence[Sides], size: int) -> dict[tuple[int, int], float]:
    """The probability of each target id, given a source id, with loops and dictionaries."""
    probability: dict[tuple[int, int], float] = defaultdict(lambda: 1 / size)
    nothing: dict[int, float] = defaultdict(lambda: 1 / size)
    for _ in range(ROUNDS):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        alone: dict[int, float] = defaultdict(float)
        for source, target in pairs:
            for t, y in enumerate(target):
                near = [
                    math.exp(-TENSION * abs((t + 0.5) / len(target) - (s + 0.5) / len(source)))
                    for s in range(len(source))
                ]
                weights = [
                    (1 - NOWHERE) * one / sum(near) * probability[x, y] for one, x in zip(near, source, strict=True)
                ]
                none = NOWHERE * nothing[y]
                total = sum(weights) + none
                for weight, x in zip(weights, source, strict=True):
                    counts[x, y] += weight / total
                alone[y] += none / total
        given: dict[int, float] = defaultdict(float)
        for (x, _), count in counts.items():
            given[x] += count
        probability = defaultdict(float, {(x, y): count / given[x] for (x, y), count in counts.items()})
        nothing = defaultdict(float, {y: count / sum(alone.values()) for y, count in alone.items()})
    return probability


def kept(learned: Lexicon) -> dict[tuple[int, int], tuple[float, float]]:
    keys = [divmod(key, SPAN) for key in learned.keys.tolist()]
    both = zip(learned.forward.probability.tolist(), learned.backward.probability.tolist(), strict=True)
    return dict(zip(keys, both, strict=True))


def test_the_statistics_are_those_of_the_papers() -> None:
    pairs, _ = made_up(30, words=12)
    size = 1 + max(max(side) for pair in pairs for side in pair)
    ahead = by_hand(pairs, size)
    back = by_hand([(target, source) for source, target in pairs], size)
    found = kept(learn_lexicon(Pairs(pairs)))
    expected = {(x, y) for (x, y), p in ahead.items() if min(p, back[y, x]) >= 2 * lexicon.LEAST}
    assert expected <= found.keys()
    for (x, y), (forward, backward) in found.items():
        assert forward == pytest.approx(ahead[x, y], rel=1e-4)
        assert backward == pytest.approx(back[y, x], rel=1e-4)


def test_it_finds_what_translates_what() -> None:
    pairs, places = made_up(600)
    learned = learn_lexicon(Pairs(pairs))
    right = total = 0
    for (source, target), order in zip(pairs[:100], places, strict=False):
        [rows] = learned.alignment(Batch.from_ids([(source, target)]))
        for row, place in zip(rows, order, strict=False):
            right += source[int(row.argmax())] == source[place] and float(row.sum()) > 0.5
            total += 1
    assert right > 0.97 * total


def test_a_batch_is_aligned_like_each_pair_alone_and_specials_never() -> None:
    pairs, _ = made_up(80)
    learned = learn_lexicon(Pairs(pairs))
    some = pairs[:7]
    together = learned.alignment(Batch.from_ids(some, pad_to=4))
    assert float(together.sum(dim=2).max()) <= 1 + 1e-5
    assert float(together.sum(dim=1).max()) <= 1 + 1e-5
    for row, (source, target) in zip(together, some, strict=True):
        [alone] = learned.alignment(Batch.from_ids([(source, target)]))
        assert torch.allclose(row[: len(target), : len(source)], alone[:-1, :-1], atol=1e-6)
        assert float(row[len(target) :].abs().max()) == 0.0
        assert float(row[:, len(source) :].abs().max()) == 0.0


def test_both_sides_agree() -> None:
    pairs, _ = made_up(80)
    turned = [(target, source) for source, target in pairs]
    one = learn_lexicon(Pairs(pairs)).alignment(Batch.from_ids(pairs[:5]))
    other = learn_lexicon(Pairs(turned)).alignment(Batch.from_ids(turned[:5]))
    assert torch.allclose(one, other.mT, atol=1e-5)


def test_tokens_that_it_never_saw_have_no_part() -> None:
    pairs, _ = made_up(80)
    learned = learn_lexicon(Pairs(pairs))
    aligned = learned.alignment(Batch.from_ids([([5, 999, 6], [105, 106, 998])]))
    assert float(aligned[0, :, 1].abs().max()) == 0.0
    assert float(aligned[0, 2].abs().max()) == 0.0
    assert float(aligned[0, 0, 0]) > 0.3


def test_of_a_large_corpus_a_part_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, _ = made_up(900)
    monkeypatch.setattr(lexicon, "MOST_CELLS", 6000)  # of about 23,000
    read = []

    class Counted(Pairs):
        def ids(self, pair: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
            read.append(pair)
            return super().ids(pair)

    learned = learn_lexicon(Counted(pairs))
    assert 100 < len(read) < 450
    assert max(read) > 850  # from all over it
    assert {(word, word + 100) for word in range(4, 44)} <= kept(learned).keys()
