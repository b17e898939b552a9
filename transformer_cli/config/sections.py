"""What every section of a config shares, and the sections `data`, `vocabulary` and `model`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Dropout = Annotated[float, Field(ge=0.0, le=0.9)]  # what is kept is divided by 1 - p, which must not come near 0
Positive = Annotated[int, Field(ge=1)]
Language = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]

AWAITS_PRESET = "awaits preset"  # in the context of validation: values will come of which others may depend


class Section(BaseModel):
    """What all sections share: unknown keys are refused, values never change, numbers are finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def awaits_preset(info: ValidationInfo) -> bool:
    """Return whether values are to come from a preset: what must fit together is checked when they are there."""
    return bool(info.context and info.context.get(AWAITS_PRESET))


class TextFiles(Section):
    """Two text files, plain or `.gz`, such as `{source: a.de, target: a.en}`."""

    source: str  # the file with one source sentence a line
    target: str  # the file with their translations, line by line


class TableFile(Section):
    """One table, such as `{file: a.tsv, source_column: german, target_column: english}`."""

    file: str  # its name ends in `.tsv`, `.csv` or `.jsonl`, each also with `.gz`, or in `.parquet`
    source_column: str | None = None  # null: the column named as the source language
    target_column: str | None = None  # null: the column named as the target language


class HubDataset(Section):
    """A Hugging Face dataset, such as `{dataset: bentrevett/multi30k, split: train}`; needs
    `pip install 'transformer-cli[datasets]'`, as Parquet files do."""

    dataset: str  # its name on the Hugging Face hub, or a local folder of one
    name: str | None = None  # which configuration of the dataset, where it has several
    split: str  # such as `train` or `validation`
    revision: str | None = None  # commit, branch or tag of the dataset; null: the newest
    source_column: str | None = None  # null: the source language; a dot reaches into a nested column (`translation.de`)
    target_column: str | None = None  # null: the target language; as above


SOURCE_KINDS = {"text": TextFiles, "file": TableFile, "dataset": HubDataset}


def _source_kind(value: Any) -> str:
    keys = value if isinstance(value, Mapping) else vars(value) if isinstance(value, Section) else {}
    return "dataset" if "dataset" in keys else "file" if "file" in keys else "text"


DataSource = Annotated[
    Annotated[TextFiles, Tag("text")] | Annotated[TableFile, Tag("file")] | Annotated[HubDataset, Tag("dataset")],
    Discriminator(_source_kind),
]


class DataConfig(Section):
    """Where the sentence pairs come from."""

    source_language: Language  # translated from, such as `de`; also names columns, and the spaCy tokenizer
    target_language: Language  # translated into; also chooses the tokenizer of BLEU
    train: DataSource  # what the model learns from
    valid: DataSource  # what decides which checkpoint is best
    test: DataSource | None = None  # what `tfm evaluate` takes where no files are given; training never looks at it
    # Tokens of a training pair's longer side, `</s>` not counted; longer pairs are left out and counted. Longer text to
    # translate is cut into chunks.
    max_length: Annotated[int, Field(ge=1, le=100_000)] = 256
    # Processes that encode and batch beside the training one; 0: none.
    workers: Annotated[int, Field(ge=0, le=256)] = 2


class VocabularyConfig(Section):
    """How text becomes tokens, and which tokens have an id. The real size is that of the vocabulary that is built."""

    # Subwords, words by spaCy's rules, words by white space, or characters.
    tokenizer: Literal["sentencepiece", "spacy", "whitespace", "character"] = "sentencepiece"
    algorithm: Literal["unigram", "bpe"] = "unigram"  # sentencepiece only: which kind of subwords
    # Tokens, specials included; sentencepiece: the size of the vocabulary; other tokenizers: the largest allowed.
    size: Annotated[int, Field(ge=8, le=10_000_000)] = 8000
    shared: bool = True  # one vocabulary for both languages
    min_freq: Positive = 1  # other tokenizers than sentencepiece: tokens that occur less often become `<unk>`
    lowercase: bool = False  # lowercase all text, in training and in translating; translations are lowercase too
    # Unicode normalization form of all text, in training and in translating.
    normalization: Literal["none", "nfc", "nfkc"] = "none"
    symbols: list[str] = []  # tokens that are never split, such as `<2de>`
    # sentencepiece only: share of all characters in the training text that get a piece of their own.
    character_coverage: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9995
    # sentencepiece only: an unseen character becomes its UTF-8 bytes, not `<unk>`; takes 256 pieces of the vocabulary.
    byte_fallback: bool = True
    sample_lines: Positive = 2_000_000  # sentencepiece only: train on at most so many lines, drawn by `training.seed`

    @model_validator(mode="after")
    def _symbols_are_usable(self) -> "VocabularyConfig":
        """`symbols` names each symbol once, without white space, and none of the specials `<pad>`, `<unk>`, `<s>` and
        `</s>`."""
        for symbol in self.symbols:
            if not symbol or symbol.split() != [symbol]:
                raise ValueError(f"symbols: {symbol!r} is empty or holds white space")
            if symbol in ("<pad>", "<unk>", "<s>", "</s>"):
                raise ValueError(f"symbols: {symbol!r} is a special of every vocabulary already; leave it out")
        if len(set(self.symbols)) < len(self.symbols):
            raise ValueError("symbols: a symbol is named twice")
        return self


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
