"""Tests of systems: sacreBLEU's numbers, exact where all exchanges can be counted, and right as often as they say."""

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.significance import PairedTest, Result

from tests.sampling import one_of_each
from transformer_cli.evaluation import comparing
from transformer_cli.evaluation.comparing import (
    SCORES,
    Measure,
    bootstrap,
    compare,
    compare_two,
    holm,
    measure,
    measure_of_numbers,
    randomization_p,
    t_p,
    t_quantile,
)
from transformer_cli.evaluation.evaluate import METRICS, corpus_scores, load_scorers

WORDS = ["a", "the", "dog", "cat", "man", "woman", "runs", "sits", "in", "on", "snow", "bench", "red", "with", "of"]


def sentences(count: int, seed: int = 1) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choices(WORDS, k=choose.randint(4, 16))) + "." for _ in range(count)]


def damaged(lines: Sequence[str], rate: float, seed: int) -> list[str]:
    """The lines with some words replaced."""
    choose = random.Random(seed)
    return [
        " ".join(choose.choice(WORDS) if choose.random() < rate else word for word in line.split()) for line in lines
    ]


REFERENCES = sentences(150)


def of_numbers(*systems: Any) -> Measure:
    return measure_of_numbers("COMET", [np.atleast_2d(np.asarray(runs, dtype=float)).tolist() for runs in systems])


# --- scores ---------------------------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_those_of_sacrebleu(metric: str) -> None:
    lines = [*REFERENCES, "", "x", "no"]
    systems = [[damaged(lines, rate, seed) for seed in (1, 2)] for rate in (0.2, 0.6)] + [[["q"] * len(lines), lines]]
    references = [[*REFERENCES, "a", "x", "x y"], [*damaged(REFERENCES, 0.3, 9), "", "x", "z"]]
    found = measure(metric, systems, references, "en")
    for place, runs in enumerate(systems):
        expected = [corpus_scores(run, references, "en", [metric])[0] for run in runs]
        assert found.of_runs(place) == pytest.approx([one.score for one in expected], abs=1e-9)
        assert {(found.name, found.signature)} == {(one.name, one.short_signature) for one in expected}
    assert found.higher_is_better == (metric != "ter")


@pytest.mark.medium
@given(st.data())
@pytest.mark.parametrize("metric", METRICS)
def test_any_counts_give_the_score_that_sacrebleu_computes(metric: str, data: st.DataObject) -> None:
    """Also where nothing matches, or there is nothing to match."""
    (scorer,) = load_scorers([metric], "en")
    counts = st.sampled_from([0, 1, 2, 7, 40, 100_000])
    if metric == "bleu":
        total = sorted(data.draw(st.lists(counts, min_size=4, max_size=4)), reverse=True)
        sums = [total[0], data.draw(counts), *(data.draw(st.integers(0, one)) for one in total), *total]
    elif metric == "ter":
        sums = data.draw(st.lists(counts, min_size=2, max_size=2))
    else:
        pairs = data.draw(st.lists(st.tuples(counts, counts), min_size=scorer.order, max_size=scorer.order))
        sums = [one for h, r in pairs for one in (h, r, data.draw(st.integers(0, min(h, r))))]
    expected = scorer._compute_score_from_stats(list(sums)).score
    assert SCORES[metric](np.array([sums], dtype=float))[0] == pytest.approx(expected, abs=1e-9)


# --- one run a side -------------------------------------------------------------------------------------------------


def test_p_is_that_of_all_exchanges() -> None:
    """With few sentences all exchanges can be counted."""
    numbers = np.array([[0.1, 0.5, 0.3, 0.9, 0.2, 0.6, 0.4], [0.6, 0.4, 0.8, 0.9, 0.7, 0.9, 0.5]])
    differences = numbers[1] - numbers[0]
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=7)
    ]
    exact = np.mean([one >= abs(differences.sum()) - 1e-12 for one in sums])
    found = compare_two(of_numbers(*numbers), 0, 1, trials=100_000)
    assert found.p == pytest.approx(exact, abs=0.004)
    assert (found.differing, found.sentences) == (6, 7)
    assert found.difference == pytest.approx(differences.mean())


@pytest.mark.medium
def test_p_is_that_of_sacrebleus_approximate_randomization() -> None:
    """On 20 pairs of outputs, within what two samples of 10,000 trials may differ by."""
    outputs = [damaged(REFERENCES, 0.25 + 0.004 * number, number) for number in range(21)]
    (scorer,) = load_scorers(["bleu"], "en")
    named: list[tuple[str, Sequence[str]]] = [(str(number), output) for number, output in enumerate(outputs)]
    _, theirs = PairedTest(named, {"BLEU": scorer}, [REFERENCES], "ar", 1000)()
    expected = [float(result.p_value or 0) for result in theirs["BLEU"][1:] if isinstance(result, Result)]
    found = [one.p for one in compare([measure("bleu", [[one] for one in outputs], [REFERENCES], "en")])]
    assert len(found) == 20
    assert min(expected) < 0.05 < max(expected)
    for own, other in zip(found, expected, strict=True):
        assert own == pytest.approx(other, abs=4.5 * (max(own * (1 - own), 1e-3) / 900) ** 0.5)


