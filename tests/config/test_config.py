"""A config is what its file says, or it is refused with one line that names the key and what is allowed."""

import contextlib
import gzip
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from transformer_cli.config import (
    Config,
    GuidedAttention,
    HubDataset,
    Noise,
    ScheduledSampling,
    Section,
    TableFile,
    TextFiles,
    dump_config,
    load_config,
    parse_config,
)
from transformer_cli.config.yaml_file import MAX_ALIASES, MAX_CONFIG_BYTES, parse_tree, parse_yaml
from transformer_cli.data.corpora import open_split
from transformer_cli.errors import UserError

DATA = """\
data:
  source_language: de
  target_language: en
  train: {source: a.de, target: a.en}
  valid: {source: b.de, target: b.en}
"""
# Where a number's bound can only be reached when another key makes room for it.
ROOM = {
    "vocabulary.character_coverage": ["vocabulary.tokenizer=whitespace"],
    "data.max_length": ["training.batch_tokens=1000000"],
    "model.d_model": ["model.heads=1"],
    "model.heads": ["model.head_dim=8"],
    "training.batch_tokens": [],
    "training.weight_decay": ["training.optimizer=adamw"],
    "training.warmup_steps": ["training.schedule=constant", "training.peak_learning_rate=0.1"],
    "training.peak_learning_rate": ["training.schedule=constant"],
    "training.guided_attention.layer": ["model.decoder_layers=1000"],
    "training.average_last": ["training.keep_last=10"],
    "training.average_best": ["training.keep_best=10"],
}
# key: smallest allowed, refused below it, largest allowed, refused above it
INTEGERS: dict[str, tuple[int, int, int | None, int | None]] = {
    "data.max_length": (1, 0, 100_000, 100_001),
    "data.workers": (0, -1, 256, 257),
    "vocabulary.size": (8, 7, 10_000_000, 10_000_001),
    "vocabulary.min_freq": (1, 0, None, None),
    "vocabulary.sample_lines": (1, 0, None, None),
    "model.encoder_layers": (1, 0, 1000, 1001),
    "model.decoder_layers": (1, 0, 1000, 1001),
    "model.d_model": (2, 1, 65_536, 65_537),
    "model.heads": (1, 0, 1024, 1025),
    "model.head_dim": (1, 0, 65_536, 65_537),
    "model.d_ff": (1, 0, 1_000_000, 1_000_001),
    "model.max_positions": (1, 0, 1_000_000, 1_000_001),
    "training.seed": (0, -1, 2**32 - 1, 2**32),
    "training.accumulation": (1, 0, None, None),
    "training.max_steps": (1, 0, None, None),
    "training.max_epochs": (1, 0, None, None),
    "training.warmup_steps": (0, -1, None, None),
    "training.dropout_warmup_steps": (0, -1, None, None),
    "training.validate_every": (1, 0, None, None),
    "training.validation_sentences": (1, 0, None, None),
    "training.save_every": (1, 0, None, None),
    "training.log_every": (1, 0, None, None),
    "training.keep_last": (1, 0, None, None),
    "training.keep_best": (1, 0, None, None),
    "training.patience": (1, 0, None, None),
    "training.average_last": (2, 1, None, None),
    "training.average_best": (2, 1, None, None),
    "training.max_skipped": (1, 0, None, None),
    "training.pad_to": (1, 0, 1024, 1025),
    "model.value_dim": (1, 0, 65_536, 65_537),
    "training.guided_attention.layer": (-1000, -1001, 999, 1000),
    "training.guided_attention.max_steps": (1, 0, None, None),
    "training.scheduled_sampling.steps": (1, 0, None, None),
    "training.scheduled_sampling.start_step": (0, -1, None, None),
    "decoding.iterations": (1, 0, 1000, 1001),
    "decoding.length_candidates": (1, 0, 100, 101),
    "decoding.beam_size": (1, 0, 1000, 1001),
    "decoding.max_length_extra": (0, -1, 10_000, 10_001),
    "decoding.batch_tokens": (1, 0, None, None),
}
FLOATS: dict[str, tuple[float, float, float | None, float | None]] = {
    "vocabulary.character_coverage": (1e-6, 0.0, 1.0, 1.001),
    "model.dropout": (0.0, -0.1, 0.9, 0.901),
    "model.attention_dropout": (0.0, -0.1, 0.9, 0.901),
    "model.activation_dropout": (0.0, -0.1, 0.9, 0.901),
    "model.embedding_dropout": (0.0, -0.1, 0.9, 0.901),
    "model.norm_epsilon": (1e-12, 0.0, 0.1, 0.101),
    "training.epsilon": (1e-12, 0.0, 1.0, 1.001),
    "training.weight_decay": (0.0, -0.1, 10.0, 10.001),
    "training.factor": (1e-6, 0.0, None, None),
    "training.peak_learning_rate": (1e-6, 0.0, None, None),
    "training.label_smoothing": (0.0, -0.1, 0.999, 1.0),
    "training.clip_norm": (1e-6, 0.0, None, None),
    "training.subword_sampling": (0.0, -0.1, 0.999, 1.0),
    "training.ema_decay": (1e-6, 0.0, 0.9999, 1.0),
    "training.r_drop": (0.0, -0.1, None, None),
    "training.guided_attention.start_steps": (1, 0, None, None),
    "training.guided_attention.start_weight": (1e-6, 0.0, 1000.0, 1000.1),
    "training.guided_attention.weight": (1e-6, 0.0, 1000.0, 1000.1),
    "training.guided_attention.width": (1e-6, 0.0, 10.0, 10.1),
    "training.noise.capitals": (0.0, -0.1, 1.0, 1.1),
    "training.noise.title_case": (0.0, -0.1, 1.0, 1.1),
    "training.noise.typos": (0.0, -0.1, 1.0, 1.1),
    "training.noise.no_final_punctuation": (0.0, -0.1, 1.0, 1.1),
    "training.scheduled_sampling.floor": (0.0, -0.1, 1.0, 1.1),
    "training.scheduled_sampling.temperature": (1e-6, 0.0, 100.0, 100.1),
    "decoding.length_penalty": (0.0, -0.1, 10.0, 10.1),
    "decoding.max_length_ratio": (1e-6, 0.0, 100.0, 100.1),
}
NUMBERS = {**INTEGERS, **FLOATS}
CHOICES: dict[str, list[str]] = {
    "vocabulary.tokenizer": ["sentencepiece", "spacy", "whitespace", "character", "marian"],
    "vocabulary.algorithm": ["unigram", "bpe"],
    "vocabulary.normalization": ["none", "nfc", "nfkc"],
    "model.preset": ["auto", "tiny", "small", "base", "big"],
    "model.activation": ["relu", "gelu", "swish", "swiglu", "geglu"],
    "model.norm": ["post", "pre"],
    "model.positions": ["sinusoidal", "learned", "rotary"],
    "model.tie_embeddings": ["none", "decoder", "all"],
    "training.optimizer": ["adam", "adamw", "muon"],
    "training.schedule": ["noam", "inverse_sqrt", "cosine", "wsd", "constant"],
    "training.precision": ["fp32", "bf16", "fp16", "auto"],
    "training.exchange_precision": ["fp32", "bf16"],
    "training.init_embeddings": ["random", "lexicon"],
    "training.best_metric": ["bleu", "chrf", "loss"],
    "training.init_vocabulary": ["parent", "own"],
    "model.generator": ["softmax", "pointer"],
    "model.generation": ["autoregressive", "mask_predict", "one_shot"],
    "model.embedding": ["lookup", "one_hot"],
    "training.guided_attention.prior": ["diagonal", "alignments"],
    "training.scheduled_sampling.schedule": ["linear", "exponential", "inverse_sigmoid"],
    "training.scheduled_sampling.prediction": ["argmax", "sample", "mixture"],
    "decoding.length_penalty_kind": ["average", "gnmt"],
    "decoding.stopping": ["first", "exact"],
    "decoding.split": ["auto", "always", "never"],
}
SWITCHES = [
    "model.qk_norm",
    *["vocabulary.shared", "vocabulary.lowercase", "vocabulary.byte_fallback", "model.attention_bias"],
    *["model.feed_forward_bias", "model.generator_bias", "training.tensorboard", "decoding.copy_unknown"],
    "training.compile",
]
OTHER_KEYS = [
    *["data.filters", "data.imported_from", "data.license", "decoding.tag"],
    *["data.source_language", "data.target_language", "data.train", "data.valid", "data.test"],
    *["vocabulary.symbols", "training.betas", "training.batch_tokens", "training.init_from"],
    *["training.freeze", "training.source_vectors", "training.target_vectors"],
    *["training.guided_attention.alignments", "training.guided_attention.heads"],
]


