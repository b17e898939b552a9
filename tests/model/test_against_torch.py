"""With the same weights, our encoder and decoder are torch's, forward and backward."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.layers import DecoderLayer, EncoderLayer
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Decoder, Encoder, Transformer

LAYERS = 2
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0], [3, 0, 0, 0, 0]])
TARGET_LENGTH = 4
# Some of our parameters, and torch's that holds them one below the other.
Pair = tuple[list[Tensor], Tensor]


def pair_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> Iterator[Pair]:
    projection, bias = theirs.in_proj_weight, theirs.in_proj_bias
    assert projection is not None
    assert bias is not None
    yield [ours.query.weight, ours.key_value.weight], projection
    yield [ours.query.bias, ours.key_value.bias], bias
    yield from pair_same(ours.output, theirs.out_proj)


def pair_same(ours: nn.Module, theirs: nn.Module) -> Iterator[Pair]:
    for name, parameter in ours.named_parameters():
        yield [parameter], theirs.get_parameter(name)


def pair_layer(ours: nn.Module, theirs: nn.Module) -> Iterator[Pair]:
    assert isinstance(ours, EncoderLayer | DecoderLayer)
    assert isinstance(theirs, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    yield from pair_attention(ours.self_attention, theirs.self_attn)
    residuals = [ours.self_attention_residual]
    if isinstance(ours, DecoderLayer):
        assert isinstance(theirs.multihead_attn, nn.MultiheadAttention)
        yield from pair_attention(ours.cross_attention, theirs.multihead_attn)
        residuals.append(ours.cross_attention_residual)
    residuals.append(ours.feed_forward_residual)
    for number, residual in enumerate(residuals, start=1):
        yield from pair_same(residual.norm, theirs.get_submodule(f"norm{number}"))
    yield from pair_same(ours.feed_forward.get_submodule("inner"), theirs.linear1)
    yield from pair_same(ours.feed_forward.get_submodule("outer"), theirs.linear2)


def copy_weights(ours: Encoder | Decoder, theirs: nn.Module) -> list[Pair]:
    """Give torch's stack our weights, all of them; the pairs, to compare gradients by."""
    theirs_layers = theirs.get_submodule("layers")
    assert isinstance(theirs_layers, nn.ModuleList)
    pairs = [pair for one, other in zip(ours.layers, theirs_layers, strict=True) for pair in pair_layer(one, other)]
    if isinstance(ours.norm, nn.LayerNorm):
        pairs += pair_same(ours.norm, theirs.get_submodule("norm"))
    assert {id(one) for parts, _ in pairs for one in parts} == set(map(id, ours.parameters()))
    assert {id(other) for _, other in pairs} == set(map(id, theirs.parameters()))
    with torch.no_grad():
        for parts, other in pairs:
            other.copy_(torch.cat(parts))
    return pairs


def assert_same_gradients(
    ours: Tensor,
    theirs: Tensor,
    inputs: list[Tensor],
    pairs: list[Pair],
    tolerance: float,
) -> None:
    """Outputs, and gradients in the inputs (shared by both) and in every weight."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    direction = torch.randn_like(ours)
    gradients = []
    for output in (ours, theirs):
        for input_ in inputs:
            input_.grad = None
        torch.autograd.backward((output * direction).sum())
        gradients.append([input_.grad for input_ in inputs])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert one.abs().max() > 1e-3  # something was compared
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
    for parts, their_parameter in pairs:
        gradient = torch.cat([part.grad for part in parts if part.grad is not None])
        torch.testing.assert_close(gradient, their_parameter.grad, rtol=0, atol=tolerance)


@pytest.fixture(
    params=itertools.product(["post", "pre"], ["relu", "gelu"], ["float32", "float64"]), ids="-".join, name="case"
)
def make_case(
    request: pytest.FixtureRequest, build: Callable[..., Transformer]
) -> tuple[Transformer, dict[str, Any], float]:
    """Our model, torch's options for the same, and how close they must be."""
    norm, activation, dtype_name = request.param
    dtype = getattr(torch, dtype_name)
    model = build(encoder_layers=LAYERS, decoder_layers=LAYERS, norm=norm, activation=activation).to(dtype).train()
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm == "pre"}
    return model, {**options, "dtype": dtype}, 1e-5 if dtype == torch.float32 else 1e-10


def final_norm(options: dict[str, Any]) -> nn.LayerNorm | None:
    """Pre-norm stacks end with a norm, post-norm ones do not."""
    return nn.LayerNorm(12, dtype=options["dtype"]) if options["norm_first"] else None


def test_encoder(case: tuple[Transformer, dict[str, Any], float]) -> None:
    model, options, tolerance = case
    layer = nn.TransformerEncoderLayer(12, 3, 20, **options)
    theirs = nn.TransformerEncoder(layer, LAYERS, final_norm(options), enable_nested_tensor=False)
    pairs = copy_weights(model.encoder, theirs)
    mask = padding_mask(SOURCE)
    states = torch.randn(*SOURCE.shape, 12, dtype=layer.linear1.weight.dtype, requires_grad=True)
    expected = theirs(states, src_key_padding_mask=~mask[:, 0, 0])
    memory, _ = model.encoder(states, mask)
    assert_same_gradients(memory, expected, [states], pairs, tolerance)


def test_decoder(case: tuple[Transformer, dict[str, Any], float]) -> None:
    model, options, tolerance = case
    layer = nn.TransformerDecoderLayer(12, 3, 20, **options)
    theirs = nn.TransformerDecoder(layer, LAYERS, final_norm(options))
    pairs = copy_weights(model.decoder, theirs)
    mask = padding_mask(SOURCE)
    dtype = layer.linear1.weight.dtype
    memory = torch.randn(*SOURCE.shape, 12, dtype=dtype, requires_grad=True)
    states = torch.randn(len(SOURCE), TARGET_LENGTH, 12, dtype=dtype, requires_grad=True)
    future = torch.ones(TARGET_LENGTH, TARGET_LENGTH, dtype=torch.bool).triu(1)  # torch's True = may not attend
    expected = theirs(states, memory, tgt_mask=future, memory_key_padding_mask=~mask[:, 0, 0])
    hidden = model.decoder(states, mask, model.start_cache(memory)).hidden
    assert_same_gradients(hidden, expected, [states, memory], pairs, tolerance)
