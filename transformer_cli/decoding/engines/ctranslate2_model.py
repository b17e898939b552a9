"""A checkpoint as a CTranslate2 model folder, written through CTranslate2's own specification of a Transformer.

The engine's cache and `tfm export` call it. The weights go from the checkpoint's file into the specification as numpy
arrays, so that no torch is needed. What only reads such a folder is `ctranslate2_engine`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ctranslate2.specs import common_spec, transformer_spec
from safetensors import SafetensorError, deserialize

from transformer_cli.config import Config, ModelConfig
from transformer_cli.decoding.engines.ctranslate2_engine import Description
from transformer_cli.errors import UserError
from transformer_cli.model.sinusoids import sinusoids
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.publishing import verify
from transformer_cli.storage.run_folder import CONFIG, EXPORTED, WEIGHTS
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import BOS, EOS, SPECIALS, UNK

LEAST_POSITIONS = 2048  # rows of a table of sinusoids, which have no end of their own

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "swish": common_spec.Activation.SWISH,
    "swiglu": common_spec.Activation.SWISH,
    "geglu": common_spec.Activation.GELU,
}

# A tied matrix is stored once, under the name that comes first in the model.
SOURCE, TARGET = "source_embedding.tokens.table.weight", "target_embedding.tokens.table.weight"
OUTPUT = "generator.projection"
TIED = {
    "none": {},
    "decoder": {f"{OUTPUT}.weight": TARGET},
    "all": {f"{OUTPUT}.weight": SOURCE, TARGET: SOURCE},
}
TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}  # that weights may be stored in

Array = npt.NDArray[np.float32]


def write_model(out: Path, spec: Any, config: Config, quantization: str | None = None, shortlist: int = 0) -> None:
    """Write model.bin, config.json, the vocabularies and EXPORTED into a folder that is there.

    spec: of `build_spec`, which may be written once. quantization: int8, int8_float32, float16 or bfloat16 (which needs
    torch); None: float32. shortlist: as in `Description`; the lists are the caller's to write. Raises `OSError`.
    """
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(out))
    learned = config.model.positions == "learned"
    layer, heads = alignment_attention(config)
    description = Description(position_count(config), learned, layer, heads, quantization, shortlist)
    (out / EXPORTED).write_text(json.dumps(asdict(description)) + "\n", encoding="utf-8")


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


def build_spec(folder: Path, config: Config, codecs: Codecs) -> Any:
    """Return CTranslate2's specification with the weights of a checkpoint folder, whose text side was read already.

    Raises `UserError` where the weights are damaged, or are those of a model that CTranslate2 has no place for.
    """
    shape, weights = config.model, _Weights(folder, config.model)
    spec = transformer_spec.TransformerSpec(_encoder(shape), _decoder(config))
    source, target = codecs.source.vocabulary.get_itos(), codecs.target.vocabulary.get_itos()
    spec.encoder.embeddings[0].weight = weights.take(SOURCE, len(source), shape.d_model)
    spec.decoder.embeddings.weight = weights.take(TARGET, len(target), shape.d_model)
    if shape.positions != "rotary":
        positions = position_count(config)
        spec.encoder.position_encodings.encodings = weights.positions("source_embedding", positions)
        spec.decoder.position_encodings.encodings = weights.positions("target_embedding", positions)
    for name, part in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        for number, layer in enumerate(part.layer):
            _fill_layer(layer, f"{name}.layers.{number}", weights, is_decoder=name == "decoder")
        if shape.norm == "pre":
            weights.norm(part.layer_norm, f"{name}.norm")
    weights.linear(spec.decoder.projection, shape.d_model, {OUTPUT: len(target)}, bias=shape.generator_bias)
    weights.check_all_taken()

    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (SPECIALS[i] for i in (UNK, BOS, EOS))
    spec.config.decoder_start_token = SPECIALS[BOS]
    spec.config.add_source_bos, spec.config.add_source_eos = False, True
    spec.config.layer_norm_epsilon = shape.norm_epsilon
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
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
        "rotary_dim": shape.head_width if shape.positions == "rotary" else None,
        "rotary_interleave": False,
        "qk_norm": shape.qk_norm,
    }


def _fill_layer(layer: Any, name: str, weights: "_Weights", *, is_decoder: bool) -> None:
    """Fill one encoder or decoder layer."""
    weights.attention(layer.self_attention, f"{name}.self_attention")
    if is_decoder:
        weights.attention(layer.attention, f"{name}.cross_attention")
    weights.feed_forward(layer.ffn, f"{name}.feed_forward")


class _Weights:
    """A checkpoint's tensors, each to be taken: what is left over, CTranslate2's Transformer has no place for."""

    def __init__(self, folder: Path, shape: ModelConfig) -> None:
        verify(folder, [WEIGHTS])
        self._folder, self._shape = folder, shape
        self._stored = _read(folder / WEIGHTS)
        self._tied = TIED[shape.tie_embeddings]
        self._taken: dict[str, Array] = {}

    def take(self, name: str, *size: int) -> Array:
        """Return a tensor in float32, a tied one the same array; `UserError` where there is none of that size."""
        name = self._tied.get(name, name)
        if name not in self._stored:
            raise self._damaged(name, "is missing; copy the whole folder again")
        array = self._stored[name]
        if array.shape != size:
            fault = f"is {[*array.shape]}, but {CONFIG} and vocab/ make it {[*size]}; copy the whole folder again"
            raise self._damaged(name, fault)
        if name not in self._taken:
            if array.dtype == np.uint16:  # bfloat16: the upper half of a float32
                array = (array.astype(np.uint32) << 16).view(np.float32)
            if not np.isfinite(array := array.astype(np.float32, copy=False)).all():
                raise self._damaged(name, "is not finite; copy it again, or take another model")
            self._taken[name] = array
        return self._taken[name]

    def linear(self, spec: Any, width: int, sizes: Mapping[str, int], *, bias: bool) -> None:
        """Fill in linear layers from `width` dimensions to so many each, one below the other."""
        for kind, columns in (("weight", (width,)), ("bias", ())) if bias else (("weight", (width,)),):
            parts = [self.take(f"{name}.{kind}", size, *columns) for name, size in sizes.items()]
            setattr(spec, kind, parts[0] if len(parts) == 1 else np.concatenate(parts))

    def norm(self, spec: Any, name: str) -> None:
        """Fill in a layer norm."""
        spec.gamma, spec.beta = (self.take(f"{name}.{kind}", self._shape.d_model) for kind in ("weight", "bias"))

    def attention(self, spec: Any, name: str) -> None:
        """Fill in an attention block. Self-attention projects queries, keys and values in one go, in that order."""
        width, bias = self._shape.d_model, self._shape.attention_bias
        inner = self._shape.heads * self._shape.head_width
        inputs = {f"{name}.query": inner, f"{name}.key_value": 2 * inner}
        if len(spec.linear) == 2:
            self.linear(spec.linear[0], width, inputs, bias=bias)
        else:
            for part, (projection, size) in zip(spec.linear, inputs.items(), strict=False):
                self.linear(part, width, {projection: size}, bias=bias)
        self.linear(spec.linear[-1], inner, {f"{name}.output": width}, bias=bias)
        self.norm(spec.layer_norm, f"{name}_residual.norm")
        if self._shape.qk_norm:  # queries to the memory over all heads at once
            head = self._shape.head_width
            for kind, size in (("q_norm", head if len(spec.linear) == 2 else inner), ("k_norm", head)):
                norm = common_spec.LayerNormSpec()  # the spec's own is an RMSNorm: no mean is subtracted
                norm.gamma, norm.beta = np.ones(size, np.float32), np.zeros(size, np.float32)
                setattr(spec, kind, norm)

    def feed_forward(self, spec: Any, name: str) -> None:
        """Fill in a feed-forward block, gated or not."""
        shape, bias = self._shape, self._shape.feed_forward_bias
        inward = {spec.linear_0: "inner"}
        if hasattr(spec, "linear_0_noact"):
            inward = {spec.linear_0: "gate", spec.linear_0_noact: "inner"}
        for part, projection in inward.items():
            self.linear(part, shape.d_model, {f"{name}.{projection}": shape.d_ff}, bias=bias)
        self.linear(spec.linear_1, shape.d_ff, {f"{name}.outer": shape.d_model}, bias=bias)
        self.norm(spec.layer_norm, f"{name}_residual.norm")

    def positions(self, name: str, count: int) -> Array:
        """Return the table of positions (count, d_model): our own, always; CTranslate2's sinusoids are others."""
        if self._shape.positions == "learned":
            return self.take(f"{name}.positions.table.weight", count, self._shape.d_model)
        return sinusoids(count, self._shape.d_model)

    def check_all_taken(self) -> None:
        """Raise `UserError` where the checkpoint has a tensor that was never taken."""
        for name in sorted(self._stored.keys() - self._taken.keys()):
            raise UserError(
                f"{self._folder}: cannot become a CTranslate2 model, CTranslate2's Transformer has no place for "
                f"{name[:100]}; use the torch engine"
            )

    def _damaged(self, name: str, fault: str) -> UserError:
        return UserError(f"{self._folder / WEIGHTS}: tensor {name} {fault}")


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of a safetensors file, all of one type; bfloat16, which numpy lacks, as their 16 bits.

    Raises `UserError`.
    """
    try:
        stored = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
        kinds = sorted({tensor["dtype"] for tensor in stored.values()})
        if len(kinds) != 1 or kinds[0] not in TYPES:
            raise ValueError(f"tensors are of type {', '.join(kinds)}")
        return {
            name: np.frombuffer(tensor["data"], TYPES[kinds[0]]).reshape(tensor["shape"])
            for name, tensor in stored.items()
        }
    except (OSError, ValueError, TypeError, OverflowError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:80]
        raise UserError(f"{path}: cannot be read as a safetensors file ({reason}); copy it again") from None
