"""Search options: bounds, defaults from the config, length limits and penalties."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.main import get_command

from transformer_cli.cli.app import app
from transformer_cli.config import DecodingConfig
from transformer_cli.decoding.engines.protocol import occurs
from transformer_cli.errors import UserError
from transformer_cli.search_options import LIMIT_STEP, SearchOptions, bound_of


@pytest.mark.parametrize(
    "values",
    [
        {"beam_size": 0},
        {"beam_size": 1001},
        {"stopping": "never"},
        {"method": "beams"},
        {"n_best": 0},
        {"n_best": 6, "beam_size": 5},
        {"n_best": 2, "method": "greedy"},
        {"length_penalty": -0.1},
        {"length_penalty": math.nan},
        {"temperature": 0.0},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"max_length_ratio": 0.0},
        {"max_length_extra": -1},
        {"min_length": -1},
        {"max_length": 0},
        {"min_length": 9, "max_length": 8},
        {"no_repeat_ngram": -1},
        {"coverage_penalty": -0.1},
        {"coverage_penalty": math.inf},
        {"diversity_groups": 0},
        {"diversity_groups": 2, "beam_size": 5},
        {"diversity_strength": -1.0},
        {"iterations": 0},
        {"length_candidates": 0},
        {"length_candidates": 101},
        {"max_length_ratio": 100.5},
        {"max_length_extra": 10_001},
        {"length_penalty": 10.1},
        {"seed": -1},
    ],
)
def test_values_out_of_bounds_are_refused_in_one_line(values: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        SearchOptions(**values)
    message = str(error.value)
    assert str(next(iter(values.values()))) in message
    assert "\n" not in message


NUMBERS = [name for name in SearchOptions.__dataclass_fields__ if bound_of(name)]


def ends(name: str) -> tuple[list[Any], list[Any]]:
    """Values at the ends of an option's bound, and values just beyond them."""
    bound = bound_of(name)
    assert bound is not None
    default = SearchOptions.__dataclass_fields__[name].default
    step = 0.5 if isinstance(default, float) else 1
    allowed, refused = ([], [bound.least]) if bound.above else ([bound.least], [bound.least - step])
    if bound.most is not None:
        allowed, refused = [*allowed, bound.most], [*refused, bound.most + step]
    return [type(step)(value) for value in allowed], [type(step)(value) for value in refused]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_bound_is_the_same_in_a_config_and_in_python(name: str) -> None:
    allowed, refused = ends(name)
    for value in allowed:
        values: dict[str, Any] = {"beam_size": 1000 if name == "n_best" else 5, name: value}
        SearchOptions(**values)
    for value in refused:
        with pytest.raises(UserError, match=f"{name} .* is out of bounds: give {bound_of(name)}"):
            SearchOptions(**{name: value})
    if name in DecodingConfig.model_fields:
        assert [getattr(DecodingConfig(**{name: value}), name) for value in allowed] == allowed
        for value in refused:
            with pytest.raises(ValidationError, match=name):
                DecodingConfig(**{name: value})


def test_the_command_lines_bounds_are_the_same_too() -> None:
    options = {"beam": "beam_size", "diverse_groups": "diversity_groups", "diversity": "diversity_strength"}
    off = {"top_k", "no_repeat_ngram"}  # 0 is the same as leaving the option out
    seen = set()
    for parameter in get_command(app).commands["translate"].params:  # type: ignore[attr-defined]
        name = options.get(parameter.name, parameter.name)
        bound = bound_of(name) if name in NUMBERS else None
        if bound is not None:
            seen.add(name)
            assert (parameter.min, parameter.max) == (1 if name in off else bound.least, bound.most), name
            assert parameter.default is None or parameter.default == SearchOptions.__dataclass_fields__[name].default
    assert set(NUMBERS) - seen == {"max_length_ratio", "max_length_extra"}, "which only a config or a program may set"


@pytest.mark.parametrize("values", [{"diversity_groups": 5}, {"coverage_penalty": 0.2}])
@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_what_only_beam_search_has_is_refused_elsewhere(method: Any, values: dict[str, Any]) -> None:
    SearchOptions(**values)
    with pytest.raises(UserError, match="only beam search"):
        SearchOptions(method=method, **values)


@given(st.integers(0, 1000), st.integers(0, 500), st.integers(1, 500))
def test_lengths_asked_for_bound_the_limit(source: int, least: int, most: int) -> None:
    assert SearchOptions(max_length=most).length_limit(source) == most
    assert SearchOptions(min_length=least).length_limit(source) >= least
    assert SearchOptions(min_length=0).length_limit(source) == SearchOptions().length_limit(source)


def test_a_sequence_occurs_where_its_tokens_follow_one_another() -> None:
    text = [4, 5, 6, 4, 4]
    assert all(occurs(sequence, text) for sequence in [(), (4,), (5, 6), (4, 4), (4, 5, 6, 4, 4)])
    assert not any(occurs(sequence, text) for sequence in [(7,), (4, 6), (6, 5), (4, 4, 4), (4, 5, 6, 4, 4, 4)])


def test_sampling_may_draw_more_than_the_beam_size() -> None:
    assert SearchOptions(method="sample", n_best=20, beam_size=1).n_best == 20


def test_the_config_gives_every_default_and_may_be_overruled() -> None:
    decoding = DecodingConfig(
        beam_size=3, length_penalty=0.6, length_penalty_kind="gnmt", stopping="exact", max_length_ratio=1.5,
        max_length_extra=7, iterations=4, length_candidates=2, split="always",
    )  # fmt: skip
    options = SearchOptions.from_config(decoding, n_best=2, beam_size=4)
    shared = set(DecodingConfig.model_fields) & set(SearchOptions.__dataclass_fields__)
    assert len(shared) == 9
    for name in shared - {"beam_size"}:
        assert getattr(options, name) == getattr(decoding, name)
    assert (options.beam_size, options.n_best) == (4, 2)


@given(st.integers(0, 10_000), st.floats(0.1, 10), st.integers(0, 100))
def test_a_limit_is_the_next_multiple(length: int, ratio: float, extra: int) -> None:
    limit = SearchOptions(max_length_ratio=ratio, max_length_extra=extra).length_limit(length)
    assert limit % LIMIT_STEP == 0
    assert limit > 0
    assert limit >= ratio * length + extra
    assert limit < ratio * length + extra + LIMIT_STEP + 1


@given(st.integers(1, 1000), st.floats(0, 3))
def test_penalties_are_their_formulas(length: int, alpha: float) -> None:
    assert SearchOptions(length_penalty=alpha).penalty(length) == pytest.approx(length**alpha)
    gnmt = SearchOptions(length_penalty=alpha, length_penalty_kind="gnmt")
    assert gnmt.penalty(length) == pytest.approx((5 + length) ** alpha / 6**alpha)
