"""Corpora that faults are planted into: the sample, and Multi30k where it lies beside the repository."""

import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACES = [Path(os.environ.get("TFM_MULTI30K", "")), ROOT / "shared/data/multi30k", ROOT.parent / "shared/data/multi30k"]
MULTI30K = next((folder for folder in PLACES if (folder / "train.de.gz").is_file()), None)


Pair = tuple[str, str]


@dataclass
class Pairs:
    """A corpus in memory."""

    texts: list[Pair]
    notes: list[str] = field(default_factory=list)

    def pairs(self) -> Iterator[Pair]:
        yield from self.texts

    def content_hash(self) -> str:
        return str(hash(tuple(self.texts)))

    def describe(self) -> str:
        return "pairs"


def read(*paths: Path) -> list[Pair]:
    texts = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in paths]
    source, target = (text.decode().split("\n")[:-1] for text in texts)
    return [*zip(source, target, strict=True)]


def multi30k(source: str, target: str, split: str = "train") -> list[Pair]:
    if MULTI30K is None:
        pytest.skip("Multi30k is not there")
    return read(*(MULTI30K / f"{split}.{language}.gz" for language in (source, target)))


@pytest.fixture(scope="session")
def sample() -> list[Pair]:
    """Different pairs of the sample corpus."""
    return [*dict.fromkeys(read(*(ROOT / "data/sample" / f"train.{language}" for language in ("de", "en"))))]
