"""From decoder states to log-probabilities over the target vocabulary (§3.4)."""

import torch
from torch import Tensor, nn

from transformer_cli.model.decoder import DecoderOutput


class Generator(nn.Module):
    """log softmax(hidden Wᵀ + b). Takes the source ids too, so that one which copies from them can stand here."""

    def __init__(self, d_model: int, vocabulary_size: int, bias: bool) -> None:
        super().__init__()
        self.projection = nn.Linear(d_model, vocabulary_size, bias=bias)

    def forward(self, output: DecoderOutput, source: Tensor) -> Tensor:
        """Hidden states (B, T, D), source ids (B, S) → log-probabilities (B, T, V), float32 or wider."""
        logits: Tensor = self.projection(output.hidden)  # (B, T, V)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return logits.log_softmax(dim=-1, dtype=wide)
