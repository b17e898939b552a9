"""A small corpus, configs and codecs for the tests of the text package."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from transformer_cli.config import Config
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs

Pair = tuple[str, str]

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u")]


def configure(tokenizer: str = "sentencepiece", **vocabulary: Any) -> Config:
    """A config whose data are never read."""
    nowhere = {"source": "unused", "target": "unused"}
    seed = vocabulary.pop("seed", 1)
    return Config.model_validate(
        {
            "data": {
                "source_language": vocabulary.pop("source_language", "de"),
                "target_language": vocabulary.pop("target_language", "en"),
                "train": nowhere,
                "valid": nowhere,
                "workers": vocabulary.pop("workers", 0),
            },
            "vocabulary": {"tokenizer": tokenizer, **vocabulary},
            "model": {"tie_embeddings": "none"},
            "training": {"seed": seed},
        }
    )


def invented_pairs(count: int, seed: int = 1) -> list[Pair]:
    """Sentences of words that are commoner the earlier they come, with capitals and punctuation."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(150)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]

    def sentence() -> str:
        return " ".join(rng.choices(words, weights, k=rng.randint(1, 9))).capitalize() + rng.choice(".!?")

    return [(sentence(), sentence()) for _ in range(count)]


@pytest.fixture(scope="session", name="configure")
def configure_fixture() -> Callable[..., Config]:
    return configure


@pytest.fixture
def word_config() -> Config:
    """Words, counted by one process beside this one."""
    return configure("whitespace", workers=1)


@pytest.fixture(scope="session")
def pairs() -> list[Pair]:
    return invented_pairs(300)


@pytest.fixture(scope="session")
def codecs(pairs: list[Pair]) -> Callable[..., Codecs]:
    """`codecs(tokenizer, **options)`: built on `pairs` once for all tests."""
    made: dict[str, Codecs] = {}

    def get(tokenizer: str, **options: Any) -> Codecs:
        key = repr((tokenizer, sorted(options.items())))
        if key not in made:
            if tokenizer in ("unigram", "bpe"):
                config = configure(algorithm=tokenizer, **{"size": 420, **options})
            else:
                config = configure(tokenizer, **options)
            made[key], _ = build_codecs(config, lambda: pairs)
        return made[key]

    return get
