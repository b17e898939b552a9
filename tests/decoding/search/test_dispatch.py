"""Greedy and beam search against brute force and a plain reference, on a toy whose every word depends on all before."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.toy import WORDS, Histories, Toy, brute_force, same
from transformer_cli.decoding.engines.protocol import Hypothesis
from transformer_cli.decoding.search.beam import beam_search
from transformer_cli.decoding.search.greedy import greedy_search
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS


def reference_beam(toy: Toy, sentence: int, limit: int, options: SearchOptions, stop: bool) -> list[Hypothesis]:
    """CTranslate2's rule for one sentence in plain lists; without `stop` it goes on to the limit."""
    size = options.beam_size
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = [
            (total + gain, [*ids, token])
            for total, ids in beams
            for token, gain in enumerate(toy.log_probs(sentence, ids))
            if gain > -math.inf and not (length == 1 and token == EOS)
        ]
        candidates = sorted(candidates, key=lambda one: -one[0])[: 2 * size]
        for total, ids in candidates[:size]:
            if ids[-1] == EOS:
                ended.append(Hypothesis(ids[:-1], total / options.penalty(length - 1), total, True))
            elif length == limit:
                ended.append(Hypothesis(ids, total / options.penalty(length), total, False))
        beams = [one for one in candidates if one[1][-1] != EOS][:size]
        if stop and len(ended) >= size:
            break
    return sorted(ended, key=lambda one: -one.score)[: options.n_best]


