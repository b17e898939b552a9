"""Small corpora and codecs for the tests of the data package."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from transformer_cli.text.vocabulary import SPECIALS, Vocabulary


@dataclass(frozen=True)
class StubCodec:
    vocabulary: Vocabulary

    def encode_batch(self, texts):
        return [self.vocabulary.lookup_indices(text.split()) for text in texts]

    def sample(self, text, strength, seed):
        generator = random.Random(seed)
        return [i for w in text.split() for i in self.vocabulary.lookup_indices([w]) * generator.randint(1, 2)]


@dataclass(frozen=True)
class StubCodecs:
    source: StubCodec
    target: StubCodec
    fingerprint: str = "stub"


@pytest.fixture
def codecs():
    v = Vocabulary([*SPECIALS, *(f"w{i}" for i in range(50))], [0] * 54)
    return StubCodecs(StubCodec(v), StubCodec(v))
