"""The sections of a config, and what they share."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator

from transformer_cli.search_options import ConfiguredSearch

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
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


FilterKind = Literal[
    "empty_side",
    "duplicate_pair",
    "duplicate_source",
    "identical_sides",
    "swapped_sides",
    "wrong_language",
    "misaligned",
    "length_ratio",
    "too_long",
    "encoding_damage",
    "control_characters",
    "markup",
    "number_mismatch",
    "url_mismatch",
    "mixed_scripts",
    "template",
    "overlap_valid",
    "overlap_test",
]
# How many times the ratio of a pair's lengths in characters may be the usual one, or the usual one the pair's.
LengthRatio = dict[Literal["length_ratio"], Annotated[float, Field(gt=1.0, le=1000.0)]]
DataFilters = list[FilterKind | LengthRatio]


class Source(Section):
    """What a source may say of its pairs, whatever its kind, such as
    `{source: bt.de, target: bt.en, tag: <bt>, weight: 0.5}`."""

    # A symbol put before its source sentences, such as `<bt>` or `<2de>`, which becomes one of `vocabulary.symbols`
    # (Johnson et al. 2017, Caswell et al. 2019); null: of `data.valid` and `data.test`, `decoding.tag`.
    tag: str | None = None
    # `data.train` only: how many times an epoch takes its pairs; a fraction of them is drawn anew for each epoch.
    weight: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0
    # `data.train` only: kinds of faulty pairs that are left out of it; null: `data.filters`.
    filters: DataFilters | None = None

    @model_validator(mode="after")
    def _tag_is_a_symbol(self) -> "Source":
        """`tag` stands in angle brackets, as no word does, and has no white space; or is one of an imported model."""
        if self.tag is not None and not re.fullmatch(r"<[^<>\s]{1,50}>|>>[^<>\s]{1,50}<<", self.tag):
            raise ValueError(f"tag: write it in angle brackets and without spaces, such as <bt>, got {self.tag!r:.60}")
        return self


class TextFiles(Source):
    """Two text files, plain or `.gz`, such as `{source: a.de, target: a.en}`."""

    source: str  # the file with one source sentence per line
    target: str  # the file with their translations, line by line


class TableFile(Source):
    """One table, such as `{file: a.tsv, source_column: german, target_column: english}`."""

    file: str  # its name ends in `.tsv`, `.csv` or `.jsonl`, each also with `.gz`, or in `.parquet`
    source_column: str | None = None  # null: the column named as the source language
    target_column: str | None = None  # null: the column named as the target language


class HubDataset(Source):
    """A Hugging Face dataset, such as `{dataset: bentrevett/multi30k, split: train}`; needs
    `pip install 'transformer-cli[datasets]'`, as Parquet files do."""

    dataset: str  # its name on the Hugging Face hub, or a local folder of one
    name: str | None = None  # which configuration of the dataset, where it has several
    split: str  # such as `train` or `validation`
    revision: str | None = None  # commit, branch or tag of the dataset; null: the newest
    source_column: str | None = None  # null: the source language; a dot reaches into a nested column (`translation.de`)
    target_column: str | None = None  # null: the target language; as above


class TmxFile(Source):
    """A translation memory, such as `{tmx: memory.tmx}`: its units that are in both languages."""

    tmx: str  # a TMX file, plain or `.gz`, or a `.zip` with one in it
    source_language: str | None = None  # as the file writes it; null: the source language, so that `de` is also `de-DE`
    target_language: str | None = None  # as above


class MosesZip(Source):
    """A zip archive with two text files in it, such as OPUS gives: `{moses: de-en.txt.zip}`."""

    moses: str  # in it are two files with one name but for its end, a language: `Books.de-en.de` and `Books.de-en.en`
    source_language: str | None = None  # the end of the source file's name; null: the source language
    target_language: str | None = None  # the end of the target file's name; null: the target language


SOURCE_KINDS: dict[str, type[Source]] = {
    **{"text": TextFiles, "file": TableFile},
    **{"tmx": TmxFile, "moses": MosesZip, "dataset": HubDataset},
}

ONE, LIST = "one", "list"  # of sources


def _source_kind(value: Any) -> str:
    keys = value if isinstance(value, Mapping) else vars(value) if isinstance(value, Section) else {}
    return next((kind for kind in ("dataset", "tmx", "moses", "file") if kind in keys), "text")


DataSource = Annotated[
    Annotated[TextFiles, Tag("text")]
    | Annotated[TableFile, Tag("file")]
    | Annotated[TmxFile, Tag("tmx")]
    | Annotated[MosesZip, Tag("moses")]
    | Annotated[HubDataset, Tag("dataset")],
    Discriminator(_source_kind),
]
TrainingSource = Annotated[
    Annotated[DataSource, Tag(ONE)] | Annotated[list[DataSource], Tag(LIST), Field(min_length=1, max_length=1000)],
    Discriminator(lambda value: LIST if isinstance(value, list) else ONE),
]


class DataConfig(Section):
    """Where the sentence pairs come from."""

    source_language: Language  # translated from, such as `de`; also names columns, and the spaCy tokenizer
    target_language: Language  # translated into; also chooses the tokenizer of BLEU
    # What the model learns from: a source, or a list of sources that are mixed; null: not known, of an imported model.
    train: TrainingSource | None
    # What decides which checkpoint is best; null: 5 % of the pairs of `train`, at most 1,000, are held out for it and
    # saved with the run.
    valid: DataSource | None = None
    test: DataSource | None = None  # what `tfm evaluate` takes where no files are given; training never looks at it
    # Kinds of faulty pairs that training leaves out of `train`, as `tfm doctor` names them, such as
    # `[duplicate_pair, swapped_sides, {length_ratio: 3.0}]`.
    filters: DataFilters = []
    # The license under which a model of this data may be passed on, such as `cc-by-4.0`; its model card states it
    # (`tfm report --card`), and states none where this is null.
    license: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]{0,99}$")] | None = None
    # Tokens of a training pair's longer side, `</s>` not counted; longer pairs are left out and counted. Longer text to
    # translate is cut into chunks.
    max_length: Annotated[int, Field(ge=1, le=100_000)] = 256
    # Processes that encode and batch beside the training one; 0: none.
    workers: Annotated[int, Field(ge=0, le=256)] = 2
    imported_from: str | None = None  # what `tfm import` made the model of; null: it was trained here

    @property
    def sources(self) -> dict[str, "TextFiles | TableFile | TmxFile | MosesZip | HubDataset"]:
        """Return the sources of `train` by their keys: `data.train`, or `data.train.0`, `data.train.1`, …"""
        if self.train is None:
            return {}
        if not isinstance(self.train, list):
            return {"data.train": self.train}
        return {f"data.train.{place}": source for place, source in enumerate(self.train)}

    def filters_of(self, source: Source) -> dict[str, float | None]:
        """Return the kinds of pairs that training leaves out of a source of `train`, with the bounds that are given."""
        found: dict[str, float | None] = {}
        for one in self.filters if source.filters is None else source.filters:
            found |= {one: None} if isinstance(one, str) else dict(one.items())
        return found

    @property
    def tags(self) -> list[str]:
        """Return the tags of all sources, each once."""
        every = [*self.sources.values(), self.valid, self.test]
        return list(dict.fromkeys(source.tag for source in every if source is not None and source.tag is not None))

    @model_validator(mode="after")
    def _mixes_train_alone(self) -> "DataConfig":
        """`weight` and `filters` belong to sources of `train`: validation and test data stay as they are."""
        for name in ("valid", "test"):
            source: Source | None = getattr(self, name)
            for key in ("weight", "filters"):
                if source is not None and getattr(source, key) != Source.model_fields[key].default:
                    raise ValueError(f"{name}.{key}: only sources of data.train have it; leave it out")
        return self


class VocabularyConfig(Section):
    """How text becomes tokens, and which tokens have an id. The real size is that of the vocabulary that is built."""

    # Subwords, words by spaCy's rules, words by white space, or characters. `marian`: as imported Marian models
    # have it, a sentencepiece model for each language, which segments text for a vocabulary beside it.
    tokenizer: Literal["sentencepiece", "spacy", "whitespace", "character", "marian"] = "sentencepiece"
    algorithm: Literal["unigram", "bpe"] = "unigram"  # sentencepiece only: which kind of subwords
    # Tokens, specials included: the largest vocabulary allowed, which sentencepiece fills if the text has so many.
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
    def _fits_together(self) -> "VocabularyConfig":
        """`symbols` names each symbol once, without white space, and none of the specials `<pad>`, `<unk>`, `<s>` and
        `</s>`. `tokenizer: sentencepiece` takes a `character_coverage` of 0.98 to 1."""
        if self.tokenizer == "sentencepiece" and self.character_coverage < 0.98:
            raise ValueError(f"character_coverage: sentencepiece takes 0.98 to 1, got {self.character_coverage:g}")
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

    # Values for a corpus of a certain size, here and in other sections, for keys that are not set; `auto` measures the
    # different target text of `data.train`.
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
    # Of the feed-forward layer; `swish` is also called SiLU; the last two are gated.
    activation: Literal["relu", "gelu", "swish", "swiglu", "geglu"] = "relu"
    # Layer norm after each residual sum (the paper), or before each sub-layer and once at the end.
    norm: Literal["post", "pre"] = "post"
    norm_epsilon: Annotated[float, Field(gt=0.0, le=0.1)] = 1e-5  # added to the variance in layer norm
    # The paper's sines and cosines, added to the embeddings; a table that begins as these and is learned; or queries
    # and keys of self-attention turned by the angles of such sines, so that it sees distances (Su et al. 2021).
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    # Tokens: rows of the learned table, so the longest sentence; other positions have no limit.
    max_positions: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    # Whether queries and keys are normalised, so that no score is large (after Henry et al. 2020): each head's; queries
    # to the source, all heads' together.
    qk_norm: bool = False
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
        """`heads` divides `d_model`, or `head_dim` is set. Sinusoidal positions need an even `d_model`, rotary ones an
        even `head_dim`; `qk_norm` needs heads of 3 or more dimensions."""
        if awaits_preset(info):
            return self
        if self.head_dim is None and self.d_model % self.heads:
            raise ValueError(
                f"heads: {self.heads} does not divide d_model = {self.d_model}; change one of them, or set head_dim"
            )
        if self.d_model % 2 and self.positions == "sinusoidal":
            raise ValueError(f"d_model: sinusoidal positions need an even number, got {self.d_model}")
        given = f"{self.head_width}" if self.head_dim else f"{self.head_width} (d_model / heads)"
        if self.head_width % 2 and self.positions == "rotary":
            raise ValueError(f"head_dim: rotary positions need an even number, got {given}")
        if self.head_width < 3 and self.qk_norm:
            raise ValueError(f"head_dim: qk_norm leaves nothing of heads of fewer than 3 dimensions, got {given}")
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
    def head_width(self) -> int:
        """The dimensions of a head's queries and keys (d_k)."""
        return self.head_dim or self.d_model // self.heads

    @property
    def own_variant(self) -> str | None:
        """Return what only our own Transformer has of this model, as `key: value`; None: other engines can be it too.

        One-hot inputs are not named: their weights are those of a look-up.
        """
        if self.generation != "autoregressive":
            return f"generation: {self.generation}"
        if self.generator != "softmax":
            return f"generator: {self.generator}"
        if self.value_dim not in (None, self.head_width):
            return f"value_dim: {self.value_dim}"
        return None