def read(*overrides: str, text: str = DATA) -> Config:
    return parse_config(text, "my.yaml", overrides)


def refused(*overrides: str, text: str = DATA) -> str:
    """The message with which a config is refused: one line, with the file or the option that is at fault first."""
    with pytest.raises(UserError) as error:
        read(*overrides, text=text)
    message = str(error.value)
    assert len(message.splitlines()) == 1
    assert re.match(r"my\.yaml: |--set ", message)
    return message


def value(config: Config, key: str) -> Any:
    return attrgetter(key)(config)


def keys_of(section: type[Section], prefix: str) -> Iterator[str]:
    """The keys of a section, and those of sections within it in the place of their own."""
    for name, field in section.model_fields.items():
        sections = (GuidedAttention, ScheduledSampling, Noise)
        inner = next((option for option in get_args(field.annotation) if option in sections), None)
        yield from keys_of(inner, f"{prefix}{name}.") if inner else [f"{prefix}{name}"]


# --- bounds -------------------------------------------------------------------------------------------------------


def test_the_tables_here_name_every_key() -> None:
    known = [
        key
        for section, field in Config.model_fields.items()
        for key in keys_of(field.annotation, f"{section}.")  # type: ignore[arg-type]
    ]
    assert {*known} == {*NUMBERS, *CHOICES, *SWITCHES, *OTHER_KEYS}


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_are_held_to_their_bounds(key: str) -> None:
    low, too_low, high, too_high = NUMBERS[key]
    room = ROOM.get(key, [])
    for good in (low, high):
        if good is not None:
            assert value(read(*room, f"{key}={good}"), key) == good
    for bad, bound in ((too_low, low), (too_high, high)):
        if bad is not None:
            message = refused(*room, f"{key}={bad}")
            assert message.startswith(f"my.yaml: {key}: should be "), message
            named = re.search(r" than (?:or equal to )?([-0-9.e]+), got", message)
            assert named is not None, message
            assert float(named[1]) in (bad, bound), message


NO_NUMBERS = ["'3'", "many", "true", ".inf", ".nan", "[1]", "{a: 1}", "1_000", "2001-01-01"]


@pytest.mark.parametrize(
    ("key", "bad"),
    [  # every key with three of them, and each of them with a third of the keys; all under `slow`
        pytest.param(key, bad, marks=[] if (place + number) % 3 == 0 else [pytest.mark.slow])
        for place, key in enumerate(NUMBERS)
        for number, bad in enumerate(NO_NUMBERS)
    ],
)
def test_numbers_are_numbers(key: str, bad: str) -> None:
    assert f"{key}: " in refused(*ROOM.get(key, []), f"{key}={bad}")


@pytest.mark.parametrize("key", INTEGERS)
def test_a_fraction_is_no_integer(key: str) -> None:
    assert f"{key}: should be a valid integer" in refused(f"{key}=10.0")


