"""Search options: bounds, defaults from the config, length limits and penalties."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.config import DecodingConfig
from transformer_cli.decoding.options import LIMIT_STEP, SearchOptions
from transformer_cli.errors import UserError


@pytest.mark.parametrize(
    "values",
    [
        {"beam_size": 0},
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
    ],
)
def test_values_out_of_bounds_are_refused_in_one_line(values: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        SearchOptions(**values)
    message = str(error.value)
    assert str(next(iter(values.values()))) in message
    assert "\n" not in message


def test_sampling_may_draw_more_than_the_beam_size() -> None:
    assert SearchOptions(method="sample", n_best=20, beam_size=1).n_best == 20


def test_the_config_gives_every_default_and_may_be_overruled() -> None:
    decoding = DecodingConfig(
        beam_size=3, length_penalty=0.6, length_penalty_kind="gnmt", stopping="exact", max_length_ratio=1.5,
        max_length_extra=7,
    )  # fmt: skip
    options = SearchOptions.from_config(decoding, n_best=2, beam_size=4)
    shared = set(DecodingConfig.model_fields) & set(SearchOptions.__dataclass_fields__)
    assert len(shared) == 6
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
