"""Required token sequences: they hold whatever the case, and beams are shared out so that they come where they fit."""

import random
from typing import Any

import pytest
import torch

from tests.decoding.toy import Toy, repeated, same, times
from transformer_cli.decoding.engines.protocol import UNCONSTRAINED, TokenConstraints
from transformer_cli.decoding.search.automaton import ConstraintAutomaton
from transformer_cli.decoding.search.constrained import alternate, beams_needed
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import EOS, UNK

SIZE = 16
METHODS: dict[str, dict[str, Any]] = {
    "beam": {"beam_size": 3, "n_best": 3},
    "one beam": {"beam_size": 1},
    "exact": {"beam_size": 2, "n_best": 2, "stopping": "exact"},
    "diverse": {"beam_size": 4, "n_best": 4, "diversity_groups": 2},
    "greedy": {"method": "greedy"},
    "sample": {"method": "sample", "n_best": 2},
}


def random_constraints(dice: random.Random) -> TokenConstraints:
    """Up to three sequences required and two forbidden, of tokens 4 to 14; token 15 is always free."""

    def sequence(longest: int) -> tuple[int, ...]:
        return tuple(dice.randint(4, 8 if dice.random() < 0.5 else 14) for _ in range(dice.randint(1, longest)))

    while True:
        required = [sequence(3) for _ in range(dice.randint(1, 3))]
        forbidden = [sequence(2) for _ in range(dice.randint(0, 2))]
        try:
            return TokenConstraints(sequence(3) if dice.random() < 0.2 else (), tuple(required), tuple(forbidden))
        except UserError:
            continue  # one forbids what another requires


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS)
def test_constraints_hold_in_a_thousand_random_cases(method: str) -> None:
    dice = random.Random(method)
    cases = 0
    for seed in range(4):
        toy = Toy(seed, sentences=50, size=SIZE, sharpness=dice.choice([0.5, 3.0]))
        constraints = [random_constraints(dice) for _ in range(50)]
        options = SearchOptions(
            **METHODS[method], max_length=dice.randint(1, 14), no_repeat_ngram=dice.choice([0, 0, 2, 3])
        )
        for sentence, (constraint, found) in enumerate(zip(constraints, toy.search(options, constraints), strict=True)):
            cases += 1
            assert found
            for one in found:
                assert tuple(one.ids[: len(constraint.prefix)]) == constraint.prefix
                for sequence in constraint.required:
                    assert times(sequence, one.ids) >= constraint.required.count(sequence), (constraint, one)
                for sequence in constraint.forbidden:
                    assert not times(sequence, one.ids), (constraint, one)
                if not constraint.prefix:
                    free = {token for sequence in constraint.required for token in sequence}
                    assert repeated(one.ids, options.no_repeat_ngram) <= free
                total = toy.forced(sentence, [*one.ids, EOS] if one.ended else one.ids)
                assert one.log_probability == pytest.approx(total, abs=1e-12)
    assert cases == 200  # of each of five methods and more: a thousand


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_the_limit_gives_way_only_as_far_as_it_must(limit: int) -> None:
    toy = Toy(seed=1, sentences=1, size=SIZE)
    constraint = TokenConstraints(prefix=(9, 4), required=((4, 5), (6,)))  # the prefix has said 4 already
    for values in METHODS.values():
        for one in toy.search(SearchOptions(**values, max_length=limit), [constraint])[0]:
            assert len(one.ids) <= max(limit, 5)
            assert times((4, 5), one.ids)
            assert times((6,), one.ids)


def test_required_words_come_where_the_model_likes_them_best() -> None:
    """A word that the model finds fit in second place only, and seldom likely enough for a plain beam."""
    toy = Toy(seed=1, sentences=1, size=SIZE)
    toy.table[:] = -9.0
    toy.table[:, 1, :, :, 4] = toy.table[:, 2, :, :, 5] = toy.table[:, 3, :, :, 6] = toy.table[:, 4:, :, :, EOS] = -0.1
    toy.table[:, 2, 4, :, 9] = -3.0
    for beam_size in (1, 2, 5):
        options = SearchOptions(beam_size=beam_size, max_length=12)
        assert toy.search(options)[0][0].ids == [4, 5, 6]
        assert toy.search(options, [TokenConstraints(required=((9,),))])[0][0].ids == [4, 9, 6]


