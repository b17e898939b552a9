"""Searches that seldom look who is done find the same: a GPU's values are looked at every few steps only."""

import pytest

from tests.decoding.engines.test_torch_engine import DEMANDS, SEARCHES, SOURCES, make_engine, same
from transformer_cli.decoding.search import beam, greedy


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("every", [2, 3, 50])
def test_looking_seldom_finds_the_same(method: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    constraints = None if method == "sample" else DEMANDS
    expected = [engine.search(SOURCES, SEARCHES[method], None, one) for one in (None, constraints)]
    for module in (greedy, beam):
        monkeypatch.setattr(module, "check_interval", lambda device: every)
    monkeypatch.setattr(beam, "is_cheap_to_read", lambda tensor: False)
    for one, other in zip((None, constraints), expected, strict=True):
        same(engine.search(SOURCES, SEARCHES[method], None, one), other)
