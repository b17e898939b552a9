"""The best by blocks are the best of all; sampling draws from the distribution it should, each row for itself."""

import pytest
import torch

from transformer_cli.decoding.search import greedy
from transformer_cli.decoding.search.greedy import best_continuations, best_token, draw, uniform_numbers

LOGITS = torch.tensor([1.0, -torch.inf, 3.0, 0.5, 2.0, -torch.inf])


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
    monkeypatch.setattr(greedy, "LARGE", 1)
    log_probs = torch.randint(-9, 0, (200, vocabulary), generator=torch.Generator().manual_seed(1)).double()
    assert torch.equal(best_token(log_probs), log_probs.argmax(dim=1))


def frequencies(logits: torch.Tensor, top_k: int = 0, top_p: float = 1.0, draws: int = 4000) -> torch.Tensor:
    """How often each token comes up, over an even grid of uniform numbers."""
    grid = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    tokens = draw(logits.expand(draws, -1), grid, top_k, top_p)
    return torch.bincount(tokens, minlength=len(logits)) / draws


def test_draws_follow_the_distribution() -> None:
    assert torch.allclose(frequencies(LOGITS), LOGITS.softmax(0), atol=1e-3)


@pytest.mark.parametrize("top_k", [1, 2, 3, 6, 50])
def test_top_k_keeps_the_likeliest(top_k: int) -> None:
    best = LOGITS.argsort(descending=True)[:top_k]
    kept = torch.full_like(LOGITS, -torch.inf).scatter(0, best, LOGITS[best])
    assert torch.allclose(frequencies(LOGITS, top_k=top_k), kept.softmax(0), atol=1e-3)


@pytest.mark.parametrize(("top_p", "size"), [(0.01, 1), (0.6, 1), (0.65, 2), (0.88, 3), (0.95, 4), (0.99, 4)])
def test_top_p_keeps_the_fewest_that_hold_it(top_p: float, size: int) -> None:
    probabilities = LOGITS.softmax(0)
    best = LOGITS.argsort(descending=True)[:size]
    assert probabilities[best].sum() >= top_p
    assert probabilities[best[:-1]].sum() < top_p
    kept = torch.full_like(LOGITS, -torch.inf).scatter(0, best, LOGITS[best])
    assert torch.allclose(frequencies(LOGITS, top_p=top_p), kept.softmax(0), atol=1e-3)


def test_top_k_and_top_p_together() -> None:
    assert set(frequencies(LOGITS, top_k=3, top_p=0.7).nonzero()[:, 0].tolist()) == {2, 4}


@pytest.mark.parametrize("place", [0, 2, 5])
def test_no_number_draws_a_token_without_probability(place: int) -> None:
    logits = torch.full((6,), -torch.inf)
    logits[place] = 0.0
    for number in (0.0, 1e-300, 0.5, 1 - 2**-53, 1.0):
        for top_k, top_p in ((0, 1.0), (3, 1.0), (0, 0.5)):
            assert draw(logits[None], torch.tensor([number], dtype=torch.float64), top_k, top_p).item() == place


def test_numbers_depend_on_the_key_alone() -> None:
    numbers = uniform_numbers((1, 2, 3), 1000)
    assert torch.equal(uniform_numbers((1, 2, 3), 10), numbers[:10])
    assert ((numbers >= 0) & (numbers < 1)).all()
    for other in ((1, 2, 4), (2, 2, 3), (1, 23), (12, 3), (1, 2, 3, 0)):
        assert not torch.equal(uniform_numbers(other, 1000), numbers)
