"""The decoder: a stack of N layers (§3.1, right half of figure 1), whole sequences or step by step with a cache."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from transformer_cli.config import ModelConfig
from transformer_cli.model.cache import DecoderCache
from transformer_cli.model.layers import DecoderLayer


@dataclass(frozen=True)
class DecoderOutput:
    """What a generator works from."""

    hidden: Tensor  # (B, T, D)
    cache: DecoderCache  # holds the new positions too
    self_attention: tuple[Tensor, ...] = ()  # a layer's weights (B, H, T, T), on request
    cross_attention: tuple[Tensor, ...] = ()  # a layer's weights (B, H, T, S), on request


class Decoder(nn.Module):
    """N layers; pre-norm ends with a norm of its own, because its residual stream never passed one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if config.norm == "pre" else nn.Identity()

    def start_cache(self, memory: Tensor) -> DecoderCache:
        """An empty cache over the memory (B, S, D), whose keys and values are computed here, once."""
        layers = cast(Iterable[DecoderLayer], self.layers)
        projected = tuple(layer.cross_attention.keys_values(memory) for layer in layers)
        return DecoderCache(decoded=(None,) * len(projected), memory=projected)

    def forward(
        self, states: Tensor, memory_mask: Tensor, cache: DecoderCache, need_weights: bool = False
    ) -> DecoderOutput:
        """Embedded target (B, T, D) after what the cache holds, memory mask (B, 1, 1, S)."""
        decoded, self_attention, cross_attention = [], [], []
        for layer, before, memory in zip(self.layers, cache.decoded, cache.memory, strict=True):
            states, so_far, self_weights, cross_weights = layer(states, before, memory, memory_mask, need_weights)
            decoded.append(so_far)
            if need_weights:
                self_attention.append(self_weights)
                cross_attention.append(cross_weights)
        grown = DecoderCache(tuple(decoded), cache.memory, cache.length + states.size(1))
        return DecoderOutput(self.norm(states), grown, tuple(self_attention), tuple(cross_attention))
