"""JoeyNMT: its own model, batch, loss, optimiser and clipping, put together as its `TrainManager._train_step` does.

Two changes make its model the same as the others': no dropout on attention weights and after the activation.
"""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from batches import BOS, EOS, PAD, UNK, Pairs, pad
from joeynmt.batch import Batch
from joeynmt.builders import build_gradient_clipper, build_optimizer
from joeynmt.model import Model, build_model
from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
from joeynmt.vocabulary import Vocabulary
from shape import Shape

LIBRARIES = ("torch", "joeynmt")


class NumberedVocabulary(Vocabulary):  # type: ignore[misc]  # mypy does not see JoeyNMT
    """As many tokens as wanted, named by their numbers; its own constructor wants <unk> first and takes minutes."""

    def __init__(self, size: int) -> None:
        self.specials = ["<pad>", "<unk>", "<s>", "</s>"]
        self.lang_tags: list[str] = []
        self._itos = [*self.specials, *(str(number) for number in range(len(self.specials), size))]
        self._stoi = {token: number for number, token in enumerate(self._itos)}
        self.pad_index, self.unk_index, self.bos_index, self.eos_index = PAD, UNK, BOS, EOS
        self.sep_index = None


def build(shape: Shape) -> Model:
    side = {
        "type": "transformer",
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "hidden_size": shape.d_model,
        "ff_size": shape.d_ff,
        "dropout": shape.dropout,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": shape.d_model, "scale": True, "dropout": shape.dropout},
    }
    settings = {
        "encoder": side,
        "decoder": side,
        "tied_embeddings": True,
        "tied_softmax": True,
        "initializer": "xavier_uniform",
        "embed_initializer": "normal",
        "embed_init_weight": shape.d_model**-0.5,
    }
    vocabulary = NumberedVocabulary(shape.vocabulary)
    model = build_model(settings, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", shape.label_smoothing)
    for module in model.modules():
        if isinstance(module, MultiHeadedAttention):
            module.dropout.p = 0.0
        if isinstance(module, PositionwiseFeedForward):
            module.pwff_layer[2].p = 0.0
    return model


def collate(pairs: Pairs) -> Batch:
    """A batch of its own; `trg` holds both specials, it cuts them off by itself."""
    padded = pad(pairs)
    start = torch.full((len(pairs), 1), BOS)
    return Batch(
        src=padded.source,
        src_length=(padded.source != PAD).sum(1),
        src_prompt_mask=None,
        trg=torch.cat([start, padded.target_output], dim=1),
        trg_prompt_mask=None,
        indices=torch.arange(len(pairs)),
        device=torch.device("cpu"),
        pad_index=PAD,
        eos_index=EOS,
    )


def start(work: dict[str, Any], precision: str) -> Callable[[], dict[str, Any]]:
    """An update a batch, again and again."""
    assert precision == "fp32"
    torch.manual_seed(1)
    model = build(Shape(**work["shape"]))
    optimizer = build_optimizer(
        {"optimizer": "adam", "learning_rate": 1e-4, "adam_betas": (0.9, 0.98)}, model.parameters()
    )
    clip = build_gradient_clipper({"clip_grad_norm": 1.0, "clip_grad_val": None})
    batches = cycle([collate(pairs) for pairs in work["batches"]])

    def update() -> dict[str, Any]:
        batch = next(batches)
        model.train()
        batch.sort_by_src_length()
        loss, _, _, _ = model(return_type="loss", **vars(batch))
        loss = batch.normalize(loss, normalization="tokens")
        loss.backward()
        clip(parameters=model.parameters())
        optimizer.step()
        model.zero_grad()
        return {"value": loss.item()}

    return update
