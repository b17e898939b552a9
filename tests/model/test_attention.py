"""Multi-head attention is the paper's, its gradients are right, and both of its paths agree."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from transformer_cli.config import ModelConfig
from transformer_cli.model.attention import KeysValues, MultiHeadAttention, attention_weights
from transformer_cli.model.layers import build_attention
from transformer_cli.model.masks import causal_mask, padding_mask
from transformer_cli.model.transformer import Transformer

PADDED = torch.tensor([[True, True, True, False], [True, False, False, False]])[:, None, None, :]  # (2, 1, 1, 4)


def make_attention(d_model: int = 6, heads: int = 2, head_dim: int = 5, dropout: float = 0.0) -> MultiHeadAttention:
    torch.manual_seed(2)
    attention = MultiHeadAttention(d_model, heads, head_dim, head_dim, dropout, bias=True).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attention


@pytest.mark.parametrize("head_dim", [3, 5])
def test_attention_is_the_papers_formula_head_by_head(head_dim: int) -> None:
    heads, d_model = 2, 6
    attention = make_attention(d_model, heads, head_dim).requires_grad_(False)
    states, memory = torch.randn(2, 3, d_model).double(), torch.randn(2, 4, d_model).double()

    # Concat(head_1, …, head_h) Wᴼ; head_i = softmax(Q Kᵀ / √d_k) V, written with loops over sentences and positions
    size = heads * head_dim
    query_weight, query_bias = attention.query.weight, attention.query.bias
    key_weight, value_weight = attention.key_value.weight[:size], attention.key_value.weight[size:]
    key_bias, value_bias = attention.key_value.bias[:size], attention.key_value.bias[size:]
    expected = torch.empty(2, 3, d_model, dtype=torch.float64)
    for sentence in range(2):
        allowed = [j for j in range(4) if PADDED[sentence, 0, 0, j]]
        for position in range(3):
            parts = []
            for head in range(heads):
                rows = slice(head * head_dim, (head + 1) * head_dim)
                query = query_weight[rows] @ states[sentence, position] + query_bias[rows]
                keys = [key_weight[rows] @ memory[sentence, j] + key_bias[rows] for j in allowed]
                values = [value_weight[rows] @ memory[sentence, j] + value_bias[rows] for j in allowed]
                powers = [math.exp(float(query @ key) / math.sqrt(head_dim)) for key in keys]
                mixed = sum(power / sum(powers) * value for power, value in zip(powers, values, strict=True))
                assert isinstance(mixed, Tensor)
                parts.append(mixed)
            expected[sentence, position] = attention.output.weight @ torch.cat(parts) + attention.output.bias

    for need_weights in (False, True):
        with torch.no_grad():  # the fused kernel, then the open products
            result, _ = attention(states, attention.keys_values(memory), PADDED, need_weights=need_weights)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["padding", "causal", "chunk", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_open_weights_change_nothing_and_sum_to_one(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = count_calls(monkeypatch)
    attention = make_attention().to(dtype)
    states = torch.randn(2, 2 if kind == "chunk" else 4, 6, dtype=dtype, requires_grad=True)
    memory = torch.randn(2, 4, 6, dtype=dtype, requires_grad=True)
    mask = {"padding": PADDED, "chunk": causal_mask(2, 4)}.get(kind)
    wanted = [states, memory, *attention.parameters()]
    results = []
    for short, need_weights in ((0, False), (4, False), (4, True)):  # fused, plain products, and with weights
        monkeypatch.setattr("transformer_cli.model.attention.SHORT", short)
        result, weights = attention(
            states, attention.keys_values(memory), mask, causal=kind == "causal", need_weights=need_weights
        )
        direction = torch.linspace(-1, 1, result.numel(), dtype=dtype).view_as(result)
        results.append([result, *torch.autograd.grad((result * direction).sum(), wanted)])
        assert (weights is None) == (not need_weights)
    assert weights is not None
    assert weights.shape == (2, 2, states.size(1), 4)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, states.size(1), dtype=dtype))
    forbidden = {"padding": ~PADDED, "chunk": ~causal_mask(2, 4), "causal": ~causal_mask(4, 4)}.get(kind)
    if forbidden is not None:
        assert weights.masked_select(forbidden).eq(0).all()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for fast, *openly in zip(*results, strict=True):
        for other in openly:
            torch.testing.assert_close(other, fast, rtol=tolerance, atol=tolerance)
    assert len(fused) == 1


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls of the fused kernel from now on."""
    calls: list[object] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted(*arguments: Any, **options: Any) -> Tensor:
        calls.append(options)
        return kernel(*arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    return calls


@pytest.mark.parametrize(
    ("dtype", "learns", "short", "expected"),
    [
        (torch.bfloat16, True, 4, 0),
        (torch.bfloat16, True, 3, 1),
        (torch.bfloat16, False, 4, 1),
        (torch.float32, True, 4, 0),
        (torch.float32, True, 3, 1),
    ],
)
def test_the_fused_kernel_serves_all_but_short_sentences_that_are_learned_on_a_cpu(
    dtype: torch.dtype, learns: bool, short: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, fused = make_attention().to(dtype), count_calls(monkeypatch)
    monkeypatch.setattr("transformer_cli.model.attention.SHORT", short)
    with torch.set_grad_enabled(learns):
        states = torch.randn(2, 4, 6, dtype=dtype)
        attention(states, attention.keys_values(states), PADDED)
    assert len(fused) == expected


@pytest.mark.parametrize("kind", ["padding", "causal"])
@pytest.mark.parametrize("short", [0, 4], ids=["fused", "plain"])
@pytest.mark.parametrize("need_weights", [False, True], ids=["fast", "open"])
def test_gradcheck(kind: str, short: int, need_weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_cli.model.attention.SHORT", short)
    attention = make_attention(d_model=4, heads=2, head_dim=3)
    names = [name for name, _ in attention.named_parameters()]
    states = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)

    def attend(states: Tensor, memory: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        weights = dict(zip(names, parameters, strict=True))
        size = 2 * 3
        keys_values = memory @ weights["key_value.weight"].T + weights["key_value.bias"]
        both = torch.stack(keys_values.tensor_split([size], dim=-1), dim=1)
        mask = PADDED if kind == "padding" else None
        options = {"causal": kind == "causal", "need_weights": need_weights}
        result = functional_call(attention, weights, (states, KeysValues(both, heads=2), mask), options)
        return tuple(part for part in result if part is not None)

    parameters = [parameter.detach().requires_grad_() for parameter in attention.parameters()]
    assert torch.autograd.gradcheck(attend, (states, memory, *parameters))


def test_keys_and_values_are_the_two_halves_of_one_projection() -> None:
    attention = make_attention(heads=2, head_dim=5)
    memory = torch.randn(2, 4, 6, dtype=torch.float64)
    keys, values = attention.keys_values(memory).split()
    for half, part in zip(attention.key_value(memory).chunk(2, dim=-1), (keys, values), strict=True):
        assert part.shape == (2, 2, 4, 5)
        torch.testing.assert_close(part.transpose(1, 2).flatten(2), half)


def test_weights_without_a_mask_are_the_softmax() -> None:
    query, keys = torch.randn(1, 1, 1, 4).double(), torch.randn(1, 1, 3, 4).double()
    scores = [math.exp(float(query[0, 0, 0] @ keys[0, 0, j]) / 2) for j in range(3)]  # √4
    expected = [score / sum(scores) for score in scores]
    assert attention_weights(query, keys, None).flatten().tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("head_dim", "expected"), [(None, 4), (7, 7)])
def test_head_dim_is_free_and_defaults_to_an_equal_share(
    small_config: Callable[..., ModelConfig], head_dim: int | None, expected: int
) -> None:
    attention = build_attention(small_config(d_model=12, heads=3, head_dim=head_dim))
    keys, _ = attention.keys_values(torch.randn(2, 5, 12)).split()
    assert keys.shape == (2, 3, 5, expected)
    assert attention.query.weight.shape == (3 * expected, 12)
    assert attention.key_value.weight.shape == (2 * 3 * expected, 12)
    assert attention.output.weight.shape == (12, 3 * expected)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_models_weights_on_request_leave_its_output_alone(build: Callable[..., Transformer], norm: str) -> None:
    model = build(norm=norm, head_dim=5)
    source, target = torch.tensor([[5, 6, 7, 3], [9, 3, 0, 0]]), torch.tensor([[2, 8, 9], [2, 7, 0]])
    mask = padding_mask(source)
    memory, encoder_attention = model.encoder(model.source_embedding(source), mask, need_weights=True)
    torch.testing.assert_close(memory, model.encode(source, mask), rtol=0, atol=1e-12)
    fast, openly = (model.decode(target, memory, mask, need_weights=need) for need in (False, True))
    torch.testing.assert_close(openly.hidden, fast.hidden, rtol=0, atol=1e-12)

    assert model.encoder(model.source_embedding(source), mask)[1] == []
    assert fast.self_attention == fast.cross_attention == ()
    for attention, layers, queries, keys in (
        (encoder_attention, 2, 4, 4),
        (openly.self_attention, 3, 3, 3),
        (openly.cross_attention, 3, 3, 4),
    ):
        assert len(attention) == layers
        for weights in attention:
            assert weights.shape == (2, 3, queries, keys)
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
