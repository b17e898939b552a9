"""`model.decode` and the generator for one position and nothing else: the same arithmetic as plain calls.

One row at a time, half of a step is not arithmetic but the way to it: modules called, attributes looked up, masks and
shapes seen to that one position does not need. `TorchEngine` takes it for its steps; a test holds the two equal.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from transformer_cli.model.attention import DecoderCache, KeysValues, MultiHeadAttention
from transformer_cli.model.layers import DecoderLayer, FeedForward, Residual
from transformer_cli.model.torch_private import can_pack, embedding, layer_norm, packed_linear
from transformer_cli.model.transformer import Transformer

Change = Callable[[Tensor], Tensor]

LARGE = 2**18  # numbers in a weight from which on packing it pays, for few rows and many


class Attention(NamedTuple):
    """An attention layer's weights."""

    heads: int
    query: Change
    key_value: Change
    output: Change


class Layer(NamedTuple):
    """A decoder layer's parts, and the norms around them: those that come before a part are None in post-norm."""

    enter: tuple[Change, Change, Change]
    self_attention: Attention
    cross_attention: Attention
    feed_forward: Change
    leave: tuple[Change, Change, Change]


def can_step_fast(model: Transformer) -> bool:
    """Return whether `FastStep` knows all that the model's steps are made of."""
    layers = cast(Iterable[DecoderLayer], model.decoder.layers)
    attentions = [one for layer in layers for one in (layer.self_attention, layer.cross_attention)]
    return all(one.value_dim == one.head_dim for one in attentions) and not model.generator.copies_source


class FastStep:
    """A model's decoder and generator in evaluation mode. Its parameters are the model's: what they learn, it knows."""

    def __init__(self, model: Transformer, constant: bool = False) -> None:
        """constant: they never change again, so that large weights can be packed."""
        pack = constant and can_pack(model.generator.projection.weight)
        self._table, self._scale = model.target_embedding.tokens.table.weight, model.target_embedding.tokens.scale
        self._positions = model.target_embedding.positions
        self._layers = [_unpack(layer, pack) for layer in cast(Iterable[DecoderLayer], model.decoder.layers)]
        norm = model.decoder.norm
        self._norm = _norm(norm) if isinstance(norm, nn.LayerNorm) else _same
        self._projection = _product(model.generator.projection, pack)

    def __call__(self, tokens: Tensor, source_mask: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Tokens (N,) that follow what the cache holds, mask (M, 1, 1, S) → log-probabilities (N, V), grown cache."""
        position = self._positions(cache.length, 1)  # (1, D)
        states = torch.add(position, embedding(self._table, tokens), alpha=self._scale)  # (N, D)
        decoded = []
        for layer, before, memory in zip(self._layers, cache.decoded, cache.memory, strict=True):
            seen = layer.enter[0](states)
            so_far = _append(before, layer.self_attention, seen)
            states = layer.leave[0](states + _attend(layer.self_attention, seen, so_far, None))
            seen = layer.enter[1](states)
            states = layer.leave[1](states + _attend(layer.cross_attention, seen, memory, source_mask))
            states = layer.leave[2](states + layer.feed_forward(layer.enter[2](states)))
            decoded.append(so_far)
        logits = self._projection(self._norm(states))  # (N, V)
        log_probs = logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return log_probs, DecoderCache(tuple(decoded), cache.memory, cache.length + 1)


def _append(before: KeysValues | None, attention: Attention, seen: Tensor) -> KeysValues:
    """Return what was decoded before, then the keys and values of the states (N, D) seen now."""
    new = KeysValues(attention.key_value(seen).view(len(seen), 2, 1, -1), attention.heads)  # (N, 2, 1, H·d)
    return new if before is None else before.grow(new)


def _attend(attention: Attention, seen: Tensor, keys_values: KeysValues, mask: Tensor | None) -> Tensor:
    """`MultiHeadAttention` from states (N, D); N / M rows in a row share each of M rows of keys and values. → (N, D)"""
    keys, values = keys_values.split()  # (M, H, S, d) each
    query = attention.query(seen).view(len(keys), -1, attention.heads, keys.size(3)).transpose(1, 2)
    mixed = scaled_dot_product_attention(query, keys, values, mask)  # (M, H, N/M, d)
    return attention.output(mixed.transpose(1, 2).reshape(len(seen), -1))


def _unpack(layer: DecoderLayer, pack: bool) -> Layer:
    residuals = (layer.self_attention_residual, layer.cross_attention_residual, layer.feed_forward_residual)
    enter, leave = zip(*map(_around, residuals), strict=True)
    return Layer(
        cast(tuple[Change, Change, Change], enter),
        _attention(layer.self_attention, pack),
        _attention(layer.cross_attention, pack),
        _feed_forward(layer.feed_forward, pack),
        cast(tuple[Change, Change, Change], leave),
    )


def _around(residual: Residual) -> tuple[Change, Change]:
    """Return what comes before a sub-layer, and what after its addition."""
    norm = _norm(residual.norm)
    return (norm, _same) if residual.pre else (_same, norm)


def _attention(module: MultiHeadAttention, pack: bool) -> Attention:
    products = (_product(part, pack) for part in (module.query, module.key_value, module.output))
    return Attention(module.heads, *products)


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
