"""The model's shape: the config section `model`."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, model_validator

from transformer_cli.config.section import Dropout, Section, awaits_preset


class ModelConfig(Section):
    """The Transformer's shape (Vaswani et al. 2017, table 3). Vocabulary sizes come from the vocabularies."""

    # Values for a corpus of a certain size, here and in other sections, for keys that are not set; `auto` counts the
    # pairs of `data.train`.
    preset: Literal["auto", "tiny", "small", "base", "big"] | None = None
    encoder_layers: Annotated[int, Field(ge=1, le=1000)] = 6  # N of the encoder
    decoder_layers: Annotated[int, Field(ge=1, le=1000)] = 6  # N of the decoder
    d_model: Annotated[int, Field(ge=2, le=65_536)] = 512  # width of embeddings and of each layer's input and output
    heads: Annotated[int, Field(ge=1, le=1024)] = 8  # attention heads, h
    head_dim: Annotated[int, Field(ge=1, le=65_536)] | None = None  # width of a head; null: `d_model` / `heads`
    d_ff: Annotated[int, Field(ge=1, le=1_000_000)] = 2048  # inner width of the feed-forward layer
    dropout: Dropout = 0.1  # probability, on each sub-layer's output before it is added to its input
    attention_dropout: Dropout = 0.0  # probability, on attention weights
    activation_dropout: Dropout = 0.0  # probability, inside the feed-forward layer, after the activation
    embedding_dropout: Dropout | None = None  # probability, on embeddings + positions; null: as `dropout`
    # Of the feed-forward layer; the last two are gated.
    activation: Literal["relu", "gelu", "swiglu", "geglu"] = "relu"
    # Layer norm after each residual sum (the paper), or before each sub-layer and once at the end.
    norm: Literal["post", "pre"] = "post"
    norm_epsilon: Annotated[float, Field(gt=0.0, le=0.1)] = 1e-5  # added to the variance in layer norm
    # The paper's sines and cosines, or a table that begins as these and is learned.
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    # Tokens: rows of the learned table, so the longest sentence; sinusoidal positions have no limit.
    max_positions: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    # Which embeddings are one table: none; the decoder's input and output; these and the encoder's.
    tie_embeddings: Literal["none", "decoder", "all"] = "all"
    attention_bias: bool = True  # whether the projections of attention add a bias
    feed_forward_bias: bool = True  # whether the feed-forward layer adds biases
    generator_bias: bool = False  # whether the output projection adds a bias
    # What gives the next token's probabilities: a softmax over the vocabulary (the paper), or one mixed with copying
    # source tokens, those outside the target vocabulary too (pointer-generator).
    generator: Literal["softmax", "pointer"] = "softmax"
    # One token after another (the paper), all tokens at once and refined again and again (mask-predict), or all at once
    # in an output that is cut at its first `</s>`.
    generation: Literal["autoregressive", "mask_predict", "one_shot"] = "autoregressive"
    # How tokens become vectors: by looking up a row, or as one-hot vector × matrix, which is the same and slower.
    embedding: Literal["lookup", "one_hot"] = "lookup"
    value_dim: Annotated[int, Field(ge=1, le=65_536)] | None = None  # width of a head's values; null: as `head_dim`

    @model_validator(mode="after")
    def _heads_fit(self, info: ValidationInfo) -> "ModelConfig":
        """`heads` divides `d_model`, or `head_dim` is set. Sinusoidal positions need an even `d_model`."""
        if awaits_preset(info):
            return self
        if self.head_dim is None and self.d_model % self.heads:
            raise ValueError(
                f"heads: {self.heads} does not divide d_model = {self.d_model}; change one of them, or set head_dim"
            )
        if self.d_model % 2 and self.positions == "sinusoidal":
            raise ValueError(f"d_model: sinusoidal positions need an even number, got {self.d_model}")
        return self

    @model_validator(mode="after")
    def _variants_fit(self, info: ValidationInfo) -> "ModelConfig":
        """`generator: pointer` needs `generation: autoregressive` and `embedding: lookup`."""
        if self.generator == "pointer" and self.generation != "autoregressive":
            raise ValueError(
                f"generator: pointer copies token after token, which generation {self.generation} does not; "
                "set generation: autoregressive, or generator: softmax"
            )
        if self.generator == "pointer" and self.embedding == "one_hot":
            raise ValueError(
                "embedding: one_hot has no place for tokens outside the vocabulary, which generator pointer copies; "
                "set embedding: lookup, or generator: softmax"
            )
        return self

    @property
    def own_variant(self) -> str | None:
        """What of this model only our own Transformer has, as `key: value`; None: other engines and formats can be it.

        One-hot inputs are not named: their weights are those of a look-up.
        """
        if self.generation != "autoregressive":
            return f"generation: {self.generation}"
        if self.generator != "softmax":
            return f"generator: {self.generator}"
        if self.value_dim not in (None, self.head_dim or self.d_model // self.heads):
            return f"value_dim: {self.value_dim}"
        return None
