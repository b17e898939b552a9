"""Every config section: one YAML file becomes one frozen, strict tree of pydantic models.

Each field states its meaning, bound and default in its section's file and nowhere else: `docs/generate.py` makes
docs/config.md of the annotations, the comment after or above each field, and the docstrings. `load_config` is the only
way in; no torch.
"""

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError, ValidationInfo, model_validator

from transformer_cli.config.languages import code_fault
from transformer_cli.config.sections import (
    AWAITS_PRESET,
    LIST,
    ONE,
    SOURCE_KINDS,
    DataConfig,
    DecodingConfig,
    GuidedAttention,
    HubDataset,
    ModelConfig,
    MosesZip,
    Noise,
    ScheduledSampling,
    Section,
    Source,
    TableFile,
    TextFiles,
    TmxFile,
    TrainingConfig,
    VocabularyConfig,
    awaits_preset,
)
from transformer_cli.config.yaml_file import SHOWN, Tree, dump_tree, explain, merge, parse_tree, read_config_text
from transformer_cli.errors import UserError, one_of

__all__ = [
    "Config",
    "DataConfig",
    "DecodingConfig",
    "GuidedAttention",
    "HubDataset",
    "ModelConfig",
    "MosesZip",
    "Noise",
    "ScheduledSampling",
    "Section",
    "Source",
    "TableFile",
    "TextFiles",
    "TmxFile",
    "TrainingConfig",
    "VocabularyConfig",
    "config_of_tree",
    "dump_config",
    "keys_within",
    "load_config",
    "parse_config",
]


