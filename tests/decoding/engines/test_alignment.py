"""A target token belongs to the source token whose attention is its own."""

import numpy as np
import pytest

from transformer_cli.decoding.engines.protocol import own_sources


def test_each_token_belongs_to_the_source_token_it_looks_at() -> None:
    assert own_sources(np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])) == [0, 2, 1]


def test_a_source_token_that_every_step_looks_at_is_not_everybodys() -> None:
    weights = np.array([[0.4, 0.0, 0.6], [0.0, 0.4, 0.6], [0.0, 0.0, 1.0]])  # the last: a full stop
    assert own_sources(weights) == [0, 1, 2]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_only_token_belongs_to_what_it_looks_at_most(place: int) -> None:
    assert own_sources(np.where(np.arange(3) == place, 0.6, 0.2)[None, :]) == [place]


def test_a_source_token_that_nobody_looks_at_belongs_to_nobody() -> None:
    assert own_sources(np.array([[0.49999, 1e-5, 0.5], [0.5, 0.0, 0.5]])) == [2, 0]


def test_no_target_gives_no_places() -> None:
    assert own_sources(np.zeros((0, 3))) == []