class GuidedAttention(Section):
    """A loss on the decoder's attention to the source, such as `{prior: diagonal}` (Tachibana et al. 2017, eq. 6-7), or
    `{prior: alignments}` (Garg et al. 2019, eq. 5)."""

    prior: Literal["diagonal", "alignments"] = "diagonal"  # towards the diagonal, or towards the tokens' translations
    # The alignments of `data.train`: a Pharaoh file (`0-0 1-2 …`, words between spaces counted from 0), line by line;
    # null: they are found by statistics, in the training text alone.
    alignments: Annotated[str, Field(min_length=1)] | None = None
    weight: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0  # of this loss, a target token, beside the translation's
    start_weight: Annotated[float, Field(gt=0.0, le=1000.0)] | None = None  # its weight at first; null: `weight`
    start_steps: Positive = 3000  # steps in which it goes evenly from `start_weight` to `weight`
    width: Annotated[float, Field(gt=0.0, le=10.0)] = 0.2  # diagonal only: how far from it is free, g of the paper
    layer: Annotated[int, Field(ge=-1000, le=999)] = -1  # which decoder layer, from 0; -1: the last
    heads: tuple[Annotated[int, Field(ge=0)], ...] | None = None  # which heads; null: all (diagonal), 0 (alignments)
    max_steps: Positive | None = None  # steps after which it ends; null: it stays

    @property
    def needs_lexicon(self) -> bool:
        """Return whether alignments are found by statistics."""
        return self.prior == "alignments" and self.alignments is None

    @property
    def supervised_heads(self) -> tuple[int, ...] | None:
        """Return the heads that learn alignments, so that these can be read from them; None with a diagonal prior."""
        return (self.heads or (0,)) if self.prior == "alignments" else None

    @model_validator(mode="after")
    def _file_fits(self) -> "GuidedAttention":
        """`prior: diagonal` has no file of `alignments`. `heads` names heads, each once."""
        if self.prior == "diagonal" and self.alignments is not None:
            raise ValueError("alignments: prior diagonal has no such file; leave it out, or set prior: alignments")
        if self.heads is not None and (not self.heads or len(set(self.heads)) < len(self.heads)):
            raise ValueError("heads: name one head or more, each once; or null")
        return self


