"""A Transformer as a CTranslate2 model folder, written through CTranslate2's own specification of a Transformer.

`engines` (into its cache) and `tfm export` call it. The specification imports torch, so nothing that only reads such
a folder imports this module: `ctranslate2_engine` does that.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ctranslate2.specs import common_spec, transformer_spec
from torch import Tensor

from transformer_cli.build import LoadedModel
from transformer_cli.config import Config, ModelConfig
from transformer_cli.decoding.engines.ctranslate2_engine import DESCRIPTION, Description
from transformer_cli.errors import UserError
from transformer_cli.model.embedding import sinusoidal_table
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, SPECIALS, UNK

LEAST_POSITIONS = 2048  # rows of a table of sinusoids, which have no end of their own

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "swiglu": common_spec.Activation.SWISH,
    "geglu": common_spec.Activation.GELU,
}

Array = npt.NDArray[np.float32]


def write_model(folder: Path, loaded: LoadedModel, quantization: str | None = None) -> None:
    """Write model.bin, config.json, the vocabularies and DESCRIPTION into a folder that is there.

    quantization: int8, int8_float32, float16 or bfloat16; None: float32. Raises `UserError`, before anything is
    written, where CTranslate2's Transformer cannot be this model; `OSError`.
    """
    spec = build_spec(loaded)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    learned = loaded.config.model.positions == "learned"
    layer, heads = alignment_attention(loaded.config)
    description = Description(position_count(loaded.config), learned, layer, heads)
    (folder / DESCRIPTION).write_text(json.dumps(asdict(description)) + "\n", encoding="utf-8")


def position_count(config: Config) -> int:
    """Return the rows of the position tables: for every source that is translated in one piece, with its `</s>`, and
    for the longest translation that the config allows it, after `<s>`. Learned tables have the rows they have.
    """
    if config.model.positions == "learned":
        return config.model.max_positions
    longest = SearchOptions.from_config(config.decoding).length_limit(config.data.max_length)
    return max(LEAST_POSITIONS, config.data.max_length + 1, longest + 1)


def alignment_attention(config: Config) -> tuple[int, int | None]:
    """Return the layer whose attention CTranslate2 is to give, and of how many of its first heads (None: of all).

    Those that learned to align, where they are a layer's first; CTranslate2 can give no others.
    """
    layer, heads = config.alignment_attention
    if heads is None or sorted(heads) != list(range(len(heads))):
        return -1, None
    return layer, len(heads)


def build_spec(loaded: LoadedModel) -> Any:
    """Return CTranslate2's specification, with the weights in it; `UserError` for a model that it has no place for."""
    shape, codecs = loaded.config.model, loaded.codecs
    weights = _Weights(loaded)
    spec = transformer_spec.TransformerSpec(_encoder(shape), _decoder(loaded.config))
    positions = position_count(loaded.config)
    for side, part in (("source", spec.encoder), ("target", spec.decoder)):
        embeddings = part.embeddings[0] if side == "source" else part.embeddings
        embeddings.weight = weights.take(f"{side}_embedding.tokens.table.weight")
        part.position_encodings.encodings = weights.positions(f"{side}_embedding", shape, positions)
    for name, part in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        for number, layer in enumerate(part.layer):
            _fill_layer(layer, f"{name}.layers.{number}", weights, is_decoder=name == "decoder")
        if shape.norm == "pre":
            weights.norm(part.layer_norm, f"{name}.norm")
    weights.linear(spec.decoder.projection, "generator.projection")
    weights.check_all_taken()

    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (SPECIALS[i] for i in (UNK, BOS, EOS))
    spec.config.decoder_start_token = SPECIALS[BOS]
    spec.config.add_source_bos, spec.config.add_source_eos = False, True
    spec.config.layer_norm_epsilon = shape.norm_epsilon
    spec.register_source_vocabulary(codecs.source.vocabulary.get_itos())
    spec.register_target_vocabulary(codecs.target.vocabulary.get_itos())
    return spec


