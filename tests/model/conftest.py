"""A small model with random weights everywhere, for every test of the model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig
from transformer_cli.model.transformer import Transformer

# The two sides' layer numbers, the widths and the vocabularies all differ, so that a mix-up shows.
SMALL: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 12, "heads": 3, "d_ff": 20}
SOURCE_VOCABULARY, TARGET_VOCABULARY = 17, 19


def randomise(module: nn.Module) -> None:
    """Leave nothing at 0 or 1: norm gains, biases and the row of <pad> are random too."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.size(-1) ** -0.5)
            else:
                parameter.normal_(std=0.3)
        for part in module.modules():
            if isinstance(part, nn.LayerNorm):
                part.weight.uniform_(0.5, 1.5)


@pytest.fixture(scope="session")
def small_config() -> Callable[..., ModelConfig]:
    """`small_config(**options)`: a config of a small model, without dropout unless it is asked for."""

    def make(**options: Any) -> ModelConfig:
        return ModelConfig(**{**SMALL, "dropout": 0.0, "tie_embeddings": "decoder", **options})

    return make


@pytest.fixture(scope="session")
def build(small_config: Callable[..., ModelConfig]) -> Callable[..., Transformer]:
    """`build(**options)`: a small model in float64 and eval mode, random all over; torch's generator is seeded."""

    def make(**options: Any) -> Transformer:
        torch.manual_seed(1)
        model = build_model(small_config(**options), SOURCE_VOCABULARY, TARGET_VOCABULARY)
        randomise(model)
        return model.double().eval()

    return make