class ScheduledSampling(Section):
    """Scheduled sampling (Bengio et al. 2015) in two passes (Mihaylova & Martins 2019), such as
    `{schedule: linear, steps: 10000}`: some true target tokens give way to what the model predicts there."""

    # How the probability of the true token falls from 1 to `floor`.
    schedule: Literal["linear", "exponential", "inverse_sigmoid"] = "inverse_sigmoid"
    steps: Positive = 10_000  # how fast: linear: steps until `floor`; the others: steps until halfway to it
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5  # the lowest probability of the true token
    start_step: Annotated[int, Field(ge=0)] = 0  # steps with true tokens alone, before
    # What replaces a true token: the most likely one, a sampled one, or the mean embedding by probability.
    prediction: Literal["argmax", "sample", "mixture"] = "argmax"
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0  # sample and mixture: divides the log-probabilities


class Noise(Section):
    """Noise on source sentences in training, drawn anew in each epoch, such as `{capitals: 0.1, typos: 0.02}`: text as
    users type it (Belinkov & Bisk 2018; Karpukhin et al. 2019). Each key is a probability. Symbols, addresses,
    placeholders and markup stay as they are, and so do validation and test data."""

    capitals: Probability = 0.0  # that a sentence is all in capitals; `ß` becomes `SS`
    title_case: Probability = 0.0  # that each word of a sentence begins with a capital
    # That a word of four letters or more has a typo behind its first letter: two letters swapped, one left out, doubled
    # or replaced by another one of the sentence.
    typos: Probability = 0.0
    no_final_punctuation: Probability = 0.0  # that a sentence lacks the `.`, `!`, `?`, `…` or the like at its end

    @model_validator(mode="after")
    def _fits_together(self) -> "Noise":
        """`capitals` + `title_case` are at most 1: a sentence gets one of them, or neither."""
        if self.capitals + self.title_case > 1:
            raise ValueError(
                f"title_case: a sentence is in capitals or in title case, and {self.capitals:g} + {self.title_case:g} "
                "exceed 1; lower one of them"
            )
        return self