def test_a_sequence_that_begins_badly_lives_on_until_it_is_whole() -> None:
    """9 is far less likely than three others, 8 after it is almost sure; later both are unlikely."""
    toy = Toy(seed=1, sentences=1, size=SIZE)
    toy.table[:] = -9.0
    toy.table[:, 1, :, :, 4] = toy.table[:, 2, :, :, 5] = toy.table[:, 3, :, :, 6] = toy.table[:, 4:, :, :, EOS] = -0.1
    for token, value in ((10, -1.0), (11, -1.5), (12, -2.0)):
        toy.table[:, 2:, :, :, token] = value
    toy.table[:, 2, 4, :, 9], toy.table[:, 3, 9, :, 8] = -7.0, -0.1
    options = SearchOptions(beam_size=3, max_length=12, length_penalty=0.0)
    assert toy.search(options, [TokenConstraints(required=((9, 8),))])[0][0].ids == [4, 9, 8]


def test_other_searches_say_what_is_lacking_where_they_would_end() -> None:
    toy = Toy(seed=1, sentences=1, size=SIZE)
    toy.table[:] = -9.0
    toy.table[:, 1, :, :, 4] = toy.table[:, 2, :, :, 5] = toy.table[:, 3:, :, :, EOS] = -0.001
    constraint = TokenConstraints(required=((9, 9), (7,)))
    for values in (METHODS["greedy"], METHODS["sample"] | {"top_k": 1}):
        ids = toy.search(SearchOptions(**values, max_length=30), [constraint])[0][0].ids
        assert ids[:2] == [4, 5]
        assert sorted(ids[2:]) == [7, 9, 9]


def test_beams_are_enough_for_every_bank_and_the_others_keep_theirs() -> None:
    assert beams_needed(ConstraintAutomaton(UNCONSTRAINED), 5) == 5
    assert beams_needed(ConstraintAutomaton(TokenConstraints(required=((4, 5), (6, 7)))), 5) == 5
    assert beams_needed(ConstraintAutomaton(TokenConstraints(required=((4, 5), (6, 7, 8)))), 5) == 10
    assert beams_needed(ConstraintAutomaton(TokenConstraints(required=((4, 5),))), 1) == 4
    toy = Toy(seed=2, sentences=4, size=SIZE)
    options = SearchOptions(beam_size=4, n_best=4, max_length=9)
    free = toy.search(options)
    mixed = toy.search(
        options, [UNCONSTRAINED, TokenConstraints(required=((4, 5, 6, 7, 8),)), UNCONSTRAINED, UNCONSTRAINED]
    )
    for sentence in (0, 2, 3):
        same(mixed[sentence], free[sentence])


def test_the_best_of_every_bank_goes_before_any_second_best() -> None:
    total = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -torch.inf]])
    bank = torch.tensor([[2, 2, 0, 2, 1, 1]])
    assert alternate(total, bank).tolist() == [[0, 2, 4, 1, 3, 5]]
    assert alternate(total, torch.zeros_like(bank)).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_an_automaton_says_how_much_is_needed() -> None:
    automaton = ConstraintAutomaton(TokenConstraints(required=((4, 4, 5), (6,), (6,))))
    walk = {(): 5, (4,): 4, (4, 4): 3, (4, 4, 4): 3, (4, 4, 4, 5): 2, (4, 4, 7): 5, (6,): 4, (6, 4): 3, (6, 6, 6): 3}
    for words, need in walk.items():
        path = automaton.follow(0, words)
        left = [
            max(0, count - times(sequence, words))
            for count, sequence in zip(automaton.counts, automaton.required, strict=True)
        ]
        assert automaton.needed(path[-1] if path else 0, left) == need, words


def test_what_is_forbidden_across_the_seam_gets_a_word_between() -> None:
    """4 and 5 may not touch, and both are required, in the shortest room."""
    toy = Toy(seed=3, sentences=20, size=SIZE)
    constraint = TokenConstraints(required=((4,), (5,)), forbidden=((4, 5), (5, 4), (UNK,)))
    for values in METHODS.values():
        for found in toy.search(SearchOptions(**values, max_length=1), [constraint] * 20):
            for one in found:
                assert times((4,), one.ids)
                assert times((5,), one.ids)
                assert not times((4, 5), one.ids) + times((5, 4), one.ids)
