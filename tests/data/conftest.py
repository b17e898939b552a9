"""A small corpus and its codecs for the tests of the data package."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from transformer_cli.config import Config
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u")]


def sentences(count: int, seed: int) -> Iterator[str]:
    generator = random.Random(seed)
    words = ["".join(generator.choices(SYLLABLES, k=generator.randint(1, 4))) for _ in range(300)]
    for _ in range(count):
        yield " ".join(generator.choices(words, k=generator.randint(1, 12)))


def configure(tokenizer: str, **vocabulary: Any) -> Config:
    side = {"source": "unused", "target": "unused"}
    return Config.model_validate(
        {
            "data": {"source_language": "de", "target_language": "en", "train": side, "valid": side},
            "vocabulary": {"tokenizer": tokenizer, **vocabulary},
            "model": {"tie_embeddings": "none"},
        }
    )


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> TextCorpus:
    """200 pairs of invented sentences, one of them much too long and one empty on one side."""
    folder = tmp_path_factory.mktemp("corpus")
    for language, seed in (("de", 1), ("en", 2)):
        lines = [*sentences(200, seed)]
        lines[17] = " \t " if language == "en" else lines[17]
        lines[150] = " ".join([lines[150]] * 40)
        (folder / f"text.{language}").write_text("".join(f"{line}\n" for line in lines))
    return TextCorpus(folder / "text.de", folder / "text.en")


@pytest.fixture(scope="session")
def word_codecs(corpus: TextCorpus) -> Codecs:
    return build_codecs(configure("whitespace", shared=False), corpus.pairs)[0]


@pytest.fixture(scope="session")
def subword_codecs(corpus: TextCorpus) -> Codecs:
    return build_codecs(configure("sentencepiece", algorithm="bpe", size=400), corpus.pairs)[0]
