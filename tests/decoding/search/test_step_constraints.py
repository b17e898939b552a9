"""Prefix, forbidden text, no repeated n-gram and minimum length, in every search, against brute force."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.toy import WORDS, Toy, admissible, brute_force, repeated, same, times
from transformer_cli.decoding.engines.protocol import UNCONSTRAINED, TokenConstraints
from transformer_cli.decoding.search.constrained import without_repeated
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD

FULL = len(WORDS) ** 4 + len(WORDS) ** 3
METHODS: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "beam": {"beam_size": 4, "n_best": 4},
    "exact": {"beam_size": 3, "n_best": 2, "stopping": "exact", "length_penalty_kind": "gnmt"},
    "diverse": {"beam_size": 4, "n_best": 4, "diversity_groups": 2},
    "sample": {"method": "sample", "n_best": 3, "temperature": 1.5, "top_k": 5, "top_p": 0.98, "seed": 3},
}
CONSTRAINED: dict[str, tuple[dict[str, Any], TokenConstraints]] = {
    "prefix": ({}, TokenConstraints(prefix=(6, 6))),
    "forbidden": ({}, TokenConstraints(forbidden=((5, 4), (6,), (4, 4, 4), (5, 5)))),
    "bigrams": ({"no_repeat_ngram": 2}, UNCONSTRAINED),
    "words": ({"no_repeat_ngram": 1}, UNCONSTRAINED),
    "minimum": ({"min_length": 3}, UNCONSTRAINED),
    "required": ({}, TokenConstraints(required=((4,), (5, 6)))),
    "twice": ({}, TokenConstraints(required=((4,), (4,), (5,)))),
    "prefixed": ({"no_repeat_ngram": 2}, TokenConstraints(prefix=(5,), required=((6, 6),))),
    "all": ({"no_repeat_ngram": 2, "min_length": 2}, TokenConstraints(prefix=(4,), forbidden=((4, 4), (5, 6)))),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", CONSTRAINED)
def test_full_width_finds_the_best_texts_that_are_allowed(name: str) -> None:
    values, constraint = CONSTRAINED[name]
    toy = Toy(seed=len(name), sentences=2)
    options = SearchOptions(beam_size=FULL, stopping="exact", max_length=4, n_best=5, length_penalty=0.2, **values)
    matters = False

    def admits(words: list[int], ended: bool) -> bool:
        return admissible(options, constraint, words, ended) and not repeated(words, options.no_repeat_ngram)

    for sentence, found in enumerate(toy.search(options, [constraint, constraint])):
        best = brute_force(toy, sentence, 4, options, admits)
        free = brute_force(toy, sentence, 4, options)
        matters |= best[:5] != free[:5]
        assert [one.ids for one in found] == [ids for _, ids in best[:5]]
        assert [one.score for one in found] == pytest.approx([score for score, _ in best[:5]], abs=1e-12)
    assert matters, "the test needs a constraint that matters"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CONSTRAINED)
def test_every_search_satisfies_them_and_reports_the_models_own_scores(method: str, name: str) -> None:
    values, constraint = CONSTRAINED[name]
    toy = Toy(seed=7, sentences=6, sharpness=4.0)
    options = SearchOptions(**{**METHODS[method], **values}, max_length=9)
    free = toy.search(SearchOptions(**METHODS[method], max_length=9))
    found = toy.search(options, [constraint] * 6)
    assert found != free, "the test needs a constraint that matters"
    for sentence, group in enumerate(found):
        assert group
        for one in group:
            assert admissible(options, constraint, one.ids, one.ended), one
            total = toy.forced(sentence, [*one.ids, EOS] if one.ended else one.ids)
            assert one.log_probability == pytest.approx(total, abs=1e-12)
            assert one.score == pytest.approx(total / options.penalty(len(one.ids)), abs=1e-12)
            assert one.ended or len(one.ids) == 9


@pytest.mark.parametrize("method", METHODS)
def test_a_sentences_constraints_are_its_own_and_batches_change_nothing(method: str) -> None:
    constraints = [constraint for _, constraint in CONSTRAINED.values()]
    toy = Toy(seed=11, sentences=len(constraints))
    options = SearchOptions(**METHODS[method], no_repeat_ngram=3, max_length=10)
    together = toy.search(options, constraints)
    backwards = toy.search(options, constraints[::-1], range(len(constraints))[::-1])
    for sentence, constraint in enumerate(constraints):
        same(toy.search(options, [constraint], [sentence])[0], together[sentence])
        same(backwards[-1 - sentence], together[sentence])
    free = toy.search(options)
    for sentence in (sentence for sentence, constraint in enumerate(constraints) if constraint == UNCONSTRAINED):
        same(together[sentence], free[sentence])


@pytest.mark.parametrize("method", METHODS)
def test_constraints_that_never_apply_change_nothing(method: str) -> None:
    toy = Toy(seed=13, sentences=3)
    options = SearchOptions(**METHODS[method], max_length=8)
    free = toy.search(options)
    unreachable = [TokenConstraints(forbidden=((4,) * 9, (5, 6) * 5))] * 3
    for found in (toy.search(replace(options, no_repeat_ngram=8)), toy.search(options, unreachable)):
        for group, expected in zip(found, free, strict=True):
            same(group, expected)
    if method == "greedy":
        for group, expected in zip(
            toy.search(options, [TokenConstraints(tuple(one[0].ids)) for one in free]), free, strict=True
        ):
            assert group[0].ids[: len(expected[0].ids)] == expected[0].ids


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(0, 9), st.lists(st.integers(3, 6), max_size=8), st.integers(1, 3))
def test_a_token_is_blocked_where_it_would_repeat(size: int, seed: int, said: list[int], rows: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    history = torch.randint(3, 7, (rows, len(said)), generator=generator)
    history[0] = torch.tensor(said)
    log_probs = torch.randn(rows, 7, generator=generator)
    found = without_repeated(log_probs, history, size)
    for row in range(rows):
        words = history[row].tolist()
        grams = {tuple(words[place : place + size]) for place in range(len(words) - size + 1)}
        for token in range(7):
            blocked = tuple([*words, token][-size:]) in grams
            assert found[row, token] == (-torch.inf if blocked else log_probs[row, token])


def test_a_prefix_beyond_the_limit_raises_it() -> None:
    toy = Toy(seed=1, sentences=1)
    prefix = (4, 5, 6, 4, 5, 6, 6)
    for method in METHODS.values():
        for one in toy.search(SearchOptions(**method, max_length=2), [TokenConstraints(prefix=prefix)])[0]:
            assert tuple(one.ids[:7]) == prefix
            assert len(one.ids) <= 8


def test_the_later_constraint_gives_way_where_nothing_is_left() -> None:
    """Four words, none twice: the fifth token must be </s>, minimum length or not; what is forbidden stays so."""
    toy = Toy(seed=1, sentences=1)
    for method in METHODS.values():
        for one in toy.search(SearchOptions(**method, max_length=9, no_repeat_ngram=1, min_length=7))[0]:
            assert len(one.ids) == 4
            assert not repeated(one.ids, 1)
        every = tuple((first, second) for first in WORDS for second in WORDS)
        constraint = TokenConstraints(forbidden=every, required=((4,), (5,)))
        for one in toy.search(SearchOptions(**method, max_length=9, min_length=7), [constraint])[0]:
            assert len(one.ids) == 1
    with pytest.raises(UserError, match="every word"):
        toy.search(SearchOptions(), [TokenConstraints(forbidden=tuple((word,) for word in WORDS))])


@pytest.mark.parametrize(
    "values",
    [
        {"required": ((),)},
        {"forbidden": ((4,), ())},
        {"prefix": (4, EOS)},
        {"required": ((PAD,),)},
        {"forbidden": ((BOS, 4),)},
        {"prefix": (4, 5, 6), "forbidden": ((5, 6),)},
        {"required": ((4,), (5, 6)), "forbidden": ((6,),)},
    ],
)
def test_constraints_that_nothing_can_satisfy_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        TokenConstraints(**values)
    assert "\n" not in str(error.value)


def test_forbidding_half_of_a_sequence_is_not_forbidding_its_parts() -> None:
    toy = Toy(seed=5, sentences=4, sharpness=0.1)
    options = SearchOptions(method="sample", n_best=40, max_length=12)
    texts = [one.ids for group in toy.search(options, [TokenConstraints(forbidden=((4, 5, 4),))] * 4) for one in group]
    assert not any(times((4, 5, 4), ids) for ids in texts)
    assert any(times((4, 5), ids) for ids in texts)
    assert any(times((5, 4), ids) for ids in texts)


settings_of_searches = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["beam", "greedy", "sample"]),
        "length_penalty": st.sampled_from([0.0, 0.6, 1.0]),
        "length_penalty_kind": st.sampled_from(["average", "gnmt"]),
        "stopping": st.sampled_from(["first", "exact"]),
        "no_repeat_ngram": st.integers(0, 3),
        "top_k": st.integers(0, 4),
        "top_p": st.sampled_from([0.5, 1.0]),
        "temperature": st.sampled_from([0.5, 2.0]),
    }
)
words = st.sampled_from(WORDS)
sequences = st.lists(st.lists(words, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple)


@pytest.mark.medium
@settings(max_examples=80)
@given(
    settings_of_searches,
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 6)),
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(0, 99),
    st.lists(st.tuples(st.lists(words, max_size=3).map(tuple), sequences, sequences), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.4]),
)
def test_no_combination_crashes_and_limits_hold(
    values: dict[str, Any],
    sizes: tuple[int, int, int],
    max_length: int,
    min_length: int,
    seed: int,
    wanted: list[tuple[Any, Any, Any]],
    coverage: float,
) -> None:
    beam = values["method"] == "beam"
    groups = sizes[0] if beam else 1
    constraints, options = [], SearchOptions(
        **values,
        beam_size=groups * sizes[1],
        diversity_groups=groups,
        n_best=1 if values["method"] == "greedy" else min(sizes[2], groups * sizes[1]),
        coverage_penalty=coverage if beam else 0.0,
        max_length=max_length,
        min_length=min(min_length, max_length),
    )  # fmt: skip
    for prefix, required, forbidden in wanted:
        try:
            constraints.append(TokenConstraints(prefix, required, forbidden))
        except UserError:
            constraints.append(TokenConstraints(prefix, required))
    toy = Toy(seed, len(constraints))
    try:
        found = toy.search(options, constraints)
    except UserError as error:
        assert "every word" in str(error)  # noqa: PT017
        return
    for sentence, (constraint, group) in enumerate(zip(constraints, found, strict=True)):
        room = (
            len(constraint.prefix)
            + sum(map(len, constraint.required))
            + len(constraint.required) * bool(constraint.forbidden)
            + 1
        )
        assert 1 <= len(group) <= options.n_best
        for one in group:
            assert 1 <= len(one.ids) <= max(max_length, room)
            assert not any(times(sequence, one.ids) for sequence in constraint.forbidden)
            assert tuple(one.ids[: len(constraint.prefix)]) == constraint.prefix
            total = toy.forced(sentence, [*one.ids, EOS] if one.ended else one.ids)
            assert one.log_probability == pytest.approx(total, abs=1e-12)
