"""The encoder's and the decoder's layer (§3.1, figure 1): attention and feed-forward, each in a residual sub-layer."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from transformer_cli.config import ModelConfig
from transformer_cli.model.attention import KeysValues, MultiHeadAttention, Rotation
from transformer_cli.model.dropout import Dropout
from transformer_cli.model.linear import Linear
from transformer_cli.model.masks import causal_mask

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "swish": functional.silu,
}


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at every position (§3.3, eq. 2); GELU or swish in place of the ReLU as options."""

    def __init__(self, d_model: int, d_ff: int, activation: str, dropout: float, bias: bool) -> None:
        super().__init__()
        self.inner = Linear(d_model, d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        result: Tensor = self.outer(self.dropout(self.activation(self.inner(states))))
        return result


class GatedFeedForward(nn.Module):
    """(activation(x W) ⊙ x V) W₂ (Shazeer 2020, "GLU Variants Improve Transformer"): SwiGLU and GEGLU."""

    def __init__(self, d_model: int, d_ff: int, activation: str, dropout: float, bias: bool) -> None:
        super().__init__()
        self.gate = Linear(d_model, d_ff, bias=bias)
        self.inner = Linear(d_model, d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        activations: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": functional.silu, "geglu": functional.gelu}
        self.activation = activations[activation]
        self.dropout = Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        result: Tensor = self.outer(self.dropout(self.activation(self.gate(states)) * self.inner(states)))
        return result


def build_feed_forward(config: ModelConfig) -> nn.Module:
    """The feed-forward layer that the config names."""
    kind = GatedFeedForward if config.activation in ("swiglu", "geglu") else FeedForward
    return kind(config.d_model, config.d_ff, config.activation, config.activation_dropout, config.feed_forward_bias)


def build_attention(config: ModelConfig, *, self_attention: bool = False) -> MultiHeadAttention:
    """An attention layer of the config's size."""
    sizes = config.d_model, config.heads, config.head_width, config.value_dim or config.head_width
    epsilon = config.norm_epsilon if config.qk_norm else None
    # Over all heads at once where queries read the memory: CTranslate2 does that, and both learn equally well.
    query_width = config.head_width if self_attention else config.heads * config.head_width
    return MultiHeadAttention(*sizes, config.attention_dropout, config.attention_bias, epsilon, query_width)


class Residual(nn.Module):
    """What surrounds every sub-layer: dropout, the residual connection and the layer norm (§3.1, §5.4).

    Post-norm, the paper's: LayerNorm(x + Dropout(Sublayer(x))). Pre-norm: x + Dropout(Sublayer(LayerNorm(x))).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)
        self.pre = config.norm == "pre"

    def enter(self, states: Tensor) -> Tensor:
        """What the sub-layer sees. (B, T, D) → (B, T, D)"""
        return self.norm(states) if self.pre else states

    def leave(self, states: Tensor, change: Tensor) -> Tensor:
        """The states with the sub-layer's output added. Both (B, T, D) → (B, T, D)"""
        states = states + self.dropout(change)
        return states if self.pre else self.norm(states)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = build_attention(config, self_attention=True)
        self.self_attention_residual = Residual(config)
        self.feed_forward = build_feed_forward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self, states: Tensor, mask: Tensor, need_weights: bool = False, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """States (B, S, D), mask (B, 1, 1, S) → states (B, S, D) and, on request, weights (B, H, S, S).

        rotation: of the S positions, where these are rotary.
        """
        seen = self.self_attention_residual.enter(states)
        keys_values = self.self_attention.keys_values(seen, rotation)
        change, weights = self.self_attention(seen, keys_values, mask, rotation=rotation, need_weights=need_weights)
        states = self.self_attention_residual.leave(states, change)  # (B, S, D)

        change = self.feed_forward(self.feed_forward_residual.enter(states))
        return self.feed_forward_residual.leave(states, change), weights


class DecoderLayerOutput(NamedTuple):
    """What a decoder layer returns."""

    states: Tensor  # (B, T, D)
    decoded: KeysValues | None  # of all positions so far; None where a mask said who may attend to whom
    self_weights: Tensor | None  # (B, H, T, all so far), on request
    cross_weights: Tensor | None  # (B, H, T, S), on request


class DecoderLayer(nn.Module):
    """Self-attention, causal unless a mask is given, attention over the memory, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = build_attention(config, self_attention=True)
        self.self_attention_residual = Residual(config)
        self.cross_attention = build_attention(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = build_feed_forward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        states: Tensor,
        decoded: KeysValues | None,
        memory: KeysValues,
        memory_mask: Tensor,
        need_weights: bool = False,
        mask: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> DecoderLayerOutput:
        """States (B, T, D) of the new positions; keys and values of those before and of the memory; its mask.

        rotation: of the new positions, where these are rotary.

        With a `mask` (B, 1, 1 or T, T) the T positions are all there are, and attend as it says; else causally.
        """
        seen = self.self_attention_residual.enter(states)
        new = self.self_attention.keys_values(seen, rotation)
        so_far = decoded.append(new) if decoded else new
        queries, keys = seen.size(1), so_far.both.size(2)
        seeing, causal = mask, False
        if mask is None and 1 < queries == keys:  # a branch: as a value torch.compile would break the graph at it
            causal = True
        elif mask is None and queries > 1:
            seeing = causal_mask(queries, keys, seen.device)
        change, self_weights = self.self_attention(
            seen, so_far, seeing, rotation=rotation, causal=causal, need_weights=need_weights
        )
        states = self.self_attention_residual.leave(states, change)  # (B, T, D)

        seen = self.cross_attention_residual.enter(states)
        change, cross_weights = self.cross_attention(seen, memory, memory_mask, need_weights=need_weights)
        states = self.cross_attention_residual.leave(states, change)  # (B, T, D)

        change = self.feed_forward(self.feed_forward_residual.enter(states))
        states = self.feed_forward_residual.leave(states, change)  # (B, T, D)
        return DecoderLayerOutput(states, so_far if mask is None else None, self_weights, cross_weights)
