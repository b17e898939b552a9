"""The Transformer of *Attention Is All You Need* (Vaswani et al. 2017, figure 1): two verbs, encode and decode.

Training and search both go through them; `forward` is the two in a row, for teacher forcing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from transformer_cli.config import ModelConfig
from transformer_cli.model.attention import DecoderCache
from transformer_cli.model.embedding import Embedding, build_rotary
from transformer_cli.model.layers import DecoderLayer, EncoderLayer
from transformer_cli.model.linear import Linear


class Encoder(nn.Module):
    """N layers; pre-norm ends with a norm of its own, because its residual stream never passed one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.rotary = build_rotary(config)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if config.norm == "pre" else nn.Identity()

    def forward(self, states: Tensor, mask: Tensor, need_weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Embedded source (B, S, D), mask (B, 1, 1, S) → memory (B, S, D); on request, weights (B, H, S, S) a layer."""
        attention = []
        rotation = self.rotary(0, states.size(1)) if self.rotary is not None else None
        for layer in self.layers:
            states, weights = layer(states, mask, need_weights, rotation)
            if weights is not None:
                attention.append(weights)
        return self.norm(states), attention


@dataclass(frozen=True)
class DecoderOutput:
    """What a generator works from."""

    hidden: Tensor  # (B, T, D)
    cache: DecoderCache  # holds the new positions too
    self_attention: tuple[Tensor, ...] = ()  # a layer's weights (B, H, T, T), on request
    cross_attention: tuple[Tensor, ...] = ()  # a layer's weights (B, H, T, S), on request


class Decoder(nn.Module):
    """N layers; pre-norm ends with a norm of its own, because its residual stream never passed one.

    last_weights: the last layer's attention is returned always, not on request only.
    """

    def __init__(self, config: ModelConfig, last_weights: bool = False) -> None:
        super().__init__()
        self.last_weights = last_weights
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.rotary = build_rotary(config)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if config.norm == "pre" else nn.Identity()

    def start_cache(self, memory: Tensor) -> DecoderCache:
        """Return an empty cache over the memory (B, S, D), whose keys and values are computed here, once."""
        layers = cast(Iterable[DecoderLayer], self.layers)
        projected = tuple(layer.cross_attention.keys_values(memory) for layer in layers)
        return DecoderCache(decoded=(None,) * len(projected), memory=projected)

    def forward(
        self,
        states: Tensor,
        memory_mask: Tensor,
        cache: DecoderCache,
        need_weights: bool = False,
        mask: Tensor | None = None,
    ) -> DecoderOutput:
        """Embedded target (B, T, D) after what the cache holds, memory mask (B, 1, 1, S).

        With a `mask` (see `DecoderLayer`) the target is all there is, and the cache keeps nothing of it.
        """
        decoded, self_attention, cross_attention = [], [], []
        rotation = self.rotary(cache.length, states.size(1)) if self.rotary is not None else None
        layers = zip(self.layers, cache.decoded, cache.memory, strict=True)
        for number, (layer, before, memory) in enumerate(layers, start=1):
            wanted = need_weights or (self.last_weights and number == len(self.layers))
            states, so_far, self_weights, cross_weights = layer(
                states, before, memory, memory_mask, wanted, mask, rotation
            )
            decoded.append(so_far)
            if wanted:
                self_attention.append(self_weights)
                cross_attention.append(cross_weights)
        grown = DecoderCache(tuple(decoded), cache.memory, cache.length + states.size(1))
        return DecoderOutput(self.norm(states), grown, tuple(self_attention), tuple(cross_attention))


class Generator(nn.Module):
    """log softmax(hidden Wᵀ + b). Takes the source ids too, so that one which copies from them can stand here."""

    copies_source = False  # whether columns after the vocabulary's stand for source tokens

    def __init__(self, d_model: int, vocabulary_size: int, bias: bool) -> None:
        super().__init__()
        self.projection = Linear(d_model, vocabulary_size, bias=bias)

    def forward(self, output: DecoderOutput, source: Tensor) -> Tensor:
        """Hidden states (B, T, D), source ids (B, S) → log-probabilities (B, T, V), float32 or wider."""
        logits: Tensor = self.projection(output.hidden)  # (B, T, V)
        return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class Transformer(nn.Module):
    """Embeddings, encoder, decoder, generator; `build.build_model` puts them together."""

    def __init__(
        self,
        source_embedding: Embedding,
        target_embedding: Embedding,
        encoder: Encoder,
        decoder: Decoder,
        generator: Generator,
    ) -> None:
        super().__init__()
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.encoder = encoder
        self.decoder = decoder
        self.generator = generator

    @property
    def max_source_length(self) -> int | None:
        """The longest source, `</s>` included, that the position table allows; None: any."""
        return self.source_embedding.max_length

    @property
    def max_target_length(self) -> int | None:
        """The longest target, `<s>` included, that the position table allows; None: any."""
        return self.target_embedding.max_length

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Source ids (B, S), mask (B, 1, 1, S) → memory (B, S, D)."""
        memory: Tensor = self.encoder(self.source_embedding(source), source_mask)[0]  # (B, S, D)
        return memory

    def start_cache(self, memory: Tensor) -> DecoderCache:
        """The cache that a search begins with, over the memory (B, S, D)."""
        return self.decoder.start_cache(memory)

    def decode(
        self,
        target: Tensor,
        memory: Tensor | None,
        source_mask: Tensor,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
    ) -> DecoderOutput:
        """Target ids (B, T), each seeing those before it, over the memory (B, S, D) with mask (B, 1, 1, S).

        With a cache, `target` holds only the new positions, and the memory (it is in the cache) may be None.
        """
        if cache is None:
            assert memory is not None, "decoding needs a memory or a cache"
            cache = self.start_cache(memory)
        states = self.target_embedding(target, start=cache.length)  # (B, T, D)
        output: DecoderOutput = self.decoder(states, source_mask, cache, need_weights)
        return output

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> DecoderOutput:
        """Teacher forcing: source ids (B, S), mask (B, 1, 1, S), shifted target ids (B, T) → hidden (B, T, D)."""
        return self.decode(target, self.encode(source, source_mask), source_mask)