@pytest.mark.parametrize("key", CHOICES)
def test_choices_are_named_when_another_is_made(key: str) -> None:
    extra = {
        "training.schedule": ["training.peak_learning_rate=0.001"],
        "vocabulary.shared": ["model.tie_embeddings=none"],
        "training.init_vocabulary": ["training.init_from=checkpoints/large"],
    }
    for choice in CHOICES[key]:
        more = extra.get(key, []) if choice != "noam" else []
        assert value(read(*more, f"{key}={choice}"), key) == choice
    message = refused(f"{key}={CHOICES[key][0]}x")
    assert all(f"'{choice}'" in message for choice in CHOICES[key])
    assert message.startswith(f"my.yaml: {key}: ")


@pytest.mark.parametrize("key", SWITCHES)
def test_switches_are_true_or_false(key: str) -> None:
    untied = "model.tie_embeddings=none"
    assert value(read(untied, f"{key}=true"), key) is True
    assert value(read(untied, f"{key}=false"), key) is False
    for bad in ("no", "yes", "on", "1", "'true'", "null"):
        assert f"{key}: should be a valid boolean" in refused(untied, f"{key}={bad}")


def test_betas_are_two_shares() -> None:
    assert read("training.betas=[0.8, 0.9]").training.betas == (0.8, 0.9)
    for bad in ("[0.9]", "[0.9, 1]", "[0.9, -0.1]", "[0.9, 0.98, 0.1]", "0.9", "[a, b]", "null"):
        assert "training.betas" in refused(f"training.betas={bad}")


def test_parts_to_freeze_are_a_list() -> None:
    assert read().training.freeze == ()
    assert read("training.freeze=[encoder, embeddings]").training.freeze == ("encoder", "embeddings")
    for bad in ("encoder", "[encoders]", "[1]", "null", "{encoder: true}", "[[encoder]]"):
        assert "training.freeze" in refused(f"training.freeze={bad}")


def test_weights_to_start_from_are_a_path() -> None:
    assert read("training.init_from=checkpoints/large").training.init_from == "checkpoints/large"
    for bad in ("''", "3", "[a]"):
        assert "training.init_from" in refused(f"training.init_from={bad}")


@pytest.mark.parametrize("code", ["de", "zh_Hans", "pt-BR", "no", "y"])
def test_a_language_code_is_text(code: str) -> None:
    assert read(f"data.source_language={code}").data.source_language == code


@pytest.mark.parametrize("code", ["''", "../de", "d e", "'1'", "de/..", "'de\n'"])
def test_a_language_code_is_no_path(code: str) -> None:
    assert "is not a language code; use an ISO 639 code" in refused(f"data.source_language={code}")


