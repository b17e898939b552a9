"""`torch.nn.Transformer` in the loop that a good engineer writes and defends.

float32 or autocast; `scaled_dot_product_attention` in every layer, for which dropout on attention weights is off (the
CPU's fast kernel has none; tfm's default has none either); boolean padding masks, the causal one by its flag; fused
Adam; clipping; label-smoothed cross-entropy over all positions. No setting of the process is changed.
"""

import math
import warnings
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from batches import PAD, PaddedBatch, pad
from shape import Shape
from torch import Tensor, nn

LIBRARIES = ("torch",)
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with one scaled table for embeddings and projection, and the paper's positions."""

    def __init__(self, shape: Shape, longest: int = 512) -> None:
        super().__init__()
        self.smoothing, self.scale = shape.label_smoothing, math.sqrt(shape.d_model)
        self.embedding = nn.Embedding(shape.vocabulary, shape.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=shape.d_model**-0.5)
        angles = torch.arange(longest)[:, None] / 10000 ** (torch.arange(0, shape.d_model, 2) / shape.d_model)
        self.positions = nn.Buffer(torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1), persistent=False)
        self.dropout = nn.Dropout(shape.dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells that nested tensors, an inference feature, do not apply
            self.transformer = nn.Transformer(
                shape.d_model, shape.heads, shape.layers, shape.layers, shape.d_ff, shape.dropout, batch_first=True
            )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None  # a post-norm layer ends in one already
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()  # type: ignore[assignment]  # after the activation; dropout1 and so on are on sub-layers' outputs

    def embed(self, ids: Tensor) -> Tensor:
        states: Tensor = self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.size(1)])
        return states

    def forward(self, batch: PaddedBatch) -> Tensor:
        """Mean loss over the target tokens, ()."""
        padding = batch.source == PAD
        length = batch.target_input.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=padding.device).triu(1)
        hidden = self.transformer(
            self.embed(batch.source),
            self.embed(batch.target_input),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = nn.functional.linear(hidden, self.embedding.weight)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.target_output.flatten(), ignore_index=PAD, label_smoothing=self.smoothing
        )


def start(work: dict[str, Any], precision: str) -> Callable[[], dict[str, Any]]:
    """An update a batch, again and again."""
    torch.manual_seed(1)
    shape = Shape(**work["shape"])
    model = PlainTransformer(shape).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    kind = PRECISIONS[precision]
    batches = cycle([pad(pairs) for pairs in work["batches"]])

    def update() -> dict[str, Any]:
        batch = next(batches)
        with torch.autocast("cpu", dtype=kind, enabled=kind is not None):
            loss = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"value": loss.item()}

    return update