def test_the_two_sides_are_treated_alike() -> None:
    one = measure("ter", [[damaged(REFERENCES, rate, 3)] for rate in (0.2, 0.3)], [REFERENCES], "en")
    found, mirrored = compare_two(one, 0, 1), compare_two(one, 1, 0)
    assert found.p == pytest.approx(mirrored.p, abs=1e-9)
    assert found.interval == pytest.approx([-end for end in reversed(mirrored.interval)])
    assert found.difference > 0
    assert (found.better, mirrored.better) == (0, 0)  # a lower TER is better


def test_outputs_that_are_the_same_are_no_difference() -> None:
    lines = damaged(REFERENCES, 0.3, 1)
    (found,) = compare([measure("bleu", [[lines], [lines]], [REFERENCES], "en")])
    assert (found.p, found.difference, found.interval, found.differing) == (1.0, 0.0, (0.0, 0.0), 0)
    assert (found.better, found.detectable) == (None, None)
    (found,) = compare([measure("bleu", [[lines, lines], [lines, lines]], [REFERENCES], "en")])
    assert (found.p, found.detectable, found.better) == (1.0, None, None)


@pytest.mark.parametrize(("differing", "can_show"), [(5, False), (6, True)])
def test_so_few_sentences_that_nothing_could_show(differing: int, can_show: bool) -> None:
    numbers = np.zeros((2, 30))
    numbers[1, :differing] = 1
    found = compare_two(of_numbers(*numbers), 0, 1)
    assert (found.detectable is not None) == can_show
    assert (found.p < 0.05) == can_show
    assert found.p == pytest.approx(2.0 ** (1 - differing), abs=0.01)


def test_what_would_show_is_found_in_80_percent_of_cases() -> None:
    random_ = np.random.default_rng(1)
    shown = []
    for _ in range(300):
        base = random_.normal(size=100)
        noise = random_.normal(size=100)
        least = compare_two(of_numbers(base, base + noise), 0, 1, trials=400).detectable
        assert least == pytest.approx(0.28, rel=0.35)  # 2.8 standard errors, which are 0.1
        shown.append(compare_two(of_numbers(base, base + random_.normal(size=100) + 0.28), 0, 1, trials=400).p < 0.05)
    assert np.mean(shown) == pytest.approx(0.8, abs=0.08)


def test_a_null_comparison_is_flagged_as_often_as_it_should_be() -> None:
    random_ = np.random.default_rng(2)
    flagged, covered = [], []
    for _ in range(800):
        found = compare_two(of_numbers(random_.normal(size=60), random_.normal(size=60)), 0, 1, trials=200)
        flagged.append(found.p < 0.05)
        covered.append(found.interval[0] <= 0 <= found.interval[1])
    assert np.mean(flagged) == pytest.approx(0.05, abs=0.025)
    assert np.mean(covered) == pytest.approx(0.94, abs=0.03)


def test_blocks_bound_the_memory_and_change_nothing_but_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = measure(
        "chrf", [[damaged(REFERENCES, rate, 3)] for rate in (0.2, 0.21)], [REFERENCES], "en"
    ).statistics
    before, after = (side[0] for side in statistics)
    whole = randomization_p(before, after, SCORES["chrf"])
    spread = bootstrap(np.stack([before, after]), SCORES["chrf"]).std(axis=0)
    monkeypatch.setattr(comparing, "BLOCK", 1000)
    assert randomization_p(before, after, SCORES["chrf"]) == pytest.approx(whole, abs=0.03)
    again = bootstrap(np.stack([before, after]), SCORES["chrf"])
    assert again.shape == (10_000, 2)
    assert again.std(axis=0) == pytest.approx(spread, rel=0.05)


@pytest.mark.medium
def test_three_metrics_of_1000_sentences_take_no_time() -> None:
    """10,000 trials of each in at most 2 s of one core, of which sacreBLEU needs many."""
    references = sentences(1000, 5)
    outputs = [[damaged(references, rate, 6)] for rate in (0.3, 0.31)]
    measures = [measure(metric, outputs, [references], "en") for metric in ("bleu", "chrf", "ter")]
    began = time.process_time()
    for one in measures:
        randomization_p(one.statistics[0][0], one.statistics[1][0], one.scores)
    assert time.process_time() - began < 2


# --- several runs a side --------------------------------------------------------------------------------------------


def runs(random_: np.random.Generator, count: int, seeds: float, own: Any = 0.0) -> Any:
    """Numbers of 50 sentences: each run has an effect, each sentence one of its own in each run."""
    return random_.normal(size=(count, 1)) * seeds + random_.normal(size=(count, 50)) + own


