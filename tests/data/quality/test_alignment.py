"""Shifted regions are found with their bounds, whatever the shift and wherever they stand."""

import itertools
import random
from typing import Any

import numpy as np
import pytest

from tests.data.quality.conftest import Pair
from transformer_cli.data.quality.alignment import SHIFTS, UNSHIFTED, AlignmentModel, Region, ShiftedRegions
from transformer_cli.data.quality.words import Words


def regions(pairs: list[Pair]) -> list[Region]:
    sides = [Words.of(pair[side] for pair in pairs) for side in (0, 1)]
    model = AlignmentModel.learn(sides[0], sides[1])
    return regions_of([model.evidence(sides[0], sides[1])])


def regions_of(parts: list[Any]) -> list[Region]:
    shifted = ShiftedRegions()
    for part in parts:
        shifted.add(part)
    assert shifted.end().tolist() == [value for part in parts for value in part[:, UNSHIFTED]]
    return shifted.regions


def shifted(pairs: list[Pair], first: int, last: int, shift: int) -> list[Pair]:
    """Lines first to last (from 1) have the target that stands `shift` lines before them: theirs comes later."""
    targets = [target for _, target in pairs]
    changed = list(pairs)
    for line in range(first - 1, last):
        changed[line] = (pairs[line][0], targets[(line - shift) % len(pairs)])
    return changed


@pytest.mark.medium
@pytest.mark.parametrize("shift", [1, -1, 3, -3, 10])
@pytest.mark.parametrize(("first", "last"), [(1, 200), (1500, 1560), (2801, 3000)])
def test_a_region_is_found_with_its_bounds(sample: list[Pair], shift: int, first: int, last: int) -> None:
    found = regions(shifted(sample[:3000], first, last, shift))
    assert [region.shift for region in found] == [shift]
    assert abs(found[0].first - first) <= 12
    assert abs(found[0].last - last) <= 12
    assert shift in SHIFTS


def test_regions_do_not_depend_on_the_parts_that_evidence_comes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a part ends: within a region, beside one, or in the noise; and those that are judged are forgotten."""
    drawn, numbers = random.Random(1), np.random.default_rng(1)
    for _ in range(20):
        evidence = numbers.integers(-40, 20, (6000, len(SHIFTS)), dtype=np.int8)
        evidence[:, UNSHIFTED] += 50
        place = 0
        while (place := place + drawn.randint(1, 900)) < 5000:
            end = place + drawn.choice([5, 30, 700])
            evidence[place:end, drawn.randrange(len(SHIFTS))] += 44
            evidence[place:end, UNSHIFTED] -= 60
            place = end
        whole = regions_of([evidence])
        assert whole
        monkeypatch.setattr("transformer_cli.data.quality.alignment.AT_LEAST", drawn.choice([1, 100, 1000]))
        ends = [0, *sorted(drawn.sample(range(1, 6000), drawn.choice([3, 60]))), 6000]
        assert regions_of([evidence[a:b] for a, b in itertools.pairwise(ends)]) == whole
        monkeypatch.undo()


def test_several_regions_are_told_apart(sample: list[Pair]) -> None:
    pairs = shifted(shifted(sample[:4000], 500, 600, 1), 3000, 3200, -2)
    assert [region.shift for region in regions(pairs)] == [1, -2]


def test_a_sound_corpus_has_no_region(sample: list[Pair]) -> None:
    assert regions(sample[:4000]) == []


def test_pairs_that_are_no_translations_are_no_region(sample: list[Pair]) -> None:
    """Not even at the end, where nothing stands some lines away."""
    pairs = sample[:3000]
    pairs += [
        (source, target) for (source, _), (_, target) in zip(sample[3000:3300], sample[4300:4000:-1], strict=True)
    ]
    assert regions(pairs) == []


def test_texts_without_words_are_no_evidence(sample: list[Pair]) -> None:
    pairs = sample[:1000]
    pairs[100:200] = [("…", "")] * 50 + [("Xyzzy", "Plugh")] * 50
    assert regions(pairs) == []
    sides = [Words.of(pair[side] for pair in pairs) for side in (0, 1)]
    evidence = AlignmentModel.learn(sides[0][200:], sides[1][200:]).evidence(*sides)
    assert not evidence[100:200].any()
    assert evidence[:90, UNSHIFTED].mean() > 0


def test_a_long_text_counts_no_more_than_others(sample: list[Pair]) -> None:
    """Pairs of many sentences, in which all words stand beside each other, do not blur what the others say."""
    pairs = sample[:2000]
    long = [tuple(" ".join(some) for some in zip(*pairs[place::20], strict=True)) for place in range(20)]

    def fit(learned: list[Pair]) -> float:
        sides = [Words.of(pair[side] for pair in learned) for side in (0, 1)]
        model = AlignmentModel.learn(sides[0], sides[1])
        return (model.alike[0] - model.unlike[0]) / model.unlike[1]

    assert fit([*pairs, *long]) > 0.8 * fit(pairs)  # type: ignore[list-item]
