import math

import pytest
import torch

from transformer_cli.model.attention import SHORT, MultiHeadAttention
from transformer_cli.model.dropout import Dropout, keep_mask


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.999])
def test_the_share_kept_is_as_asked(p: float) -> None:
    torch.manual_seed(0)
    count = 2_000_001  # the last random word serves one element only
    kept = int(keep_mask(torch.Size([count]), p).sum())
    deviation = math.sqrt(count * p * (1 - p))
    assert abs(kept - count * (1 - p)) < 5 * deviation


@pytest.mark.parametrize("p", [2.0**-18, 3 * 2.0**-17, 1 - 5 * 2.0**-18])
def test_shares_finer_than_the_random_bits_are_exact_too(p: float) -> None:
    torch.manual_seed(0)
    masks, size = 3000, 8192
    kept = sum(int(keep_mask(torch.Size([size]), p).sum()) for _ in range(masks))
    share = min(p, 1 - p)
    others = kept if p > 0.5 else masks * size - kept
    assert abs(others - masks * size * share) < 5 * math.sqrt(masks * size * share)


def test_neighbours_are_independent() -> None:
    torch.manual_seed(0)
    kept = keep_mask(torch.Size([1_000_000]), 0.5).double() - 0.5
    for distance in (1, 2, 3, 4, 5):  # four elements share a random word
        correlation = float((kept[:-distance] * kept[distance:]).mean()) * 4
        assert abs(correlation) < 5 / math.sqrt(1_000_000)


def test_kept_elements_are_scaled_and_gradients_follow_the_mask() -> None:
    torch.manual_seed(0)
    states = torch.ones(50, 7, dtype=torch.float64, requires_grad=True)
    result = Dropout(0.2)(states)
    result.sum().backward()
    assert set(result.flatten().tolist()) == {0.0, 1.25}
    assert states.grad is not None
    assert torch.equal(states.grad, result)


def test_the_mask_depends_on_the_generators_state_alone() -> None:
    states = torch.ones(1000)
    torch.manual_seed(3)
    saved = torch.get_rng_state()
    first, second = Dropout(0.5)(states), Dropout(0.5)(states)
    torch.set_rng_state(saved)
    assert torch.equal(Dropout(0.5)(states), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_in_evaluation_or_without_dropout() -> None:
    states = torch.randn(10)
    assert Dropout(0.5).eval()(states) is states
    assert Dropout(0.0)(states) is states


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_the_probability_can_be_in_force(share: float) -> None:
    torch.manual_seed(0)
    dropout, states = Dropout(0.4), torch.ones(100_000)
    dropout.share = share
    kept = float((dropout(states) != 0).double().mean())
    assert kept == pytest.approx(1 - 0.4 * share, abs=0.01)
    assert float(dropout(states).mean()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("length", [5, SHORT + 1])
def test_attention_weights_drop_out_by_the_share_in_force(need_weights: bool, length: int) -> None:
    """By plain products, and by torch's kernel, which longer text takes."""
    torch.manual_seed(0)
    attention, states = MultiHeadAttention(8, 2, 4, 4, 0.5, bias=True), torch.randn(1, length, 8)

    def attend() -> torch.Tensor:
        mixed: torch.Tensor = attention(states, attention.keys_values(states), need_weights=need_weights)[0]
        return mixed

    attention.eval()
    whole = attend()
    attention.train()
    assert not torch.allclose(attend(), whole)
    attention.dropout.share = 0.0
    assert torch.allclose(attend(), whole, atol=1e-6)
