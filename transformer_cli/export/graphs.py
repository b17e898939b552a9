"""The model as two modules whose inputs and outputs are plain tensors: what a graph format can hold.

`onnx` exports them. They share the model's weights, but write attention and positions so that every length is free.
"""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.embedding import Embedding
from transformer_cli.model.layers import DecoderLayer, EncoderLayer
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Transformer


class PlacedEmbedding(nn.Module):
    """`Embedding` with a table of positions, of which it takes any stretch."""

    positions: Tensor

    def __init__(self, embedding: Embedding, rows: int) -> None:
        super().__init__()
        self.tokens = embedding.tokens
        self.register_buffer("positions", embedding.positions(0, rows).detach().clone())

    def forward(self, ids: Tensor, start: int) -> Tensor:
        """Ids (B, T) at positions start, start + 1, … → (B, T, D). Past the table it fails: nothing is cut short."""
        places = torch.arange(ids.size(1), device=ids.device) + start
        states: Tensor = self.tokens(ids) + self.positions.index_select(0, places)
        return states


class EncoderGraph(nn.Module):
    """Source ids to the keys and values of the memory that every decoder layer attends to."""

    def __init__(self, model: Transformer, rows: int) -> None:
        super().__init__()
        self.embedding = PlacedEmbedding(model.source_embedding, rows)
        self.layers, self.norm = model.encoder.layers, model.encoder.norm
        decoder_layers = cast(Iterable[DecoderLayer], model.decoder.layers)
        self.cross_attentions = nn.ModuleList(layer.cross_attention for layer in decoder_layers)

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        """Source ids (B, S), `</s>` last, then padding → keys, values, keys, … of each layer, all (B, H, S, d)."""
        mask = padding_mask(source)
        states = self.embedding(source, 0)  # (B, S, D)
        for layer in cast(Iterable[EncoderLayer], self.layers):
            seen = layer.self_attention_residual.enter(states)
            change = attend(layer.self_attention, seen, *keys_values(layer.self_attention, seen), mask)
            states = _feed_forward(layer, layer.self_attention_residual.leave(states, change))
        memory = self.norm(states)
        attentions = cast(Iterable[MultiHeadAttention], self.cross_attentions)
        return tuple(part for attention in attentions for part in keys_values(attention, memory))


class DecoderGraph(nn.Module):
    """One step of the decoder: the next target ids, after those that the cache holds."""

    def __init__(self, model: Transformer, rows: int) -> None:
        super().__init__()
        self.embedding = PlacedEmbedding(model.target_embedding, rows)
        self.layers, self.norm = model.decoder.layers, model.decoder.norm
        self.projection = model.generator.projection

    def forward(
        self, target: Tensor, source: Tensor, memory: Sequence[Tensor], past: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Target ids (B, T), source ids (B, S), memory as `EncoderGraph` gives it, past (B, H, P, d), P ≥ 0.

        → logits (B, T, V) of the token after each, then the grown cache: keys, values, keys, … (B, H, P + T, d).
        """
        before = past[0].size(2)
        memory_mask = padding_mask(source)
        queries = torch.arange(target.size(1), device=target.device)[:, None]  # (T, 1)
        mask = torch.arange(before + target.size(1), device=target.device)[None, :] <= queries + before  # (T, P + T)
        states = self.embedding(target, before)  # (B, T, D)
        grown: list[Tensor] = []
        for number, layer in enumerate(cast(Iterable[DecoderLayer], self.layers)):
            keys_and_values = slice(2 * number, 2 * number + 2)
            seen = layer.self_attention_residual.enter(states)
            new = keys_values(layer.self_attention, seen)
            keys, values = (torch.cat(pair, dim=2) for pair in zip(past[keys_and_values], new, strict=True))
            grown += [keys, values]
            change = attend(layer.self_attention, seen, keys, values, mask)
            states = layer.self_attention_residual.leave(states, change)

            seen = layer.cross_attention_residual.enter(states)
            keys, values = memory[keys_and_values]
            change = attend(layer.cross_attention, seen, keys, values, memory_mask)
            states = _feed_forward(layer, layer.cross_attention_residual.leave(states, change))
        logits: Tensor = self.projection(self.norm(states))
        return (logits, *grown)


def keys_values(attention: MultiHeadAttention, states: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of states (B, S, D), each (B, H, S, d)."""
    batch, length, _ = states.shape
    both = attention.key_value(states).view(batch, length, 2, attention.heads, attention.head_dim)
    keys, values = both.permute(2, 0, 3, 1, 4)
    return keys, values


def attend(attention: MultiHeadAttention, states: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """From states (B, T, D) to keys and values (B, H, S, d), openly; the mask broadcasts to (B, H, T, S)."""
    batch, length, _ = states.shape
    query = attention.query(states).view(batch, length, attention.heads, attention.head_dim).transpose(1, 2)
    scores = query @ keys.transpose(-2, -1) / math.sqrt(attention.head_dim)  # (B, H, T, S)
    mixed = scores.masked_fill(~mask, -math.inf).softmax(dim=-1) @ values  # (B, H, T, d)
    output: Tensor = attention.output(mixed.transpose(1, 2).reshape(batch, length, -1))
    return output


def _feed_forward(layer: EncoderLayer | DecoderLayer, states: Tensor) -> Tensor:
    change = layer.feed_forward(layer.feed_forward_residual.enter(states))
    return layer.feed_forward_residual.leave(states, change)
