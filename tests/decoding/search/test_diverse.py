"""Diverse beam search: one group is beam search; more groups say different things; scores stay the model's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.toy import Histories, Toy, same
from transformer_cli.decoding.engines.protocol import TokenConstraints
from transformer_cli.decoding.search.beam import Propose, advance, beam_search, diverse_proposer, start
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import EOS

OPTIONS = SearchOptions(beam_size=6, n_best=6, diversity_groups=3, diversity_strength=2.0)


@settings(max_examples=40)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from(["first", "exact"]),
    st.integers(0, 10_000),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_one_group_is_beam_search(size: int, n_best: int, alpha: float, stopping: Any, seed: int, limits: Any) -> None:
    toy = Toy(seed, len(limits))
    options = SearchOptions(beam_size=size, n_best=min(n_best, size), length_penalty=alpha, stopping=stopping)
    beams = beam_search(toy.step, toy.start(), limits, options)
    found = beam_search(toy.step, toy.start(), limits, options, propose=diverse_proposer(1, 0.5))
    for one, expected in zip(found, beams, strict=True):
        same(one, expected)


@pytest.mark.parametrize("stopping", ["first", "exact"])
def test_without_a_cost_every_group_is_the_same_small_beam(stopping: Any) -> None:
    toy = Toy(seed=3, sentences=5)
    options = replace(OPTIONS, diversity_strength=0.0, stopping=stopping)
    small = SearchOptions(beam_size=2, n_best=2, stopping=stopping)
    limits = [3, 9, 5, 1, 12]
    beams = beam_search(toy.step, toy.start(), limits, small)
    for found, expected in zip(beam_search(toy.step, toy.start(), limits, options), beams, strict=True):
        same(found, expected)


def test_first_words_differ_between_groups_where_the_cost_is_great() -> None:
    toy = Toy(seed=4, sentences=6, sharpness=0.5)
    options = replace(OPTIONS, beam_size=4, n_best=4, diversity_groups=4, diversity_strength=100.0)
    for found in toy.search(options):
        assert len({one.ids[0] for one in found}) == 4
    assert any(len({one.ids[0] for one in found}) < 4 for found in toy.search(replace(options, diversity_groups=1)))


def test_a_token_costs_once_for_each_live_beam_that_took_it_before() -> None:
    generator = torch.Generator().manual_seed(1)
    log_probs = torch.randn(1, 9, generator=generator, dtype=torch.float64).log_softmax(dim=1)
    log_probs[0, EOS] = -0.1  # ends at once, and takes nothing from anyone
    own = SearchOptions(beam_size=2, diversity_strength=0.3)
    log_probs = log_probs.expand(3, 9)  # of each group's one beam
    state = start([9] * 3, 2, log_probs)
    propose: Propose[Histories] = diverse_proposer(3, 0.3)
    candidates = propose(state, log_probs, Toy(1, 1).start(), 4)
    new, origins, _ = advance(state, candidates, own)
    assert origins.shape == (3, 2)
    taken = torch.zeros(9, dtype=torch.float64)
    for group in range(3):
        expected = (log_probs[0] - 0.3 * taken).index_fill(0, torch.tensor([EOS]), -torch.inf).topk(2).indices
        assert new.tokens[group, :, 0].tolist() == expected.tolist()
        assert new.log_probability[group].tolist() == pytest.approx(log_probs[0, expected].tolist())
        assert new.ended.log_probability[group, 0] == log_probs[0, EOS]
        taken[expected] += 1


def test_scores_are_the_models_and_no_text_comes_twice() -> None:
    toy = Toy(seed=6, sentences=8)
    for sentence, found in enumerate(toy.search(replace(OPTIONS, max_length=7))):
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len({tuple(one.ids) for one in found}) == len(found)
        for one in found:
            total = toy.forced(sentence, [*one.ids, EOS] if one.ended else one.ids)
            assert one.log_probability == pytest.approx(total, abs=1e-12)
            assert one.score == pytest.approx(total / len(one.ids), abs=1e-12)


def test_every_groups_best_comes_before_any_second_best() -> None:
    toy = Toy(seed=6, sentences=8)
    several = toy.search(replace(OPTIONS, n_best=3, max_length=7))
    one_each = toy.search(replace(OPTIONS, beam_size=3, n_best=3, max_length=7))
    alone = toy.search(SearchOptions(beam_size=2, max_length=7))
    assert all(len(found) == 3 for found in several)
    for found, best in zip(several, alone, strict=True):
        assert best[0].ids in [one.ids for one in found]  # the first group's
    assert one_each != several


def test_batch_and_order_change_nothing_and_a_step_serves_all_groups() -> None:
    limits = [2, 9, 5, 1, 12]
    toy = Toy(seed=8, sentences=len(limits))
    together = beam_search(toy.step, toy.start(), limits, OPTIONS)
    rows = toy.rows[:]
    assert rows[0] == len(limits)
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert all(count % OPTIONS.beam_size == 0 for count in rows[1:])
    assert len(rows) <= max(limits)
    for sentence, limit in enumerate(limits):
        cache = toy.start().select(torch.tensor([sentence]))
        same(beam_search(toy.step, cache, [limit], OPTIONS)[0], together[sentence])


def test_groups_satisfy_constraints() -> None:
    toy = Toy(seed=9, sentences=3)
    constraint = TokenConstraints(prefix=(5,), required=((6, 4),), forbidden=((4, 4),))
    for found in toy.search(replace(OPTIONS, max_length=9), [constraint] * 3):
        for one in found:
            text = " ".join(map(str, one.ids))
            assert text.startswith("5")
            assert "6 4" in text
            assert "4 4" not in text
