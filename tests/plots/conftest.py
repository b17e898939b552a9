"""A small model with random weights over words of several scripts, for the pictures that need one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from transformer_cli.build import build_engine, build_model
from transformer_cli.config import Config
from transformer_cli.decoding.translator import Translator
from transformer_cli.inside.attention import Attention
from transformer_cli.text.build import build_codecs

SENTENCES = ["ein Hund läuft $a$ x_1^2", "السلام عليكم يا صديقي", "שלום לכולם", "a <b> -- & c"]


def make_config(**sections: dict[str, Any]) -> Config:
    """A small model's config, with some values changed."""
    files = {"source": "a", "target": "b"}
    values: dict[str, Any] = {
        "data": {"source_language": "de", "target_language": "en", "train": files, "valid": files, "max_length": 12},
        "vocabulary": {"tokenizer": "whitespace", "size": 300},
        "model": {"encoder_layers": 2, "decoder_layers": 3, "d_model": 12, "heads": 2, "d_ff": 16},
        "decoding": {"beam_size": 2, "max_length_ratio": 0.5, "max_length_extra": 2},
    }
    return Config.model_validate(
        {name: {**values.get(name, {}), **sections.get(name, {})} for name in values | sections}
    )


@pytest.fixture(scope="session")
def make_translator() -> Callable[..., Translator]:
    """Of a model with random weights, some of its config changed."""

    def make(**model_changes: Any) -> Translator:
        config = make_config(model=model_changes)
        codecs, _ = build_codecs(config, lambda: [(text, text) for text in SENTENCES])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary))
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.5)
        return Translator(build_engine(model.eval()), codecs, config)

    return make


@pytest.fixture(scope="session")
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator()


@pytest.fixture(scope="session")
def make_attention() -> Callable[[int, int, list[str]], Attention]:
    """Random weights of some layers and heads over some words, as many on either side."""

    def make(layers: int, heads: int, words: list[str]) -> Attention:
        positions = len(words) + 1
        weights = np.random.default_rng(1).random((layers, heads, positions, positions), dtype=np.float32)
        text = " ".join(words)
        return Attention(text, text, [*words, "</s>"], ["<s>", *words], [*words, "</s>"], weights, weights, weights)

    return make
