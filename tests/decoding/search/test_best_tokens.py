"""The best by blocks are the best of all."""

import pytest
import torch

from transformer_cli.decoding.search import greedy as best_tokens
from transformer_cli.decoding.search.greedy import best_continuations, best_token


@pytest.mark.parametrize("vocabulary", [5, 63, 64, 65, 640, 1000, 1027])
@pytest.mark.parametrize(("batch", "width", "count"), [(1, 1, 1), (3, 1, 10), (2, 5, 10), (4, 3, 24)])
def test_best_continuations_are_those_of_a_sort(vocabulary: int, batch: int, width: int, count: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    before = torch.randn(batch, width, generator=generator, dtype=torch.float64)
    log_probs = torch.randn(batch * width, vocabulary, generator=generator, dtype=torch.float64)
    log_probs[:, [0, 2]] = -torch.inf
    totals = (before[:, :, None] + log_probs.view(batch, width, -1)).flatten(1)
    order = totals.argsort(dim=1, descending=True)[:, :count]
    values, places = best_continuations(before, log_probs, count)
    finite = order.size(1) if vocabulary > 5 else 3 * width
    assert torch.equal(values, totals.gather(1, order))
    assert torch.equal(places[:, :finite], order[:, :finite])


def test_rows_that_are_dead_and_rows_with_few_tokens() -> None:
    log_probs = torch.full((4, 700), -torch.inf)
    log_probs[0, 699], log_probs[0, 3], log_probs[2, 650], log_probs[3, 0] = -1.0, -2.0, -3.0, -4.0
    values, places = best_continuations(torch.tensor([[0.0, -1.0], [-torch.inf, -1.0]]), log_probs, 4)
    assert values[0, :2].tolist() == [-1.0, -2.0]
    assert places[0, :2].tolist() == [699, 3]
    assert values[1, :1].tolist() == [-5.0]
    assert places[1, :1].tolist() == [700]
    assert (values[0, 2:] == -torch.inf).all()


@pytest.mark.parametrize("vocabulary", [5, 64, 700, 1027])
def test_the_best_token_is_the_first_of_the_likeliest(vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_tokens, "LARGE", 1)
    log_probs = torch.randint(-9, 0, (200, vocabulary), generator=torch.Generator().manual_seed(1)).double()
    assert torch.equal(best_token(log_probs), log_probs.argmax(dim=1))