class Config(Section):
    """A whole config file."""

    data: DataConfig
    vocabulary: VocabularyConfig = VocabularyConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _lengths_fit(self, info: ValidationInfo) -> "Config":
        """`data.max_length` + 1, rounded up to a multiple of `training.pad_to`, is at most `training.batch_tokens`, and
        at most `model.max_positions` where positions are learned. `training.subword_sampling` needs
        `vocabulary.tokenizer: sentencepiece`, and with `model.generator: pointer` also `vocabulary.byte_fallback`; so
        does `training.noise` with `model.generator: pointer`. `capitals` and `title_case` of
        `training.noise` exclude `vocabulary.lowercase`.
        `model.tie_embeddings: all` needs `vocabulary.shared: true`.
        `training.r_drop`, `guided_attention`, `scheduled_sampling` and a `model.generation` other than
        `autoregressive` exclude each other, but for the first two.
        `training.guided_attention` names a layer and heads that the decoder has; a file of `alignments` is of tokens as
        they were encoded once, so that they exclude `training.subword_sampling` and `training.noise`.
        `training.source_vectors` and `target_vectors` are not both set where `model.tie_embeddings` is `all`.
        `training.freeze` leaves some part to be trained; a tied generator is frozen with the embeddings.
        `decoding.tag` is the `tag` of a source, or among `vocabulary.symbols`."""
        if awaits_preset(info):
            return self
        pad_to = self.training.pad_to
        longest = -(-(self.data.max_length + 1) // pad_to) * pad_to
        tokens = f"{self.data.max_length} tokens and </s>"
        if pad_to > 1:
            tokens += f", padded to {longest} for training.pad_to = {pad_to},"
        limits = {"training.batch_tokens": self.training.batch_tokens}
        if self.model.positions == "learned":
            limits["model.max_positions"] = self.model.max_positions
        for key, limit in limits.items():
            if longest > limit:
                raise ValueError(f"data.max_length: {tokens} exceed {key} = {limit}; lower the one or raise the other")
        if self.vocabulary.tokenizer != "sentencepiece" and self.training.subword_sampling:
            raise ValueError("training.subword_sampling: only vocabulary.tokenizer sentencepiece can sample")
        self._check_drawn()
        if self.model.tie_embeddings == "all" and not self.vocabulary.shared:
            raise ValueError(
                "model.tie_embeddings: all needs vocabulary.shared: true; set it, or tie_embeddings: decoder"
            )
        if self.model.tie_embeddings == "all" and self.training.source_vectors and self.training.target_vectors:
            raise ValueError(
                "training.target_vectors: with model.tie_embeddings all both sides share one table; give one file for "
                "it (of both languages, in one space), or set tie_embeddings: decoder"
            )
        known = [*self.data.tags, *self.vocabulary.symbols]
        if self.decoding.tag is not None and self.decoding.tag not in known:
            tags = f"give {one_of(known)}" if known else "leave it out"
            raise ValueError(f"decoding.tag: {self.decoding.tag!r} is not a tag of any source of data.train; {tags}")
        self._check_objective()
        self._check_guide()
        tied = self.model.tie_embeddings != "none" and not self.model.generator_bias
        frozen = set(self.training.freeze)
        if {"source_embedding", "target_embedding"} <= frozen:
            frozen.add("embeddings")
        if {"embeddings", "encoder", "decoder"} <= frozen and (tied or "generator" in frozen):
            raise ValueError("training.freeze: leaves no weights to train; leave out a part")
        return self

    @property
    def alignment_attention(self) -> tuple[int, tuple[int, ...] | None]:
        """Return the decoder layer and its heads (None: all) whose attention gives alignments: those that learned them,
        or all of the last layer."""
        guide = self.training.guided_attention
        if guide is None or guide.supervised_heads is None:
            return -1, None
        return guide.layer, guide.supervised_heads

    def _check_objective(self) -> None:
        """Raise `ValueError` for two kinds of training that exclude each other."""
        training = self.training
        kinds = {
            "model.generation": self.model.generation != "autoregressive",
            "training.r_drop": training.r_drop > 0,
            "training.guided_attention": training.guided_attention is not None,
            "training.scheduled_sampling": training.scheduled_sampling is not None,
        }
        chosen = [name for name, is_chosen in kinds.items() if is_chosen]
        if len(chosen) > 1 and chosen != ["training.r_drop", "training.guided_attention"]:
            raise ValueError(f"{chosen[0]}: excludes {chosen[1]}, which is set too; leave one of them out")

    def _check_drawn(self) -> None:
        """Raise `ValueError` where what is drawn for each epoch does not fit the vocabulary."""
        noise, words = self.training.noise, self.vocabulary
        exact = words.tokenizer == "sentencepiece" and words.byte_fallback
        changing = {"training.subword_sampling": self.training.subword_sampling, "training.noise": noise}
        for key, value in changing.items():
            if self.model.generator == "pointer" and value and not exact:
                raise ValueError(
                    f"{key}: gives other source tokens in each epoch, so copies of unknown tokens (model.generator "
                    "pointer) would point elsewhere; set vocabulary.tokenizer: sentencepiece with byte_fallback: true, "
                    "or leave one out"
                )
        if noise is not None and words.lowercase and (noise.capitals or noise.title_case):
            raise ValueError(
                "training.noise: capitals and title_case change nothing where vocabulary.lowercase is true; leave them "
                "out"
            )

    def _check_guide(self) -> None:
        """Raise `ValueError` where what guides attention does not fit the model or the data."""
        guide, layers, heads = self.training.guided_attention, self.model.decoder_layers, self.model.heads
        if guide is None:
            return
        if guide.alignments is not None and (len(self.data.sources) > 1 or self.data.tags):
            raise ValueError(
                "training.guided_attention.alignments: are of one source of data.train, without tags; leave one out"
            )
        if not -layers <= guide.layer < layers:
            raise ValueError(
                f"training.guided_attention.layer: {guide.layer}, but the decoder has {layers} layers; count them from "
                "0, or from -1 downwards beginning with the last"
            )
        if max(guide.heads or (0,)) >= heads:
            raise ValueError(
                f"training.guided_attention.heads: there is no head {max(guide.heads or (0,))}, a layer has {heads}; "
                "count them from 0"
            )
        for key in ("subword_sampling", "noise"):
            if guide.alignments is not None and getattr(self.training, key):
                raise ValueError(
                    f"training.guided_attention: its alignments and training.{key} exclude each other: alignments are "
                    "of tokens that stay; leave one out"
                )


# --- reading and writing ------------------------------------------------------------------------------------------


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file and merge `--set` overrides (`section.key=value`, the value in YAML) into it."""
    return parse_config(read_config_text(path), str(path), overrides)


def parse_config(text: str, where: str, overrides: Sequence[str] = ()) -> Config:
    """Validate the text of a config file, with `--set` overrides merged in first; raises as `config_of_tree` does."""
    return config_of_tree(parse_tree(text, where), where, overrides)


def config_of_tree(tree: Tree, where: str, overrides: Sequence[str] = ()) -> Config:
    """Validate sections as YAML gives them, with overrides merged into them first.

    Where they name a preset, what must fit together is checked when the preset is resolved. Raises `UserError` with
    the file, the key and the allowed range.
    """
    for override in overrides:
        merge(tree, override)
    model = tree.get("model")
    preset = model.get("preset") if isinstance(model, dict) else None
    try:  # as JSON, which like YAML has lists alone for tuples
        return _with_tags(Config.model_validate_json(json.dumps(tree), context={AWAITS_PRESET: preset is not None}))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "string_pattern_mismatch" and str(first["loc"][-1]).endswith("language"):
            raise UserError(f"{where}: {'.'.join(map(str, first['loc']))}: {code_fault(first['input'])}") from None
        raise UserError(f"{where}: {explain(error, _hint)}") from None


def _with_tags(config: Config) -> Config:
    """Return the config with each tag of its sources among `vocabulary.symbols`."""
    symbols = list(dict.fromkeys([*config.vocabulary.symbols, *config.data.tags]))
    if symbols == config.vocabulary.symbols:
        return config
    return config.model_copy(update={"vocabulary": config.vocabulary.model_copy(update={"symbols": symbols})})


def dump_config(config: Config) -> str:
    """Return the resolved config as YAML that `load_config` reads back to an equal config."""
    return dump_tree(config.model_dump(mode="json"))


def _hint(location: tuple[str | int, ...]) -> str:
    """Return which key was meant by one that there is not, in full; or the keys of its section."""
    *place, name = location
    name, keys = str(name)[:SHOWN], sorted(dict(keys_within(Config)), key=lambda key: key.count("."))
    if len(place) > 2 and place[0] == "data":  # a source; no file names its kind, the last part
        known = list(SOURCE_KINDS[str(place.pop())].model_fields)
        place = [part for part in place if part not in (ONE, LIST)]
    else:
        known = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == ".".join(map(str, place))]
    elsewhere: dict[str, list[str]] = {}  # by their last name
    for key in keys:
        same = elsewhere.setdefault(key.rpartition(".")[2], [key])
        if key not in same and key.count(".") == same[0].count("."):
            same.append(key)
    if name in elsewhere:
        meant = elsewhere[name]
    elif near := difflib.get_close_matches(name, known, n=1):
        meant = [".".join([*map(str, place), *near])]
    else:
        meant = [key for near in difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.8) for key in elsewhere[near]]
    return f"did you mean {one_of(meant)}?" if meant else f"known here: {one_of(known, limit=100)}"


def keys_within(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of a section and of those in it, with dots, and their types; not those of sources."""
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field.annotation
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, Section) and inner not in SOURCE_KINDS.values():
                yield from keys_within(inner, f"{prefix}{name}.")