# --- what must fit together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        (["model.heads=7"], "model.heads", "7 does not divide d_model = 512"),
        (["model.d_model=9", "model.heads=3"], "model.d_model", "even number, got 9"),
        (
            ["model.d_model=36", "model.heads=4", "model.positions=rotary"],
            "model.head_dim",
            "even number, got 9 (d_model",
        ),
        (["model.head_dim=5", "model.positions=rotary"], "model.head_dim", "even number, got 5"),
        (["model.head_dim=2", "model.qk_norm=true"], "model.head_dim", "fewer than 3 dimensions, got 2"),
        (["training.guided_attention.alignments=a"], "training.guided_attention.alignments", "has no such file"),
        (["training.guided_attention.heads=[1, 1]"], "training.guided_attention.heads", "each once"),
        (["training.guided_attention.heads=[]"], "training.guided_attention.heads", "one head or more"),
        (
            [
                "vocabulary.tokenizer=sentencepiece",
                "training.subword_sampling=0.1",
                "training.guided_attention={prior: alignments, alignments: a}",
            ],
            "training.guided_attention",
            "of tokens that stay",
        ),
        (
            ["training.noise={typos: 0.1}", "training.guided_attention={prior: alignments, alignments: a}"],
            "training.guided_attention",
            "alignments and training.noise exclude each other",
        ),
        (["training.noise={capitals: 0.6, title_case: 0.5}"], "training.noise.title_case", "0.6 + 0.5 exceed 1"),
        (["training.noise={capital: 0.6}"], "training.noise.capital", "did you mean training.noise.capitals?"),
        (["training.noise={capitals: 0.1}", "vocabulary.lowercase=true"], "training.noise", "change nothing where"),
        (["training.noise={title_case: 0.1}", "vocabulary.lowercase=true"], "training.noise", "change nothing where"),
        (
            ["model.generator=pointer", "training.noise={typos: 0.1}", "vocabulary.byte_fallback=false"],
            "training.noise",
            "would point elsewhere",
        ),
        (
            ["model.generator=pointer", "training.noise={typos: 0.1}", "vocabulary.tokenizer=whitespace"],
            "training.noise",
            "tokenizer: sentencepiece",
        ),
        (["training.guided_attention.layer=6"], "training.guided_attention.layer", "the decoder has 6 layers"),
        (["training.guided_attention.layer=-7"], "training.guided_attention.layer", "the decoder has 6 layers"),
        (["training.guided_attention.heads=[0, 8]"], "training.guided_attention.heads", "there is no head 8"),
        (["model.generator=pointer", "model.generation=one_shot"], "model.generator", "token after token"),
        (
            ["model.generator=pointer", "training.subword_sampling=0.1", "vocabulary.byte_fallback=false"],
            "training.subword_sampling",
            "would point elsewhere",
        ),
        (["model.generation=mask_predict", "training.r_drop=1"], "model.generation", "excludes training.r_drop"),
        (
            ["training.guided_attention={}", "training.scheduled_sampling={}"],
            "training.guided_attention",
            "excludes training.scheduled_sampling",
        ),
        (["training.max_steps=null"], "training.max_steps", "or max_epochs"),
        (["training.peak_learning_rate=0.1"], "training.peak_learning_rate", "noam schedule has none"),
        (["training.schedule=cosine"], "training.peak_learning_rate", "schedule cosine needs it"),
        (["training.warmup_steps=0"], "training.warmup_steps", "noam needs at least 1"),
        (
            ["training.schedule=inverse_sqrt", "training.peak_learning_rate=1e-3", "training.warmup_steps=0"],
            "training.warmup_steps",
            "inverse_sqrt needs at least 1",
        ),
        (
            ["training.schedule=cosine", "training.peak_learning_rate=1e-3", "training.max_steps=4000"],
            "training.max_steps",
            "above warmup_steps",
        ),
        (["training.average_best=3"], "training.average_best", "keep_best of at least as many"),
        (
            ["training.average_best=2", "training.keep_best=2", "training.average_last=2"],
            "training.average_best",
            "average_last is set too",
        ),
        (["training.freeze=[encoder, encoder]"], "training.freeze", "named twice"),
        (["training.freeze=[encoder, decoder, embeddings]"], "training.freeze", "no weights to train"),
        (
            ["training.freeze=[encoder, decoder, embeddings, generator]", "model.tie_embeddings=none"],
            "training.freeze",
            "no weights to train",
        ),
        (
            ["training.freeze=[encoder, decoder, source_embedding, target_embedding]"],
            "training.freeze",
            "no weights to train",
        ),
        (["training.source_vectors=a", "training.target_vectors=b"], "training.target_vectors", "share one table"),
        (
            ["training.source_vectors=a", "training.init_from=b"],
            "training.source_vectors",
            "init_from brings embeddings of its own",
        ),
        *(
            (
                ["training.init_embeddings=lexicon", f"{key}=a"],
                "training.init_embeddings",
                f"{key[9:]} brings embeddings",
            )
            for key in ("training.target_vectors", "training.source_vectors")
        ),
        (["training.init_vocabulary=own"], "training.init_vocabulary", "without init_from"),
        (["model.generator=pointer", "model.embedding=one_hot"], "model.embedding", "set embedding: lookup"),
        (["training.dropout_warmup_steps=9", "training.compile=true"], "training.dropout_warmup_steps", "with compile"),
        (["training.weight_decay=0.1"], "training.weight_decay", "adamw"),
        (["training.average_last=4"], "training.average_last", "keep_last"),
        (["data.max_length=4096"], "data.max_length", "training.batch_tokens = 4096"),
        (["data.max_length=1024", "model.positions=learned"], "data.max_length", "model.max_positions = 1024"),
        (
            ["data.max_length=4088", "training.pad_to=1000"],
            "data.max_length",
            "padded to 5000 for training.pad_to = 1000",
        ),
        (
            ["data.max_length=1000", "model.max_positions=1001", "model.positions=learned", "training.pad_to=8"],
            "data.max_length",
            "model.max_positions = 1001",
        ),
        (
            ["vocabulary.tokenizer=spacy", "training.subword_sampling=0.1"],
            "training.subword_sampling",
            "only vocabulary.tokenizer sentencepiece",
        ),
        (["vocabulary.shared=false"], "model.tie_embeddings", "vocabulary.shared: true"),
        (["vocabulary.character_coverage=0.97"], "vocabulary.character_coverage", "takes 0.98 to 1, got 0.97"),
        (["vocabulary.symbols=[a, a]"], "vocabulary.symbols", "named twice"),
        (["vocabulary.symbols=['']"], "vocabulary.symbols", "empty"),
        (["vocabulary.symbols=['a b']"], "vocabulary.symbols", "white space"),
        (["vocabulary.symbols=['a\u2003b']"], "vocabulary.symbols", "white space"),
        (["vocabulary.symbols=[</s>]"], "vocabulary.symbols", "special"),
        (["vocabulary.symbols=[1]"], "vocabulary.symbols.0", "should be a valid string"),
    ],
)
def test_what_does_not_fit_together_is_refused(overrides: list[str], key: str, says: str) -> None:
    message = refused(*overrides)
    assert message.startswith(f"my.yaml: {key}: "), message
    assert says in message


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.heads=7", "model.head_dim=64"],
        ["model.d_model=9", "model.heads=3", "model.positions=learned"],
        ["training.max_steps=null", "training.max_epochs=3"],
        ["training.schedule=constant", "training.peak_learning_rate=1e-3", "training.warmup_steps=0"],
        ["training.schedule=cosine", "training.peak_learning_rate=1e-3", "training.max_steps=4001"],
        ["training.schedule=wsd", "training.peak_learning_rate=1e-3", "training.max_steps=4001"],
        ["training.weight_decay=0.1", "training.optimizer=adamw"],
        ["training.weight_decay=0.1", "training.optimizer=muon"],
        ["training.average_last=3"],
        ["data.max_length=4095"],
        ["data.max_length=1023", "model.positions=learned"],
        ["data.max_length=1019", "model.positions=learned", "training.pad_to=8"],
        ["vocabulary.shared=false", "model.tie_embeddings=decoder"],
        ["vocabulary.symbols=[<2de>, <2en>]"],
        ["training.noise={capitals: 0.5, title_case: 0.5}"],
        ["training.noise={typos: 0.1, no_final_punctuation: 0.1}", "vocabulary.lowercase=true"],
        ["training.noise={typos: 0.1}", "training.guided_attention={}"],
        ["training.noise={typos: 0.1}", "training.guided_attention={prior: alignments}"],
        ["training.r_drop=1", "training.guided_attention={prior: alignments}"],
        ["training.noise={typos: 0.1}", "model.generator=pointer"],
    ],
)
def test_what_just_fits_is_taken(overrides: list[str]) -> None:
    read(*overrides)


# --- sources ------------------------------------------------------------------------------------------------------


