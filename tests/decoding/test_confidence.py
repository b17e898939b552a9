"""Isotonic regression is the best rising fit there is; confidence rises with the score and survives being kept."""

import json
import math
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.echo import Echo, MakeCodecs, make_config
from transformer_cli.decoding.translation import FILE, Confidence, load_confidence, score
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.evaluation.calibration import fit, isotonic
from transformer_cli.storage.publishing import publish

LINE = Confidence([-2.0, -1.0, -0.5], [0.2, 0.4, 0.9], 10, 10, 0.05)


def cost(fitted: list[float], values: list[float], weights: list[float]) -> float:
    return sum(weight * (one - value) ** 2 for one, value, weight in zip(fitted, values, weights, strict=True))


def brute_force(values: list[float], weights: list[float]) -> list[float]:
    """The best of all ways to cut the values into segments, each at its mean, that rises."""
    size = len(values)
    best: list[float] = []
    for cuts in range(2 ** (size - 1)):
        edges = [0, *(place + 1 for place in range(size - 1) if cuts >> place & 1), size]
        fitted: list[float] = []
        for low, high in pairwise(edges):
            mean = np.average(values[low:high], weights=weights[low:high])
            fitted += [float(mean)] * (high - low)
        if fitted == sorted(fitted) and (not best or cost(fitted, values, weights) < cost(best, values, weights)):
            best = fitted
    return best


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 4)), min_size=1, max_size=8))
def test_pooling_finds_the_best_rising_sequence(pairs: list[tuple[float, int]]) -> None:
    values, weights = [value for value, _ in pairs], [float(weight) for _, weight in pairs]
    fitted = isotonic(values, weights)
    assert fitted == sorted(fitted)
    assert cost(fitted, values, weights) == pytest.approx(cost(brute_force(values, weights), values, weights), abs=1e-9)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_what_rises_already_stays(values: list[float]) -> None:
    assert isotonic(sorted(set(values)), [1.0] * len(set(values))) == sorted(set(values))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([-3.0, -2.5, -1.0, -0.25, -0.1, 0.0]), st.floats(0, 1)), min_size=1))
def test_the_points_of_a_fit_give_every_fitted_value_again(pairs: list[tuple[float, float]]) -> None:
    scores, chrf = [one for one, _ in pairs], [value for _, value in pairs]
    line = Confidence(*fit(scores, chrf), 1, 1, 0.0)
    distinct = sorted(set(scores))
    groups = [[value for one, value in pairs if one == here] for here in distinct]
    expected = isotonic([sum(group) / len(group) for group in groups], [len(group) for group in groups])
    assert [line.at(here) for here in distinct] == pytest.approx(expected)
    assert line.scores == sorted(set(line.scores))


@given(st.floats(-10, 5), st.floats(-10, 5))
def test_a_better_score_never_means_less(one: float, other: float) -> None:
    assert LINE.at(min(one, other)) <= LINE.at(max(one, other))
    assert 0.2 <= LINE.at(one) <= 0.9


def test_between_two_points_runs_a_straight_line() -> None:
    assert [LINE.at(here) for here in (-9.0, -2.0, -1.5, -1.0, -0.75, -0.5, 0.0)] == pytest.approx(
        [0.2, 0.2, 0.3, 0.4, 0.65, 0.9, 0.9]
    )


def test_the_score_goes_by_characters() -> None:
    assert score("abcd", -2.0) == -0.5
    assert score("", -2.0) == -2.0
    assert LINE.expect("abcd", -6.0) == pytest.approx(LINE.at(-1.5))


def test_a_curve_is_learned_from_noise() -> None:
    choose = random.Random(1)
    scores = [choose.uniform(-3, 0) for _ in range(3000)]
    observed = [min(1.0, max(0.0, math.exp(one) + choose.gauss(0, 0.1))) for one in scores]
    line = Confidence(*fit(scores, observed), 1, 1, 0.0)
    for here in (-2.5, -1.5, -1.0, -0.5, -0.3):
        assert line.at(here) == pytest.approx(math.exp(here), abs=0.06)


def kept(folder: Path, content: str) -> Path:
    def write(new: Path) -> None:
        (new / FILE).write_text(content)

    return publish(folder, write)


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    assert load_confidence(kept(tmp_path / "model", LINE.dumps())) == LINE
    assert load_confidence(publish(tmp_path / "none", lambda folder: None)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [-2.0, -2.0, -0.5]},
        {"scores": [-2.0, -1.0]},
        {"chrf": [0.4, 0.2, 0.9]},
        {"chrf": [0.2, 0.4, 1.9]},
        {"chrf": ["a", 0.4, 0.9]},
        {"scores": [], "chrf": []},
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, list[float]]) -> None:
    values = {**json.loads(LINE.dumps()), **change}
    with pytest.raises(UserError, match=FILE):
        load_confidence(kept(tmp_path / "model", json.dumps(values)))


def test_every_translation_of_a_calibrated_model_has_a_confidence(make_codecs: MakeCodecs) -> None:
    config = make_config(max_length=3)
    translator = Translator(Echo(), make_codecs(config), config, confidence=LINE)
    found = translator.translate_batch(["one", "a b c one two three", ""])
    assert [one.confidence for one in found] == pytest.approx(
        [LINE.at(-1.0 / 3), LINE.at(-6.0 / len("a b c one two three")), 1.0]
    )
    uncalibrated = Translator(Echo(), make_codecs(config), config)
    assert [one.confidence for one in uncalibrated.translate_batch(["one", ""])] == [None, None]
