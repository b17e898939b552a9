"""Hugging Face's `MarianMTModel`, trained from scratch: its own forward pass, in the plain loop's training step.

`sdpa` attention, no cache, its defaults of no dropout on attention weights and activations. The loss is torch's
label-smoothed cross-entropy over its logits; the `LabelSmoother` of its trainer takes as long.
"""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from batches import BOS, EOS, PAD, pad
from shape import Shape
from torch import nn
from transformers import MarianConfig, MarianMTModel

LIBRARIES = ("torch", "transformers")
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}


def build(shape: Shape) -> MarianMTModel:
    config = MarianConfig(  # type: ignore[call-arg]  # attn_implementation: its base class takes it
        vocab_size=shape.vocabulary,
        d_model=shape.d_model,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.d_ff,
        decoder_ffn_dim=shape.d_ff,
        activation_function="relu",
        dropout=shape.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        init_std=shape.d_model**-0.5,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model: MarianMTModel = MarianMTModel(config).train()
    assert model.lm_head.weight is model.model.shared.weight, "its embeddings and projection are not one table"
    return model


def start(work: dict[str, Any], precision: str) -> Callable[[], dict[str, Any]]:
    """An update a batch, again and again."""
    torch.manual_seed(1)
    shape = Shape(**work["shape"])
    model = build(shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    kind = PRECISIONS[precision]
    batches = cycle([pad(pairs) for pairs in work["batches"]])

    def update() -> dict[str, Any]:
        batch = next(batches)
        with torch.autocast("cpu", dtype=kind, enabled=kind is not None):
            logits = model(
                input_ids=batch.source,
                attention_mask=(batch.source != PAD).long(),
                decoder_input_ids=batch.target_input,
                use_cache=False,
            ).logits
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1),
                batch.target_output.flatten(),
                ignore_index=PAD,
                label_smoothing=shape.label_smoothing,
            )
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"value": loss.item()}

    return update