@pytest.mark.medium
@pytest.mark.parametrize(
    ("counts", "seeds"),
    one_of_each([pytest.param(counts, seeds) for seeds in (0.0, 0.1, 0.5)] for counts in [(3, 3), (1, 3), (2, 5)]),
)
def test_seeds_of_the_same_system_are_flagged_as_often_as_they_should_be(counts: tuple[int, int], seeds: float) -> None:
    random_ = np.random.default_rng(3)
    flagged = [
        compare_two(of_numbers(*(runs(random_, count, seeds) for count in counts)), 0, 1, trials=60).p < 0.05
        for _ in range(500)
    ]
    assert 0.015 <= np.mean(flagged) <= 0.08


@pytest.mark.medium
def test_the_noise_of_the_sentences_counts_too_with_several_seeds() -> None:
    """Systems that are as good on the whole, but not on every sentence: runs alone would call half of them unlike."""
    random_ = np.random.default_rng(4)
    flagged, by_runs = [], []
    for _ in range(500):
        sides = [runs(random_, 3, 0.02, random_.normal(size=50)) for _ in range(2)]
        flagged.append(compare_two(of_numbers(*sides), 0, 1, trials=60).p < 0.05)
        means = [side.mean(axis=1) for side in sides]
        error = np.sqrt(sum(mean.var(ddof=1) for mean in means) / 3)
        by_runs.append(t_p((means[1].mean() - means[0].mean()) / error, 4) < 0.05)
    assert 0.015 <= np.mean(flagged) <= 0.08
    assert np.mean(by_runs) > 0.15


def test_with_several_seeds_their_noise_counts() -> None:
    """The mean of three runs is better on these sentences beyond doubt, but the runs are far apart."""
    base = np.random.default_rng(5).normal(size=100)
    near, far = (np.stack([base + 1 + step * spread for step in (-1, 0, 1)]) for spread in (0.01, 2))
    sides = np.stack([base - 0.01, base, base + 0.01])
    assert compare_two(of_numbers(sides, near), 0, 1, trials=500).p < 0.001
    found = compare_two(of_numbers(sides, far), 0, 1, trials=500)
    assert found.p > 0.2
    assert found.interval[0] < 0 < found.interval[1]
    assert found.degrees_of_freedom == pytest.approx(4, abs=0.1)
    assert found.detectable is not None
    assert found.detectable > 1


def test_what_would_show_is_no_less_than_the_sentences_alone_allow() -> None:
    """Also where two runs happen to have the same score."""
    random_ = np.random.default_rng(8)
    sides = runs(random_, 2, 0.0), runs(random_, 1, 0.0)
    sides[0][:] -= sides[0].mean(axis=1, keepdims=True) + np.array([[1e-3], [-1e-3]])
    found = compare_two(of_numbers(*sides), 0, 1, trials=2000)
    alone = (sides[1][0] - sides[0].mean(axis=0)).std() / 50**0.5
    assert found.standard_error < alone / 2
    assert found.detectable is not None
    assert found.detectable > 2.7 * alone


def test_several_runs_are_held_against_t_with_the_variance_of_an_analysis_of_variance() -> None:
    """Without noise of the sentences it is the t test of the runs' scores."""
    scores = [[1.0, 1.4, 0.9], [1.9, 1.7, 2.2, 2.0]]
    sides = [[[score] * 50 for score in side] for side in scores]
    found = compare_two(of_numbers(*sides), 0, 1, trials=100)
    pooled = sum(np.var(side) * len(side) for side in scores) / 5
    assert found.standard_error == pytest.approx(float(pooled * (1 / 3 + 1 / 4)) ** 0.5)
    assert found.p == pytest.approx(t_p(found.difference / found.standard_error, 5))


# --- many, and t ----------------------------------------------------------------------------------------------------


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]


def test_the_verdict_follows_the_corrected_p() -> None:
    """Of twenty systems that are as good, one looks better by chance."""
    numbers = np.random.default_rng(6).normal(size=(21, 60))
    numbers[1:] -= numbers[1:].mean(axis=1, keepdims=True) - numbers[0].mean()
    numbers[1] += 2.3 * (numbers[1] - numbers[0]).std() / 60**0.5
    found = compare([of_numbers(*numbers)], trials=1000)
    assert [one.b for one in found] == [*range(1, 21)]
    assert found[0].p < 0.05
    assert compare_two(of_numbers(*numbers), 0, 1, trials=1000).better == 1
    assert all(one.better is None for one in found)


def test_t_is_that_of_the_tables() -> None:
    for degrees, quantile in {1: 12.7062, 2: 4.3027, 4: 2.7764, 10: 2.2281, 100: 1.9840, 1000: 1.9623}.items():
        assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=1e-4)
        assert t_p(-quantile, degrees) == pytest.approx(0.05, abs=1e-5)
    assert t_quantile(0.5, 3) == pytest.approx(0, abs=1e-6)