def test_a_source_is_told_by_its_keys() -> None:
    assert read().data.train == TextFiles(source="a.de", target="a.en")
    assert read("data.train={file: a.tsv}").data.train == TableFile(file="a.tsv")
    hub = read("data.train={dataset: x/y, split: train, source_column: translation.de}").data.train
    assert hub == HubDataset(dataset="x/y", split="train", source_column="translation.de")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{source: a}", "data.train.target: is missing"),
        ("{}", "data.train.source: is missing"),
        ("{dataset: x}", "data.train.split: is missing"),
        (
            "{dataset: x, split: y, source_colum: z}",
            "data.train.source_colum: unknown key; did you mean data.train.source_column?",
        ),
        ("{file: x, source: y}", "data.train.source: unknown key"),
        ("{source: 1, target: b}", "data.train.source: should be a valid string"),
        ("{source: a, target: null}", "data.train.target: should be a valid string"),
        ("a.de", "data.train: "),
        ("[a, b]", "data.train.0: "),
    ],
)
def test_a_wrong_source_is_refused(source: str, says: str) -> None:
    assert says in refused(f"data.train={source}")


# --- keys and overrides -------------------------------------------------------------------------------------------


def test_an_unknown_key_names_the_one_that_was_meant() -> None:
    assert refused("modell.heads=1").endswith("modell: unknown key; did you mean model?")
    message = refused("decoding.zzz=1")
    assert "unknown key; known here: " in message
    assert "beam_size" in message


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("max_steps", "training.max_steps"),
        ("max_step", "training.max_steps"),
        ("dropout", "model.dropout"),
        ("batch_tokens", "training.batch_tokens or decoding.batch_tokens"),
        ("layer", "training.guided_attention.layer"),
        ("training.warmup_step", "training.warmup_steps"),
        ("training.size", "vocabulary.size"),
        ("model.beam_siz", "decoding.beam_size"),
        ("data.train.max_length", "data.max_length"),
        ("training.guided_attention.widht", "training.guided_attention.width"),
    ],
)
def test_a_key_is_suggested_in_full_whatever_section_it_was_looked_for_in(written: str, meant: str) -> None:
    assert refused(f"{written}=90") == f"my.yaml: {written}: unknown key; did you mean {meant}?"


@pytest.mark.parametrize("override", ["model.dropout=0.1,0.3", "model.dropout=[0.1, 0.3]", "vocabulary.size=4000,8000"])
def test_several_values_for_a_key_are_refused_as_such(override: str) -> None:
    message = refused(override)
    assert override.partition("=")[2].strip("[]") in message
    assert message.endswith("; it has one value: train a run for each, with an --out of its own")


@pytest.mark.parametrize("override", ["training.max_steps=4,000", "model.dropout=x", "training.betas=0.9,0.98"])
def test_one_wrong_value_is_not_taken_for_several(override: str) -> None:
    assert "one value" not in refused(override)


@pytest.mark.parametrize(
    ("place", "known"),
    [
        ("", "vocabulary"),
        ("data.", "max_length"),
        ("data.train.", "target"),
        ("data.test={file: a, zzz: 1}", "source_column"),
        ("data.valid={dataset: a, split: b, zzz: 1}", "revision"),
        ("vocabulary.", "algorithm"),
        ("training.", "seed"),
        ("training.guided_attention.", "prior"),
        ("training.scheduled_sampling.", "floor"),
    ],
)
def test_the_keys_known_at_a_place_are_named(place: str, known: str) -> None:
    override = place if "=" in place else f"{place}zzz=1"
    message = refused(override)
    assert f"{place.partition('=')[0].rstrip('.')}{'.' if place else ''}zzz: unknown key; known here: " in message
    assert known in message
    assert ("seed" in message) == (place == "training.")


def test_a_missing_key_is_named() -> None:
    assert "data: is missing" in refused(text="model: {}")
    assert "data.train: is missing" in refused(text=DATA.replace("  train:", "  test:"))
    assert read(text=DATA.rsplit("  valid", 1)[0]).data.valid is None


@pytest.mark.parametrize("text", ["", "# nothing", "---", "- 1", "3", "text", "null"])
def test_what_has_no_sections_is_refused(text: str) -> None:
    assert "the sections data, vocabulary, model, training, decoding" in refused(text=text)


@pytest.mark.parametrize("section", ["vocabulary", "model", "training", "decoding"])
@pytest.mark.parametrize("bad", ["3", "null", "[]", "text"])
def test_a_section_is_a_mapping(section: str, bad: str) -> None:
    assert f"my.yaml: {section}: " in refused(text=f"{DATA}{section}: {bad}\n")


@pytest.mark.parametrize("override", ["training.max_steps", "", "=3", ".=3", ".seed=3", "training.=3", "a..b=3"])
def test_an_override_is_written_as_key_and_value(override: str) -> None:
    assert refused(override).startswith(f"--set {override!r}: write it as section.key=value")


def test_overrides_are_merged_in_order_before_validation() -> None:
    assert read("training.seed=3", "training.seed=4").training.seed == 4
    assert read("training.batch_tokens=10", "data.max_length=9").data.max_length == 9
    assert read("model.heads=16", text=DATA + "model: {d_model: 1024}\n").model.d_model == 1024
    assert read("data.train.source=c.de").data.train == TextFiles(source="c.de", target="a.en")
    assert read("data.train.source=a=b").data.train == TextFiles(source="a=b", target="a.en")


def test_a_mapping_replaces_the_whole_mapping() -> None:
    text = DATA + "model: {d_model: 1024, heads: 16}\n"
    assert read("model={heads: 2}", text=text).model.d_model == 512
    assert read("data.train={dataset: x, split: train}").data.train == HubDataset(dataset="x", split="train")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.seed=[", "--set training.seed: line 1 is not valid YAML"),
        ("training.seed={a: 1, a: 2}", "key 'a' stands here twice"),
        ("training.seed.x=1", "training.seed: should be a valid integer"),
        ("data.source_language.x=1", "--set data.source_language.x: source_language is a value, not a section"),
        ("__class__.x=1", "__class__: unknown key"),
    ],
)
def test_a_wrong_override_is_refused(override: str, says: str) -> None:
    assert says in refused(override)


