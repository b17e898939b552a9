"""Which engine runs a model of our own: the one place where it is chosen. Loading and validation call it."""

import torch

from transformer_cli.decoding.engines.nonautoregressive_engine import NonAutoregressiveEngine
from transformer_cli.decoding.engines.protocol import Engine
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.engines.whole_decoder import WholeDecoder
from transformer_cli.model.nonautoregressive import NonAutoregressiveTransformer
from transformer_cli.model.pointer import PointerGenerator
from transformer_cli.model.transformer import Transformer
from transformer_cli.model.uneven_attention import UnevenAttention


def build_engine(model: Transformer, device: torch.device | str = "cpu", *, constant: bool = False) -> Engine:
    """The engine for a model. constant: its parameters will never change again."""
    if isinstance(model, NonAutoregressiveTransformer):
        return NonAutoregressiveEngine(model, device)
    if isinstance(model.generator, PointerGenerator) or any(isinstance(m, UnevenAttention) for m in model.modules()):
        return TorchEngine(model, device, static=False, steps=WholeDecoder(model))
    return TorchEngine(model, device, constant=constant)
