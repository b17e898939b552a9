"""The encoder: a stack of N layers (§3.1, left half of figure 1)."""

from torch import Tensor, nn

from transformer_cli.config import ModelConfig
from transformer_cli.model.layers import EncoderLayer


class Encoder(nn.Module):
    """N layers; pre-norm ends with a norm of its own, because its residual stream never passed one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_epsilon) if config.norm == "pre" else nn.Identity()

    def forward(self, states: Tensor, mask: Tensor, need_weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Embedded source (B, S, D), mask (B, 1, 1, S) → memory (B, S, D); on request, weights (B, H, S, S) a layer."""
        attention = []
        for layer in self.layers:
            states, weights = layer(states, mask, need_weights)
            if weights is not None:
                attention.append(weights)
        return self.norm(states), attention