def _encoder(shape: ModelConfig) -> Any:
    return transformer_spec.TransformerEncoderSpec(shape.encoder_layers, shape.heads, **_kind(shape))


def _decoder(config: Config) -> Any:
    shape = config.model
    layer, heads = alignment_attention(config)
    alignment = {"alignment_layer": layer, "alignment_heads": heads or shape.heads}
    return transformer_spec.TransformerDecoderSpec(shape.decoder_layers, shape.heads, **_kind(shape), **alignment)


def _kind(shape: ModelConfig) -> dict[str, Any]:
    """Return what encoder and decoder have in common."""
    return {
        "pre_norm": shape.norm == "pre",
        "activation": ACTIVATIONS[shape.activation],
        "ffn_glu": shape.activation in ("swiglu", "geglu"),
        "head_dim": shape.head_dim,  # None: d_model / heads
    }


def _fill_layer(layer: Any, name: str, weights: "_Weights", *, is_decoder: bool) -> None:
    """Fill one encoder or decoder layer. Self-attention projects queries, keys and values in one go, in that order."""
    weights.linear(layer.self_attention.linear[0], f"{name}.self_attention.query", f"{name}.self_attention.key_value")
    weights.linear(layer.self_attention.linear[1], f"{name}.self_attention.output")
    weights.norm(layer.self_attention.layer_norm, f"{name}.self_attention_residual.norm")
    if is_decoder:
        for part, projection in zip(layer.attention.linear, ("query", "key_value", "output"), strict=True):
            weights.linear(part, f"{name}.cross_attention.{projection}")
        weights.norm(layer.attention.layer_norm, f"{name}.cross_attention_residual.norm")
    if hasattr(layer.ffn, "linear_0_noact"):
        weights.linear(layer.ffn.linear_0, f"{name}.feed_forward.gate")
        weights.linear(layer.ffn.linear_0_noact, f"{name}.feed_forward.inner")
    else:
        weights.linear(layer.ffn.linear_0, f"{name}.feed_forward.inner")
    weights.linear(layer.ffn.linear_1, f"{name}.feed_forward.outer")
    weights.norm(layer.ffn.layer_norm, f"{name}.feed_forward_residual.norm")


class _Weights:
    """A model's tensors, each to be taken: what is left over is what CTranslate2's Transformer has no place for."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._tensors: dict[str, Tensor] = dict(loaded.model.state_dict())  # tied ones under all their names
        self._left = set(self._tensors)
        self._folder = loaded.folder

    def take(self, name: str) -> Array:
        """Return a copy of a tensor (quantization changes it), in float32; `UserError` where there is none."""
        if name not in self._tensors:
            raise self._refusal(f"it has no {name}")
        self._left.discard(name)
        array: Array = self._tensors[name].detach().to("cpu", torch.float32, copy=True).numpy()
        return array

    def linear(self, spec: Any, *names: str) -> None:
        """Fill in one or more linear layers, one below the other, with their biases where they have any."""
        spec.weight = np.concatenate([self.take(f"{name}.weight") for name in names])
        if f"{names[0]}.bias" in self._tensors:
            spec.bias = np.concatenate([self.take(f"{name}.bias") for name in names])

    def norm(self, spec: Any, name: str) -> None:
        """Fill in a layer norm."""
        spec.gamma, spec.beta = self.take(f"{name}.weight"), self.take(f"{name}.bias")

    def positions(self, name: str, shape: ModelConfig, count: int) -> Array:
        """Return the table of positions (count, d_model): our own, always; CTranslate2's sinusoids are others."""
        if shape.positions == "learned":
            return self.take(f"{name}.positions.table.weight")
        table: Array = sinusoidal_table(count, shape.d_model).numpy()
        return table

    def check_all_taken(self) -> None:
        """Raise `UserError` where the model has a tensor that was never taken."""
        for name in sorted(self._left):
            raise self._refusal(f"CTranslate2's Transformer has no place for {name}")

    def _refusal(self, reason: str) -> UserError:
        return UserError(f"{self._folder}: cannot become a CTranslate2 model, {reason}; use the torch engine")