class TrainingConfig(Section):
    """How the model is trained. A *step* is one update of the weights."""

    # Everything random follows from it: initialization, dropout, order of batches, sampling.
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    # Size of a batch: sentences × the longer of its longest source and its longest target, padding and `</s>` included.
    batch_tokens: Positive = 4096
    accumulation: Positive = 1  # batches per update; the update is that of one batch as large as all of them
    max_steps: Positive | None = 100_000  # updates after which training ends; null: `max_epochs` decides
    max_epochs: Positive | None = None  # passes over the training data after which training ends
    # Adam; Adam with decoupled weight decay; or Muon for the matrices of the layers, with Adam for all else.
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)  # decay of Adam's first and second moments
    epsilon: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-9  # added to the denominator of Adam
    # How much weights shrink at each step, times the learning rate: with adamw matrices and embeddings, with muon the
    # matrices of the layers.
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    # The learning rate over the steps: `noam` is the paper's; the others rise to `peak_learning_rate` in the warmup.
    schedule: Literal["noam", "inverse_sqrt", "cosine", "wsd", "constant"] = "noam"
    warmup_steps: Annotated[int, Field(ge=0)] = 4000  # steps in which the learning rate rises
    factor: Annotated[float, Field(gt=0.0)] = 1.0  # noam only: multiplies the paper's learning rate
    peak_learning_rate: Annotated[float, Field(gt=0.0)] | None = None  # of every schedule but `noam`
    # Steps in which every dropout rises evenly from 0 to its probability (after Morerio et al. 2017); 0: it is there in
    # full from the first.
    dropout_warmup_steps: Annotated[int, Field(ge=0)] = 0
    label_smoothing: Fraction = 0.1  # probability taken from the right token and spread over the vocabulary
    clip_norm: Annotated[float, Field(gt=0.0)] | None = 1.0  # largest norm of the gradient; null: no clipping
    # Of the forward and backward pass; weights are fp32 always. `auto`: bf16 where the GPU or CPU supports it natively,
    # else fp32; the run says which.
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    # Of the gradients that several processes send each other: bf16 halves the message and rounds to three digits.
    exchange_precision: Literal["fp32", "bf16"] = "fp32"
    # Segment training text differently in each epoch; bpe: probability of dropping a merge; unigram: smoothing α of
    # the sampling; 0: off. Sampled segmentations are longer: a batch may be up to 1.5 times as long as planned.
    subword_sampling: Fraction = 0.0
    validate_every: Positive = 1000  # steps between two validations: loss, perplexity, BLEU and chrF
    validation_sentences: Positive = 1000  # translated for BLEU and chrF; loss and perplexity are taken over all
    save_every: Positive = 1000  # steps between two checkpoints; a best step is saved in any case
    log_every: Positive = 100  # steps between two lines of `metrics.jsonl`
    keep_last: Positive = 3  # how many of the newest checkpoints are kept
    keep_best: Positive = 1  # how many of the best checkpoints are kept
    best_metric: Literal["bleu", "chrf", "loss"] = "bleu"  # highest BLEU, highest chrF or lowest loss in validation
    # Validations without a new best score or a new lowest loss before training stops, or, with schedule wsd, before its
    # rate decays; null: never.
    patience: Positive | None = None
    average_last: Annotated[int, Field(ge=2)] | None = None  # average so many checkpoints at the end; null: none
    average_best: Annotated[int, Field(ge=2)] | None = None  # average so many of the best instead; null: none
    # Decay of an exponential moving average of the weights, which is then what is validated and saved; null: none.
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    # R-Drop: weight α of the divergence between two passes with different dropout; costs a second pass; 0: off. With
    # `dropout_warmup_steps`, it waits for twice as many steps, then rises evenly from 0 for three times as many.
    r_drop: Annotated[float, Field(ge=0.0)] = 0.0
    init_from: Annotated[str, Field(min_length=1)] | None = None  # run or checkpoint whose weights training starts from
    # Of a run that starts from a model, its parent: the parent's vocabulary, or a new one for this run's text, whose
    # embeddings begin as those of the same pieces, else as the mean of a piece's parts.
    init_vocabulary: Literal["parent", "own"] = "parent"
    freeze: tuple[
        Literal["embeddings", "source_embedding", "target_embedding", "encoder", "decoder", "generator"], ...
    ] = ()  # parts whose weights are frozen
    max_skipped: Positive = 20  # updates in a row without a finite loss and gradient after which training stops
    compile: bool = False  # compile the layers with `torch.compile`, for a GPU; the first updates take longer
    # Lengths of batches are padded up to a multiple of this, so that there are fewer shapes.
    pad_to: Annotated[int, Field(ge=1, le=1024)] = 1
    # Pretrained word vectors, in word2vec's or GloVe's text format, plain or `.gz`; each of `d_model` numbers.
    source_vectors: Annotated[str, Field(min_length=1)] | None = None  # null: the source embedding is drawn at random
    target_vectors: Annotated[str, Field(min_length=1)] | None = None  # null: so is the target embedding; as above
    # What embeddings begin as: random; or, with `lexicon`, tokens that translate each other, by statistics of the
    # training text, begin close together. Without effect where `init_from` brings embeddings.
    init_embeddings: Literal["random", "lexicon"] = "random"
    guided_attention: GuidedAttention | None = None  # a loss on the attention to the source; null: none
    scheduled_sampling: ScheduledSampling | None = None  # feed the decoder some of its own predictions; null: none
    noise: Noise | None = None  # sentences in capitals, with typos and the like; null: none
    tensorboard: bool = False  # also write `tensorboard/`; needs `pip install 'transformer-cli[tensorboard]'`

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> "TrainingConfig":
        """`max_steps` or `max_epochs` is set. Schedules other than `noam` need `peak_learning_rate`, `noam` has none;
        `noam` and `inverse_sqrt` need `warmup_steps` of at least 1; `cosine` and `wsd` need `max_steps` above
        `warmup_steps`. `weight_decay` needs `optimizer: adamw` or `muon`. `average_last` is at most `keep_last`,
        `average_best` at most `keep_best`; only one of the two is set. `freeze` names each part once. `init_from`
        brings embeddings of its own: neither `source_vectors` nor `target_vectors` is set with it, nor is either with
        `init_embeddings: lexicon`. `init_vocabulary: own` needs `init_from`. `dropout_warmup_steps` and `compile`
        exclude each other."""
        if awaits_preset(info):
            return self
        if self.max_steps is None and self.max_epochs is None:
            raise ValueError("max_steps: set it or max_epochs, else training never ends")
        if self.schedule == "noam" and self.peak_learning_rate is not None:
            raise ValueError("peak_learning_rate: the noam schedule has none; use factor, or another schedule")
        if self.schedule != "noam" and self.peak_learning_rate is None:
            raise ValueError(f"peak_learning_rate: schedule {self.schedule} needs it (for example 0.0005)")
        if self.schedule in ("noam", "inverse_sqrt") and self.warmup_steps == 0:
            raise ValueError(f"warmup_steps: schedule {self.schedule} needs at least 1")
        if self.schedule in ("cosine", "wsd") and (self.max_steps is None or self.max_steps <= self.warmup_steps):
            raise ValueError(f"max_steps: the {self.schedule} schedule ends there; set it above warmup_steps")
        if self.weight_decay and self.optimizer == "adam":
            raise ValueError("weight_decay: optimizer adam has none; set optimizer: adamw or muon")
        if self.average_last is not None and self.average_last > self.keep_last:
            raise ValueError(f"average_last: {self.average_last} checkpoints need keep_last of at least as many")
        if self.average_best is not None and self.average_best > self.keep_best:
            raise ValueError(f"average_best: {self.average_best} checkpoints need keep_best of at least as many")
        if self.average_best is not None and self.average_last is not None:
            raise ValueError("average_best: average_last is set too; set one of them to null")
        if len(set(self.freeze)) < len(self.freeze):
            raise ValueError("freeze: a part is named twice")
        for key in ("source_vectors", "target_vectors"):
            if self.init_from is not None and getattr(self, key) is not None:
                raise ValueError(f"{key}: init_from brings embeddings of its own; leave one of the two out")
            if self.init_embeddings == "lexicon" and getattr(self, key) is not None:
                raise ValueError(
                    f"init_embeddings: {key} brings embeddings; set init_embeddings: random, or leave it out"
                )
        if self.init_vocabulary == "own" and self.init_from is None:
            raise ValueError("init_vocabulary: every run without init_from has a vocabulary of its own; leave it out")
        if self.dropout_warmup_steps and self.compile:
            raise ValueError(
                "dropout_warmup_steps: with compile, layers would be compiled anew in each step; leave one out"
            )
        return self

    @property
    def takes_vocabulary(self) -> bool:
        """Return whether the run has the vocabulary of the model that it starts from."""
        return self.init_from is not None and self.init_vocabulary == "parent"


class DecodingConfig(Section, ConfiguredSearch):  # type: ignore[misc]  # mypy does not see that a section is frozen
    """How translations are found. Options of `tfm translate` override these."""

    batch_tokens: Positive = 4096  # size of a batch in translating: sentences × longest source, padding included
    # Other tokenizers than sentencepiece: `<unk>` becomes the source word that attention points at.
    copy_unknown: bool = True
    # A symbol put before each text to translate: one of the tags that the model was trained with, such as `<2de>`.
    tag: str | None = None
