"""`model.decode` and the generator for one position and nothing else: the same arithmetic as plain calls.

One row at a time, half of a step is not arithmetic but the way to it: modules called, attributes looked up, masks and
shapes seen to that one position does not need. `TorchEngine` takes it for its steps; a test holds the two equal.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from transformer_cli.model.attention import DecoderCache, KeysValues, MultiHeadAttention, Rotation
from transformer_cli.model.layers import DecoderLayer, FeedForward, Residual
from transformer_cli.model.torch_private import can_pack, embedding, layer_norm, packed_linear
from transformer_cli.model.transformer import Decoder, Generator, Transformer

Change = Callable[[Tensor], Tensor]
# States (N, D), what was decoded before, the memory, its mask (M, 1, 1, S), the position's rotation (None: it is in the
# embeddings) → states (N, D), all that was decoded
LayerStep = Callable[[Tensor, KeysValues | None, KeysValues, Tensor, Rotation | None], tuple[Tensor, KeysValues]]

LARGE = 2**18  # numbers in a weight from which on packing it pays, for few rows and many


class Attention(NamedTuple):
    """An attention layer, and its products."""

    module: MultiHeadAttention
    query: Change
    key_value: Change
    output: Change


def can_step_fast(model: Transformer) -> bool:
    """Return whether `FastStep` knows every class that the model's steps are made of.

    It repeats their arithmetic, so a model with a class that builds on one of them takes its own step.
    """
    layers = list(cast(Iterable[DecoderLayer], model.decoder.layers))
    attentions = [one for layer in layers for one in (layer.self_attention, layer.cross_attention)]
    residuals = [
        one
        for layer in layers
        for one in (layer.self_attention_residual, layer.cross_attention_residual, layer.feed_forward_residual)
    ]
    return (
        type(model.decoder) is Decoder
        and type(model.generator) is Generator
        and all(type(layer) is DecoderLayer for layer in layers)
        and all(type(one) is MultiHeadAttention and one.value_dim == one.head_dim for one in attentions)
        and all(type(one) is Residual for one in residuals)
    )


class FastStep:
    """A model's decoder and generator in evaluation mode. Its parameters are the model's: what they learn, it knows."""

    def __init__(self, model: Transformer, constant: bool = False) -> None:
        """constant: they never change again, so that large weights can be packed."""
        pack = constant and can_pack(model.generator.projection.weight)
        self._table, self._scale = model.target_embedding.tokens.table.weight, model.target_embedding.tokens.scale
        self._positions, self._rotary = model.target_embedding.positions, model.decoder.rotary
        self._layers = [_layer_step(layer, pack) for layer in cast(Iterable[DecoderLayer], model.decoder.layers)]
        norm = model.decoder.norm
        self._norm = _norm(norm) if isinstance(norm, nn.LayerNorm) else _same
        self._projection = _product(model.generator.projection, pack)

    def __call__(self, tokens: Tensor, source_mask: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Take tokens (N,) after what the cache holds, mask (M, 1, 1, S) → log-probabilities (N, V), grown cache."""
        states = embedding(self._table, tokens)  # (N, D)
        if self._positions is None:
            states = states * self._scale
        else:
            states = torch.add(self._positions(cache.length, 1), states, alpha=self._scale)
        rotation = self._rotary(cache.length, 1) if self._rotary is not None else None
        decoded = []
        for step, before, memory in zip(self._layers, cache.decoded, cache.memory, strict=True):
            states, so_far = step(states, before, memory, source_mask, rotation)
            decoded.append(so_far)
        logits = self._projection(self._norm(states))  # (N, V)
        log_probs = logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return log_probs, DecoderCache(tuple(decoded), cache.memory, cache.length + 1)


def _layer_step(layer: DecoderLayer, pack: bool) -> LayerStep:
    """Return what `DecoderLayer` does, for one position."""
    own, cross = _attention(layer.self_attention, pack), _attention(layer.cross_attention, pack)
    change = _feed_forward(layer.feed_forward, pack)
    enter_own, leave_own = _around(layer.self_attention_residual)
    enter_cross, leave_cross = _around(layer.cross_attention_residual)
    enter_change, leave_change = _around(layer.feed_forward_residual)

    def step(
        states: Tensor, before: KeysValues | None, memory: KeysValues, mask: Tensor, rotation: Rotation | None
    ) -> tuple[Tensor, KeysValues]:
        seen = enter_own(states)
        so_far = own.module.arrange(own.key_value(seen)[:, None], rotation)
        if before is not None:
            so_far = before.grow(so_far)
        states = leave_own(states + _attend(own, seen, so_far, None, rotation))
        states = leave_cross(states + _attend(cross, enter_cross(states), memory, mask))
        return leave_change(states + change(enter_change(states))), so_far

    return step


def _attend(
    attention: Attention,
    seen: Tensor,
    keys_values: KeysValues,
    mask: Tensor | None,
    rotation: Rotation | None = None,
) -> Tensor:
    """Attend from states (N, D), N / M rows in a row to each of M rows of keys and values. → (N, D)"""
    keys, values = keys_values.split()  # (M, H, S, d) each
    module = attention.module
    query = module.place(attention.query(seen)[:, None], module.query_width, rotation)
    query = query.view(len(keys), -1, module.heads, module.head_dim).transpose(1, 2)
    mixed = scaled_dot_product_attention(query, keys, values, mask)  # (M, H, N/M, d)
    return attention.output(mixed.transpose(1, 2).reshape(len(seen), -1))


def _around(residual: Residual) -> tuple[Change, Change]:
    """Return what comes before a sub-layer, and what after its addition."""
    norm = _norm(residual.norm)
    return (norm, _same) if residual.pre else (_same, norm)


def _attention(module: MultiHeadAttention, pack: bool) -> Attention:
    products = (_product(part, pack) for part in (module.query, module.key_value, module.output))
    return Attention(module, *products)


def _feed_forward(module: nn.Module, pack: bool) -> Change:
    """Return the plain one as three calls; others as they are."""
    if not isinstance(module, FeedForward):
        return module
    inner, outer, activation = _product(module.inner, pack), _product(module.outer, pack), module.activation
    return lambda states: outer(activation(inner(states)))


def _product(module: nn.Linear, pack: bool) -> Change:
    """Return x Wᵀ + b. A large weight is packed: then oneDNN multiplies few rows up to three times as fast as MKL, many
    a tenth to a fifth faster.
    """
    weight, bias = module.weight, module.bias
    if pack and weight.numel() >= LARGE:
        return packed_linear(weight, bias)
    return lambda states: linear(states, weight, bias)


def _norm(module: nn.LayerNorm) -> Change:
    shape, weight, bias, epsilon = list(module.normalized_shape), module.weight, module.bias, module.eps
    return lambda states: layer_norm(states, shape, weight, bias, epsilon)


def _same(states: Tensor) -> Tensor:
    return states
