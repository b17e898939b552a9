"""The coverage penalty ranks what ended, by attention on the source, and leaves the search and log-probabilities be."""

import math
from dataclasses import replace

import pytest
import torch

from tests.decoding.toy import Histories, Toy, brute_force
from transformer_cli.decoding.engines.protocol import TokenConstraints
from transformer_cli.decoding.search.dispatch import coverage
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS

OPTIONS = SearchOptions(beam_size=6, n_best=6, max_length=6, coverage_penalty=0.5)


def expected_coverage(toy: Toy, sentence: int, ids: list[int]) -> float:
    """Σ_j log min(Σ_i a_ij, 1) by teacher forcing, over the words, without `</s>`."""
    cache = Histories(torch.tensor([sentence]), torch.zeros(1, 0, dtype=torch.long))
    attended = torch.zeros(1, 5, dtype=torch.float64)
    for token in [BOS, *ids[:-1]]:
        _, attention, cache = toy.attending_step(torch.tensor([token]), cache)
        attended += attention
    return sum(math.log(min(one, 1.0)) for one in attended[0].tolist())


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("constraint", [TokenConstraints(), TokenConstraints(prefix=(5,), required=((6, 4),))])
def test_scores_hold_the_coverage_of_the_words(groups: int, constraint: TokenConstraints) -> None:
    toy = Toy(seed=5, sentences=6)
    options = replace(OPTIONS, diversity_groups=groups)
    ended, lacking = set(), 0
    for sentence, found in enumerate(toy.search(options, [constraint] * 6)):
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        for one in found:
            ended.add(one.ended)
            bonus = 0.5 * expected_coverage(toy, sentence, one.ids)
            lacking += bonus < 0
            assert one.score == pytest.approx(one.log_probability / options.penalty(len(one.ids)) + bonus, abs=1e-6)
    assert ended == {True, False}, "the test wants both kinds"
    assert lacking, "the test wants sources not covered"


def test_full_width_and_exact_stopping_find_the_best_by_both() -> None:
    toy = Toy(seed=8, sentences=2)
    options = replace(OPTIONS, beam_size=400, stopping="exact", max_length=4, length_penalty=0.5)
    for sentence, found in enumerate(toy.search(options)):
        texts = brute_force(toy, sentence, 4, options)
        covered = [(score + 0.5 * expected_coverage(toy, sentence, ids), ids) for score, ids in texts]
        best = [ids for _, ids in sorted(covered, key=lambda one: -one[0])[:6]]
        assert [one.ids for one in found] == best
        assert best != [ids for _, ids in texts[:6]]


def test_the_beams_are_those_of_a_search_without() -> None:
    """Only the order changes: with as many returned as ended, the same texts are found."""
    toy = Toy(seed=9, sentences=5)
    for plain, covered in zip(toy.search(replace(OPTIONS, coverage_penalty=0.0)), toy.search(OPTIONS), strict=True):
        logs = {tuple(one.ids): one.log_probability for one in plain}
        for one in covered:
            if tuple(one.ids) in logs:
                assert one.log_probability == logs[tuple(one.ids)]
        assert set(logs) & {tuple(one.ids) for one in covered}


def test_attention_above_one_earns_nothing_and_none_at_all_costs_nothing() -> None:
    attended = torch.tensor([[1.0, 2.5, 0.5, 0.0], [1.0, 1.0, 1.0, 0.25]], dtype=torch.float64)
    logs = attended.new_tensor([0.5, 0.25]).log()
    assert torch.equal(coverage(attended), logs)