# --- YAML ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [("1e-4", 1e-4), ("1E-4", 1e-4), (".5", 0.5), ("5e-1", 0.5), ("+0.5", 0.5), ("0", 0), ("0.", 0), ("0x0", 0)],
)
def test_numbers_by_the_core_rules(written: str, meant: float) -> None:
    assert read(f"training.label_smoothing={written}").training.label_smoothing == meant


@pytest.mark.parametrize(("written", "meant"), [("0x10", 16), ("0o17", 15), ("010", 10), ("-0", 0), ("+5", 5)])
def test_integers_by_the_core_rules(written: str, meant: int) -> None:
    assert read(f"training.seed={written}").training.seed == meant


@pytest.mark.parametrize("text", ["no", "yes", "on", "off", "y", "n", "1:30", "1_000", "2001-01-01", "=", "0b1", "0o8"])
def test_what_older_yaml_took_for_something_else_is_text(text: str) -> None:
    train = read(f"data.train.source={text}").data.train
    assert isinstance(train, TextFiles)
    assert train.source == text


@pytest.mark.parametrize("text", ["true", "False", "~", "null", "1", "1e3", "0o7", ".5", ".inf", ".NaN", ""])
def test_what_is_no_text_is_refused_as_text(text: str) -> None:
    assert "data.train.source: should be a valid string" in refused(f"data.train.source={text}")


def test_a_key_that_stands_twice_is_refused_with_its_line() -> None:
    assert "my.yaml: line 7 is not valid YAML: key 'seed' stands here twice" in refused(
        text=DATA + "training: {seed: 1,\n  seed: 2}\n"
    )
    assert "key 'data' stands here twice" in refused(text=DATA + DATA)


def test_an_alias_bomb_is_refused_at_once() -> None:
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
    assert "more than" in refused(text="\n".join([DATA + "a0: &a0 [x]", *levels]))  # 9^19 entries would never end


def test_a_few_aliases_are_fine() -> None:
    text = DATA.replace("{source: b.de, target: b.en}", "*train").replace("train: {", "train: &train {")
    assert read(text=text).data.valid == read().data.train
    names = [f"- {'&' if i == 0 else '*'}x {'a' if i == 0 else ''}" for i in range(MAX_ALIASES + 1)]
    assert "named twice" in refused(text=DATA + "vocabulary:\n  symbols:\n  " + "\n  ".join(names))
    names.append("- *x")
    assert "aliases" in refused(text=DATA + "vocabulary:\n  symbols:\n  " + "\n  ".join(names))


def test_an_alias_to_itself_is_refused() -> None:
    assert "my.yaml: " in refused(text=DATA + "training: &a {seed: *a}\n")
    assert "my.yaml: " in refused(text="&a {data: *a}")


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "!!python/object/new:os.system ['touch {marker}']",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/tuple [1, 2]",
        "!mine 3",
    ],
)
def test_tags_run_nothing(tag: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    assert "not valid YAML" in refused(text=DATA + "training: " + tag.format(marker=marker))
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        *["? [a, b]\n: 3", "? {a: b}\n: 3", "1: 2", "null: 3", "training: {1: 2}", "training: {<<: {seed: 3}}"],
        *["training: [", "training: {seed: !!bool maybe}", "training: {seed: !!int x}", "training: {seed: !!float x}"],
        *["training: {seed: !!timestamp x}", "training: {seed: !!omap [1]}", "training: {seed: !!set {a}}"],
        *["training: {seed: !!binary '%'}", "training: {seed: " + "9" * 5000 + "}", "\x00", "--- {}\n--- {}", "\t"],
        *["training: " + "[" * 1200, "training: " + "- " * 1200, "%YAML 9.9\n---\n{}"],
    ],
    ids=lambda text: repr(text[:40]),
)
def test_garbage_is_refused(text: str) -> None:
    refused(text=DATA + text)
    refused(text=text)


YAML_PIECES = st.sampled_from(
    [
        *"abc:{}[],&*!|>%@`'\"#-?\n\r\t\x85\u2028\ufeff犬\0\\ ~.0123456789",
        *[": ", "- ", "\n  ", "data", "train", "&a ", "*a", "!!int ", "<<: "],
    ]
)


@settings(max_examples=60)
@given(st.lists(YAML_PIECES, max_size=40).map("".join) | st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UserError):
        parse_config(text, "my.yaml")
    with contextlib.suppress(UserError):
        parse_config(DATA, "my.yaml", [f"training.seed={text}"])


@given(st.lists(YAML_PIECES, max_size=40).map("".join))
def test_libyaml_reads_what_pyyamls_own_parser_reads(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("yaml.CSafeLoader", raising=False)
        slow = outcome(text)
    assert outcome(text) == slow


def outcome(text: str) -> str:
    try:
        return repr(parse_yaml(text, "my.yaml"))  # NaN is not equal to itself
    except UserError as error:
        return str(error)


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML was built without libyaml")
def test_libyaml_reads_a_config() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("yaml.scanner.Scanner.check_token")  # of PyYAML's own parser alone
        assert parse_tree(DATA, "my.yaml")["data"]


# --- files --------------------------------------------------------------------------------------------------------


def write(folder: Path, content: bytes) -> Path:
    path = folder / "my.yaml"
    path.write_bytes(content)
    return path


def test_a_file_is_read_with_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + DATA.replace("\n", "\r\n").encode())
    assert load_config(path, ["training.seed=7"]) == read("training.seed=7")
    assert load_config(str(path)) == read()


