"""The feed-forward formulas, the residual around every sub-layer, the generator, and where dropout acts."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_cli.config import ModelConfig
from transformer_cli.model.attention import DecoderCache
from transformer_cli.model.layers import EncoderLayer, Residual, build_feed_forward
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import DecoderOutput, Generator, Transformer

Build = Callable[..., Transformer]
SmallConfig = Callable[..., ModelConfig]
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0]])
TARGET = torch.tensor([[2, 5, 6], [2, 7, 8]])


def gelu(x: float) -> float:
    """x Φ(x) (Hendrycks and Gimpel 2016), the exact one"""
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def apply(formula: Callable[[float], float], values: Tensor) -> Tensor:
    return torch.tensor([[formula(x) for x in row] for row in values.tolist()], dtype=torch.float64)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [("relu", lambda x: max(0.0, x)), ("gelu", gelu), ("swiglu", silu), ("geglu", gelu)],
)
def test_feed_forward_is_its_formula(
    small_config: SmallConfig, activation: str, formula: Callable[[float], float]
) -> None:
    torch.manual_seed(3)
    layer = build_feed_forward(small_config(activation=activation)).double()
    weights: dict[str, Tensor] = dict(layer.named_parameters())
    for parameter in weights.values():
        nn.init.normal_(parameter)
    states = torch.randn(4, 12, dtype=torch.float64)
    inner = states @ weights["inner.weight"].T + weights["inner.bias"]
    if activation in ("swiglu", "geglu"):  # activation(x W) ⊙ (x V), then W₂
        gate = states @ weights["gate.weight"].T + weights["gate.bias"]
        inside = apply(formula, gate) * inner
    else:
        assert "gate.weight" not in weights
        inside = apply(formula, inner)
    expected = inside @ weights["outer.weight"].T + weights["outer.bias"]
    torch.testing.assert_close(layer(states), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_residual_is_its_formula(small_config: SmallConfig, norm: str) -> None:
    torch.manual_seed(3)
    residual = Residual(small_config(norm=norm, norm_epsilon=0.01)).double()
    nn.init.uniform_(residual.norm.weight, 0.5, 1.5)
    nn.init.normal_(residual.norm.bias)
    states = torch.randn(4, 12, dtype=torch.float64)

    def layer_norm(x: Tensor) -> Tensor:
        deviation = x - x.mean(dim=-1, keepdim=True)
        scaled = deviation / (deviation.square().mean(dim=-1, keepdim=True) + 0.01).sqrt()
        return scaled * residual.norm.weight + residual.norm.bias

    def sub_layer(x: Tensor) -> Tensor:  # any function of the states
        return x.roll(1, dims=-1).sin()

    expected = layer_norm(states + sub_layer(states)) if norm == "post" else states + sub_layer(layer_norm(states))
    result = residual.leave(states, sub_layer(residual.enter(states)))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def nothing_cached() -> DecoderCache:
    return DecoderCache(decoded=(), memory=())


@pytest.mark.parametrize("bias", [False, True])
def test_generator_gives_log_softmax(bias: bool) -> None:
    torch.manual_seed(3)
    generator = Generator(4, 7, bias).double()
    hidden = torch.randn(2, 3, 4, dtype=torch.float64)
    log_probabilities = generator(DecoderOutput(hidden, nothing_cached()), SOURCE)
    logits = hidden @ generator.projection.weight.T + (generator.projection.bias if bias else 0.0)
    expected = (logits.exp() / logits.exp().sum(dim=-1, keepdim=True)).log()
    torch.testing.assert_close(log_probabilities, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(log_probabilities.exp().sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_log_probabilities_are_float32_or_wider(dtype: torch.dtype, wide: torch.dtype) -> None:
    generator = Generator(4, 7, bias=False).to(dtype)
    result = generator(DecoderOutput(torch.randn(2, 3, 4, dtype=dtype), nothing_cached()), SOURCE)
    assert result.dtype == wide
    torch.testing.assert_close(result.exp().sum(dim=-1), torch.ones(2, 3, dtype=wide))


# --- dropout ------------------------------------------------------------------------------------------------------

NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "embedding_dropout": 0.0}


def places(model: Transformer) -> dict[str, Tensor]:
    """What comes out of the four places where dropout can act, each given the same input whenever it is called."""
    layer = model.encoder.layers[0]
    assert isinstance(layer, EncoderLayer)
    states = torch.linspace(-2, 2, 2 * 5 * 12, dtype=torch.float64).sin().view(2, 5, 12)
    mask = padding_mask(SOURCE)
    keys_values = layer.self_attention.keys_values(states)
    return {
        "dropout": layer.self_attention_residual.leave(states, states.cos()),
        "attention_dropout": layer.self_attention(states, keys_values, mask)[0],
        "activation_dropout": layer.feed_forward(states),
        "embedding_dropout": model.source_embedding(SOURCE),
    }


@pytest.mark.parametrize("activation", ["relu", "geglu"])
@pytest.mark.parametrize("kind", NO_DROPOUT)
def test_each_kind_of_dropout_acts_alone_in_its_place_and_only_in_training(
    build: Build, kind: str, activation: str
) -> None:
    model = build(**{**NO_DROPOUT, kind: 0.5, "activation": activation})
    without = build(**NO_DROPOUT, activation=activation)
    for place, result in places(model).items():
        assert torch.equal(result, places(without)[place]), place
    model.train()
    for place, result in places(model).items():
        assert torch.equal(result, places(without)[place]) == (place != kind), place

    mask = padding_mask(SOURCE)
    once, again = (model(SOURCE, mask, TARGET).hidden for _ in range(2))
    assert not torch.equal(once, again)
    model.eval()
    assert torch.equal(model(SOURCE, mask, TARGET).hidden, without(SOURCE, mask, TARGET).hidden)


@pytest.mark.parametrize("kind", NO_DROPOUT)
def test_each_kind_of_dropout_acts_in_both_halves(build: Build, kind: str) -> None:
    model = build(**{**NO_DROPOUT, kind: 0.5}).train()
    mask = padding_mask(SOURCE)
    assert not torch.equal(model.encode(SOURCE, mask), model.encode(SOURCE, mask))
    memory = torch.zeros(2, 5, 12, dtype=torch.float64)
    once, again = (model.decode(TARGET, memory, mask).hidden for _ in range(2))
    assert not torch.equal(once, again)


def test_embedding_dropout_is_as_dropout_unless_set(small_config: SmallConfig, build: Build) -> None:
    assert small_config().embedding_dropout is None
    for options, expected in (({"dropout": 0.3}, 0.3), ({"dropout": 0.3, "embedding_dropout": 0.0}, 0.0)):
        model = build(**options)
        assert model.source_embedding.dropout.p == model.target_embedding.dropout.p == expected


def test_what_dropout_keeps_is_scaled_up(build: Build) -> None:
    options: dict[str, Any] = {**NO_DROPOUT, "embedding_dropout": 0.75}
    model, ids = build(**options), torch.randint(1, 17, (20, 50))
    whole, dropped = model.source_embedding(ids), model.train().source_embedding(ids)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] * 4)
    deviation = math.sqrt(0.25 * 0.75 / kept.numel())
    assert abs(kept.double().mean().item() - 0.25) < 5 * deviation


def test_attention_dropout_acts_on_the_open_path_too_but_not_on_the_weights_shown(build: Build) -> None:
    model = build(**{**NO_DROPOUT, "attention_dropout": 0.5}).train()
    mask = padding_mask(SOURCE)
    memory = torch.randn(2, 5, 12, dtype=torch.float64)
    once, again = (model.decode(TARGET, memory, mask, need_weights=True) for _ in range(2))
    assert not torch.equal(once.hidden, again.hidden)
    for weights in once.self_attention + once.cross_attention:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
