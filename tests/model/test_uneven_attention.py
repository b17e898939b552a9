"""Values of another width than keys: the formula, every way to run it, and that equal widths stay as they are."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.decoding.searching import search_batch
from transformer_cli.build import build_engine
from transformer_cli.config import ModelConfig
from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.layers import build_attention
from transformer_cli.model.transformer import Transformer
from transformer_cli.search_options import SearchOptions

HEADS, WIDEST = 3, 4
D_MODEL = HEADS * WIDEST
WIDTHS = pytest.mark.parametrize(("head_dim", "value_dim"), [(4, 2), (2, 4), (4, 1)])
PADDED = torch.tensor([[True, True, True, False, True], [True, False, False, False, False]])


def make_attention(head_dim: int, value_dim: int) -> MultiHeadAttention:
    torch.manual_seed(3)
    attention = MultiHeadAttention(D_MODEL, HEADS, head_dim, value_dim, dropout=0.0, bias=True).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attention


def widen(projection: Tensor, factor: float = 1.0) -> Tensor:
    """Weights or biases (H·d, …) with rows of zeros after each head's, up to the widest."""
    apart = projection.view(HEADS, -1, *projection.shape[1:]) * factor
    zeros = apart.new_zeros(HEADS, WIDEST - apart.size(1), *apart.shape[2:])
    return torch.cat([apart, zeros], dim=1).flatten(0, 1)


def torchs(attention: MultiHeadAttention, states: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """torch's attention, whose heads have one width: what ours lacks of it is zero, and its √d is made ours."""
    scale = math.sqrt(WIDEST / attention.head_dim)
    biases = [widen(attention.query.bias, scale), widen(attention.key.bias), widen(attention.value.bias)]
    mixed, weights = functional.multi_head_attention_forward(
        states.transpose(0, 1),
        memory.transpose(0, 1),
        memory.transpose(0, 1),
        embed_dim_to_check=D_MODEL,
        num_heads=HEADS,
        in_proj_weight=None,
        in_proj_bias=torch.cat(biases),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=widen(attention.output.weight.t().contiguous()).t(),
        out_proj_bias=attention.output.bias,
        key_padding_mask=~PADDED,
        average_attn_weights=False,
        use_separate_proj_weight=True,
        q_proj_weight=widen(attention.query.weight, scale),
        k_proj_weight=widen(attention.key.weight),
        v_proj_weight=widen(attention.value.weight),
    )
    assert weights is not None
    return mixed.transpose(0, 1), weights


@WIDTHS
@pytest.mark.parametrize("need_weights", [False, True])
def test_it_is_torchs_attention_forward_and_backward(head_dim: int, value_dim: int, need_weights: bool) -> None:
    attention = make_attention(head_dim, value_dim)
    states, memory = torch.randn(2, 3, D_MODEL).double(), torch.randn(2, 5, D_MODEL).double()
    mask = PADDED[:, None, None, :]
    expected, expected_weights = torchs(attention, states, memory)
    result, weights = attention(states, attention.keys_values(memory), mask, need_weights=need_weights)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    if need_weights:
        torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-12)
    with torch.no_grad():  # the fused kernel
        fused, _ = attention(states, attention.keys_values(memory), mask)
    torch.testing.assert_close(fused, expected, rtol=0, atol=1e-12)
    direction = torch.randn_like(expected)
    wanted = list(attention.parameters())
    ours, theirs = (torch.autograd.grad((each * direction).sum(), wanted) for each in (result, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_the_causal_word_is_the_causal_mask() -> None:
    attention, states = make_attention(4, 2), torch.randn(2, 5, D_MODEL).double()
    keys_values = attention.keys_values(states)
    expected, _ = attention(states, keys_values, torch.ones(5, 5, dtype=torch.bool).tril())
    for need_weights in (False, True):
        with torch.no_grad():
            result, _ = attention(states, keys_values, causal=True, need_weights=need_weights)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_keys_and_values_grow_and_are_picked_as_the_plain_ones_are() -> None:
    attention, states = make_attention(4, 2), torch.randn(3, 5, D_MODEL).double()
    whole = attention.keys_values(states)
    keys, values = whole.split()
    assert (keys.shape, values.shape) == ((3, HEADS, 5, 4), (3, HEADS, 5, 2))
    for join in ("append", "grow"):
        first, rest = attention.keys_values(states[:, :2]), attention.keys_values(states[:, 2:])
        together = getattr(first, join)(rest)
        torch.testing.assert_close(together.both, whole.both, rtol=0, atol=1e-12)
    rows = torch.tensor([2, 0, 2])
    for ours, expected in zip(whole.select(rows).split(), (keys[rows], values[rows]), strict=True):
        assert torch.equal(ours, expected)


def test_only_another_width_takes_two_projections(small_config: Callable[..., ModelConfig]) -> None:
    """The small config's heads have a width of 4. Checkpoints name these weights."""
    plain = {"query", "key_value", "output"}
    for config in (small_config(), small_config(value_dim=4), small_config(value_dim=5, head_dim=5)):
        assert set(projections(build_attention(config))) == plain
    uneven = build_attention(small_config(value_dim=2))
    assert set(projections(uneven)) == {"query", "key", "value", "output"}
    assert uneven.value.weight.shape == (6, 12)
    assert small_config(value_dim=4).own_variant is None
    assert small_config(value_dim=2).own_variant == "value_dim: 2"


def projections(attention: MultiHeadAttention) -> list[str]:
    return [name.split(".")[0] for name, _ in attention.named_parameters()]


def test_a_search_finds_what_its_scores_say(build: Callable[..., Transformer]) -> None:
    """Beam search over caches that grow and are picked from, against whole sequences."""
    engine = build_engine(build(value_dim=2))
    sources = [[5, 6, 7], [8], [9, 10, 11, 12]]
    searched = search_batch(engine, sources, SearchOptions(beam_size=3, n_best=3))
    for hypotheses, source in zip(searched, sources, strict=True):
        assert len(hypotheses) == 3
        for hypothesis in hypotheses:
            (forced,) = engine.score([source], [hypothesis.ids])
            expected = sum(forced if hypothesis.ended else forced[:-1])
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-6)
    alignments = engine.align(sources, [[4, 5], [6], [7, 8]])
    assert [len(alignment) for alignment in alignments] == [2, 1, 2]