def file_error(path: Path) -> str:
    with pytest.raises(UserError, match=re.escape(str(path))) as error:
        load_config(path)
    return str(error.value)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "No such file" in file_error(tmp_path / "none.yaml")
    assert "directory" in file_error(tmp_path)
    assert "Not a directory" in file_error(write(tmp_path, b"") / "below.yaml")
    assert "not UTF-8" in file_error(write(tmp_path, DATA.encode() + b"# \xff"))
    assert "larger than" in file_error(write(tmp_path, b"#" * (MAX_CONFIG_BYTES + 1)))


NO_CONFIGS = {
    "train.en": "Two young, White males are outside.\nA dog: it runs.\nEr sagte: hallo.\n",
    "long.en": "A dog runs through the snow.\n" * 100_000,
    "train.zh": "他喜欢吃苹果。\n我也是。\n",
    "train.tsv": "de\ten\nEin Hund: ja.\tA dog.\n",
    "one.tsv": "ein Hund\ta dog\n",
    "train.csv": 'de,en\n"Ein, Hund","A dog"\n',
    "train.jsonl": '{"de": "Ein Hund", "en": "A dog"}\n{"de": "Zwei", "en": "Two"}\n',
    "words.txt": "hund\nkatze\nmaus\n",
    "talk.txt": "- Ja.\nNein, danke.\nDoch!\n",
}


@pytest.mark.parametrize("name", NO_CONFIGS)
def test_a_text_in_the_place_of_a_config_is_called_a_text(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(NO_CONFIGS[name], encoding="utf-8")
    said = file_error(tmp_path / name)
    assert said.startswith(f"{tmp_path / name}: holds text, not a config; a config is a YAML file that names texts")


def test_packed_texts_are_called_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"A dog.\n" * 10))
    with zipfile.ZipFile(tmp_path / "de-en.zip", "w") as file:
        file.writestr("train.en", "A dog.\n")
    (tmp_path / "train.parquet").write_bytes(b"PAR1\x15\x04")
    for name, kind in (("train.en.gz", "gzip data"), ("de-en.zip", "a zip file"), ("train.parquet", "a Parquet file")):
        assert f"{name}: is {kind}, not a config; a config is a YAML file that names texts" in file_error(
            tmp_path / name
        )


@pytest.mark.parametrize("path", sorted(Path("configs").glob("*.yaml")), ids=str)
def test_no_config_is_taken_for_a_text(path: Path) -> None:
    broken = path.read_text(encoding="utf-8") + "model: [\n"
    with pytest.raises(UserError, match="not valid YAML"):
        parse_config(broken, "my.yaml")


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = write(tmp_path_factory.getbasetemp(), content)
    with pytest.raises(UserError):
        load_config(path)


LISTS = ["&a0 [x, x, x, x, x, x, x, x, x]", *(f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("\n".join(f"k{n}: {line}" for n, line in enumerate(LISTS)), "more than 20,000 values"),  # 9^9 of them
        (f"[{'x,' * 30_000}]", "more than 20,000 values"),
        ("a: &a [*a]", "an alias stands inside of what it names"),
        ("[" * 10_000, "nested too deeply"),
        ("a: " + "{a: " * 10_000, "nested too deeply"),
        ('a: "\\0"', "line 1 is not valid YAML: a character that no text holds"),
        ('a:\n- "\\uD800"', "line 2 is not valid YAML: a character that no text holds"),
        ("a" * 1000 + ": 1\n" + "a" * 1000 + ": 1", "stands here twice"),
        ("a" * 1000 + ": 1\n" + DATA, "unknown key"),
        (DATA + "model: {heads: " + "x" * 5000 + "}", "valid integer"),
    ],
)
def test_a_config_takes_no_more_time_and_space_than_it_needs(content: str, says: str) -> None:
    message = refused(text=content)
    assert says in message
    assert len(message) < 200


def test_an_override_changes_one_of_two_aliases() -> None:
    config = read(
        "data.valid.target=other",
        text=DATA.split("  train")[0] + "  train: &files {source: a, target: b}\n  valid: *files\n",
    )
    assert (config.data.train, config.data.valid) == (
        TextFiles(source="a", target="b"),
        TextFiles(source="a", target="other"),
    )


# --- writing ------------------------------------------------------------------------------------------------------