@pytest.mark.parametrize("kind", ["average", "gnmt"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_exact_stopping_with_full_width_is_brute_force(kind: Any, alpha: float) -> None:
    limits = [1, 3, 4]
    toy = Toy(seed=int(alpha * 10), sentences=len(limits))
    full = len(WORDS) ** max(limits) + len(WORDS) ** (max(limits) - 1)
    options = SearchOptions(
        beam_size=full,
        length_penalty=alpha,
        length_penalty_kind=kind,
        stopping="exact",
        n_best=6,
    )
    found = beam_search(toy.step, toy.start(), limits, options)
    for sentence, limit in enumerate(limits):
        best = brute_force(toy, sentence, limit, options)[: options.n_best]
        assert [one.ids for one in found[sentence]] == [ids for _, ids in best]
        assert [one.score for one in found[sentence]] == pytest.approx([score for score, _ in best], abs=1e-12)


searches = st.fixed_dictionaries(
    {
        "beam_size": st.integers(1, 6),
        "length_penalty": st.sampled_from([0.0, 0.5, 1.0, 1.5]),
        "length_penalty_kind": st.sampled_from(["average", "gnmt"]),
    }
)


@settings(max_examples=40)
@given(searches, st.integers(0, 10_000), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_beam_search_follows_the_rule(values: dict[str, Any], seed: int, limits: list[int]) -> None:
    toy = Toy(seed, len(limits))
    options = SearchOptions(**values, n_best=values["beam_size"])
    found = beam_search(toy.step, toy.start(), limits, options)
    for sentence, limit in enumerate(limits):
        same(found[sentence], reference_beam(toy, sentence, limit, options, stop=True))


@settings(max_examples=40)
@given(searches, st.integers(1, 6), st.integers(0, 10_000), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_exact_stopping_loses_nothing(values: dict[str, Any], n_best: int, seed: int, limits: list[int]) -> None:
    toy = Toy(seed, len(limits), sharpness=3.0)
    size = max(n_best, values["beam_size"])
    options = SearchOptions(**{**values, "beam_size": size}, n_best=n_best, stopping="exact")
    found = beam_search(toy.step, toy.start(), limits, options)
    for sentence, limit in enumerate(limits):
        same(found[sentence], reference_beam(toy, sentence, limit, options, stop=False))


@pytest.mark.parametrize("stopping", ["first", "exact"])
def test_nothing_changes_where_values_are_not_looked_at(stopping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [3, 9, 5, 1, 12, 12]
    toy = Toy(seed=21, sentences=len(limits))
    options = SearchOptions(beam_size=3, n_best=3, stopping=stopping)
    expected = beam_search(toy.step, toy.start(), limits, options)
    monkeypatch.setattr("transformer_cli.decoding.search.beam.is_cheap_to_read", lambda tensor: False)
    for found, one in zip(beam_search(toy.step, toy.start(), limits, options), expected, strict=True):
        same(found, one)


def test_exact_stopping_waits_for_a_long_text_that_may_still_win() -> None:
    toy = Toy(seed=0, sentences=1)
    toy.table[:] = -50.0
    toy.table[..., BOS, :, 4], toy.table[..., BOS, :, 5] = -1.5, -2.0
    toy.table[..., 4, :, EOS] = 0.0  # one word and out: -1.5 at any length penalty
    toy.table[..., 5, :, 5] = 0.0  # on and on: -2, divided by more with each word
    options = SearchOptions(beam_size=2, length_penalty=0.3, stopping="exact")
    assert beam_search(toy.step, toy.start(), [9], options)[0][0].ids == [5] * 9


def test_exact_stopping_does_stop() -> None:
    toy = Toy(seed=3, sentences=1, sharpness=0.1)
    toy.table[..., EOS] += 5.0  # ending is by far the likeliest
    beam_search(toy.step, toy.start(), [500], SearchOptions(beam_size=3, length_penalty=0.2, stopping="exact"))
    assert len(toy.rows) < 100


def test_exact_stopping_stops_where_nothing_more_ends() -> None:
    toy = Toy(seed=3, sentences=1)
    toy.table[:], toy.table[..., 4], toy.table[..., EOS] = -30.0, -2.0, -50.0
    toy.table[:, 2, ..., EOS] = -3.0  # worse than to go on, until one word more is said
    options = SearchOptions(beam_size=2, length_penalty=0.0, stopping="exact")
    assert len(beam_search(toy.step, toy.start(), [500], options)[0][0].ids) == 1
    assert len(toy.rows) < 6


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_beam_one_is_greedy(seed: int, limits: list[int]) -> None:
    toy = Toy(seed, len(limits))
    options = SearchOptions(beam_size=1)
    beams = beam_search(toy.step, toy.start(), limits, options)
    for greedy, beam in zip(greedy_search(toy.step, toy.start(), limits, options), beams, strict=True):
        same([greedy], beam)


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_hypotheses_score_as_when_forced(method: str) -> None:
    limits = [4, 12, 7, 9]
    toy = Toy(seed=5, sentences=len(limits))
    options = SearchOptions(beam_size=4, n_best=4, length_penalty=0.7)
    if method == "beam":
        found = beam_search(toy.step, toy.start(), limits, options)
    else:
        found = [[one] for one in greedy_search(toy.step, toy.start(), limits, options)]
    assert any(one.ended for hypotheses in found for one in hypotheses)
    for sentence, hypotheses in enumerate(found):
        for one in hypotheses:
            total = toy.forced(sentence, [*one.ids, EOS] if one.ended else one.ids)
            assert one.log_probability == pytest.approx(total, abs=1e-12)
            assert one.score == pytest.approx(total / len(one.ids) ** 0.7, abs=1e-12)
            assert 1 <= len(one.ids) <= limits[sentence]
            assert one.ended or len(one.ids) == limits[sentence]


@pytest.mark.parametrize("size", [1, 4])
def test_finished_sentences_leave_and_change_nothing(size: int) -> None:
    limits = [2, 9, 5, 1, 12]
    toy = Toy(seed=8, sentences=len(limits))
    options = SearchOptions(beam_size=size, n_best=size)

    def search(cache: Histories, limits: list[int]) -> list[list[Hypothesis]]:
        if size > 1:
            return beam_search(toy.step, cache, limits, options)
        return [[one] for one in greedy_search(toy.step, cache, limits, options)]

    together = search(toy.start(), limits)
    rows = toy.rows[:]
    assert rows[0] == len(limits)
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert rows[-1] < rows[1], "none left"
    for sentence, limit in enumerate(limits):
        same(search(toy.start().select(torch.tensor([sentence])), [limit])[0], together[sentence])


def test_log_probabilities_of_half_precision_are_summed_in_float32() -> None:
    toy = Toy(seed=2, sentences=2)
    toy.table = toy.table.to(torch.bfloat16)
    options = SearchOptions(beam_size=2)
    for found in (
        [one[0] for one in beam_search(toy.step, toy.start(), [200, 200], options)],
        greedy_search(toy.step, toy.start(), [200, 200], options),
    ):
        for sentence, one in enumerate(found):
            total = toy.forced(sentence, [*one.ids, EOS] if one.ended else one.ids)
            assert one.log_probability == pytest.approx(total, rel=1e-5)


def test_a_model_that_gives_no_numbers_still_ends() -> None:
    toy = Toy(seed=2, sentences=2)
    toy.table[:] = torch.nan
    for stopping in ("first", "exact"):
        options = SearchOptions(beam_size=2, stopping=stopping)
        assert all(beam_search(toy.step, toy.start(), [5, 7], options))
