"""Word alignments by statistics: what always stands together belongs together, wherever it stands."""

import importlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def word_alignments(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module("word_alignments")


def test_words_that_stand_together_are_linked(word_alignments: Any) -> None:
    """Source word n is target word n + 20; the last two words of each target have changed places."""
    draw = random.Random(1)
    sources = [draw.sample(range(20), draw.randint(2, 6)) for _ in range(200)]
    targets = [[word + 20 for word in (*words[:-2], words[-1], words[-2])] for words in sources]
    found = word_alignments.align([np.array(words) for words in sources], [np.array(words) for words in targets])
    for words, others, links in zip(sources, targets, found, strict=True):
        assert links == {(words.index(word - 20), place) for place, word in enumerate(others)}
    assert word_alignments.align([np.array([], dtype=int), np.array([0])], [np.array([1]), np.array([1])]) == [
        set(),
        {(0, 0)},
    ]


def test_growing_takes_what_both_have_and_what_stands_beside_it(word_alignments: Any) -> None:
    both, beside, far = {(0, 0), (2, 2)}, {(1, 1)}, {(4, 4)}
    assert word_alignments.grow(both | beside, both, 5, 5) == both | beside
    assert word_alignments.grow(both, both | far, 5, 5) == both | far  # two words that nothing else links
    assert word_alignments.grow(both | {(0, 4)}, both | {(0, 4)}, 5, 5) == both | {(0, 4)}
    assert word_alignments.grow(both | {(2, 0)}, both, 3, 3) == both  # neither new nor beside