# Half a surrogate and NUL, which no file and no path can hold, are refused when they are read.
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TEXT = st.text(CHARACTERS, max_size=20) | st.sampled_from(
    ["1e3", "0o17", "no", "\x85", "\u2028", "+.5e3", "~", "", " a ", "a: b"]
)
SYMBOL = st.text(CHARACTERS, min_size=1, max_size=5).filter(
    lambda text: text.split() == [text] and not text.startswith("<")
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Configs of any source, text and number."""
    column = st.none() | TEXT
    sources: st.SearchStrategy[dict[str, Any]] = st.one_of(
        st.fixed_dictionaries({"source": TEXT, "target": TEXT}),
        st.fixed_dictionaries({"file": TEXT}, optional={"source_column": column, "target_column": column}),
        st.fixed_dictionaries({"dataset": TEXT, "split": TEXT}, optional={"name": column, "revision": column}),
    )
    share, positive = st.floats(0, 1, exclude_max=True), st.floats(1e-300, 1e300)
    dropout = st.floats(0, 0.9)
    return Config.model_validate(
        {
            "data": {
                "source_language": draw(st.sampled_from(["de", "no", "y", "e1"])),
                "target_language": draw(st.sampled_from(["en", "on", "null", "zh-Hans"])),
                "train": draw(sources),
                "valid": draw(sources),
                "test": draw(st.none() | sources),
            },
            "vocabulary": {
                "symbols": draw(st.lists(SYMBOL, unique=True, max_size=3)),
                "lowercase": draw(st.booleans()),
            },
            "model": {"dropout": draw(dropout), "embedding_dropout": draw(st.none() | dropout)},
            "training": {
                "seed": draw(st.integers(0, 2**32 - 1)),
                "betas": draw(st.tuples(share, share)),
                "factor": draw(positive),
                "clip_norm": draw(st.none() | positive),
                "max_epochs": draw(st.none() | st.integers(1, 10**20)),
            },
        }
    )


@settings(max_examples=40)
@given(configs())
def test_what_is_dumped_is_read_back(config: Config) -> None:
    text = dump_config(config)
    text.encode("utf-8")
    assert parse_config(text, "config.yaml") == config


def test_a_dump_names_every_key() -> None:
    text = dump_config(read())
    for section, field in Config.model_fields.items():
        for key in field.annotation.model_fields:  # type: ignore[union-attr]
            assert re.search(rf"^  {key}:", text, re.MULTILINE), f"{section}.{key}"


def test_a_config_never_changes() -> None:
    config = read()
    with pytest.raises(ValidationError, match="frozen"):
        config.training.seed = 2


def test_reading_a_config_imports_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from transformer_cli.config import parse_config"
    arguments: Sequence[str] = [sys.executable, "-c", code]
    assert subprocess.run(arguments, check=False).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: c\n",
        "a: !!timestamp foo",
        "data: !!bool foo",
        "data: !!set [1]",
        "data: !!int foo",
        "? {a: 1}\n: b\n",
    ],
)
def test_odd_yaml_is_the_users_mistake(text: str) -> None:
    with pytest.raises(UserError, match=r"^odd\.yaml: .*not valid YAML"):
        parse_config(text, "odd.yaml")


# --- several sources ----------------------------------------------------------------------------------------------

MIXED = """\
data:
  source_language: de
  target_language: en
  train:
    - {source: a.de, target: a.en}
    - {source: b.de, target: b.en, tag: <bt>, weight: 0.5, filters: [duplicate_pair, {length_ratio: 3.0}]}
    - {tmx: c.tmx, tag: <2de>, filters: []}
"""


def test_training_data_may_be_a_list_of_sources() -> None:
    config = read(text=MIXED)
    assert [*config.data.sources] == ["data.train.0", "data.train.1", "data.train.2"]
    plain, back_translated, memory = config.data.sources.values()
    assert (plain.tag, plain.weight, plain.filters) == (None, 1.0, None)
    assert (back_translated.tag, back_translated.weight) == ("<bt>", 0.5)
    assert (memory.tag, memory.filters) == ("<2de>", [])
    assert config.vocabulary.symbols == ["<bt>", "<2de>"]
    assert parse_config(dump_config(config), "again") == config
    assert [*read().data.sources] == ["data.train"]


def test_tags_stand_among_the_symbols_that_are_there_once() -> None:
    assert read("vocabulary.symbols=[<x>, <2de>]", text=MIXED).vocabulary.symbols == ["<x>", "<2de>", "<bt>"]
    assert read("decoding.tag=<x>", "vocabulary.symbols=[<x>]").decoding.tag == "<x>"
    assert read("decoding.tag=<bt>", text=MIXED).decoding.tag == "<bt>"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("data.train=[]", "data.train: .*at least 1 item"),
        ("data.train=[[{source: a, target: b}]]", "data.train.0: should be an object"),
        ("data.train=[{source: a, target: b}, 3]", "data.train.1: should be an object, got 3"),
        ("data.train=[{source: a}]", "data.train.0.target: is missing"),
        ("data.train=[{tmx: a, wieght: 2}]", "data.train.0.wieght: unknown key; did you mean data.train.0.weight?"),
        ("data.train={tmx: a, wieght: 2}", "data.train.wieght: unknown key; did you mean data.train.weight?"),
        ("data.train=[{tmx: a, weight: 0.0}]", "data.train.0.weight: should be greater than 0"),
        ("data.train=[{tmx: a, weight: 1001}]", "data.train.0.weight: should be less than or equal to 1000"),
        ("data.train=[{tmx: a, tag: bt}]", "data.train.0.tag: write it in angle brackets .*, such as <bt>, got 'bt'"),
        ("data.train=[{tmx: a, tag: <b t>}]", "data.train.0.tag: write it in angle brackets"),
        ("data.train=[{tmx: a, filters: [nonsense]}]", "data.train.0.filters.0: should be 'empty_side'"),
        ("data.valid={tmx: a, weight: 2.0}", "data.valid.weight: only sources of data.train have it"),
        ("data.test={tmx: a, filters: [markup]}", "data.test.filters: only sources of data.train have it"),
        ("decoding.tag=<2fr>", "decoding.tag: '<2fr>' is not a tag of any source .* give <bt> or <2de>"),
        (
            "training.guided_attention={prior: alignments, alignments: a}",
            "training.guided_attention.alignments: are of one source",
        ),
    ],
)
def test_a_fault_in_a_source_is_named_by_its_place(fault: str, message: str) -> None:
    assert re.match(f"my.yaml: {message}", refused(fault, text=MIXED))


def test_a_license_is_an_identifier_and_none_unless_stated() -> None:
    assert read().data.license is None
    assert read("data.license=cc-by-4.0").data.license == "cc-by-4.0"
    for wrong in ("''", "'cc by'", '"a\\nb"', "[mit]"):
        assert "data.license" in refused(f"data.license={wrong}")


def test_data_that_is_not_known_is_said_so() -> None:
    """As in the config of an imported model; what needs training data refuses it."""
    assert "data.train" in refused(text=DATA.replace("train:", "trains:"))
    data = read("data.train=null").data
    assert (data.sources, data.tags) == ({}, [])
    with pytest.raises(UserError, match=r"^data\.train: is null"):
        open_split(data, "train")


@pytest.mark.parametrize(("tag", "taken"), [("<2de>", True), (">>fra<<", True), (">>fr a<<", False), ("fra", False)])
def test_tags_stand_in_brackets(tag: str, taken: bool) -> None:
    source = f"data.train={{source: a, target: b, tag: '{tag}'}}"
    if taken:
        assert read(source).vocabulary.symbols == [tag]
    else:
        assert "tag: write it in angle brackets" in refused(source)
