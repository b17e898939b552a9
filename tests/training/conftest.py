"""A tiny translation task, learned in seconds: each word of the source has one translation."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config

WORDS = {f"{a}{b}": f"{b}{a}" for a in ("ba", "de", "fi", "go", "ku") for b in ("lan", "mer", "nis")}


def write_corpus(folder: Path, name: str, pairs: int, seed: int, longest: int = 7) -> dict[str, str]:
    """Two text files of `pairs` lines of 1 to `longest` words; returns the config's entry for them."""
    generator = random.Random(seed)
    sources = [generator.choices(sorted(WORDS), k=generator.randint(1, longest)) for _ in range(pairs)]
    (folder / f"{name}.de").write_text("".join(" ".join(words) + "\n" for words in sources))
    (folder / f"{name}.en").write_text("".join(" ".join(WORDS[word] for word in words) + "\n" for words in sources))
    return {"source": str(folder / f"{name}.de"), "target": str(folder / f"{name}.en")}


def _tree(folder: Path, pairs: int = 200, longest: int = 7, **training: Any) -> dict[str, Any]:
    """A config, as YAML would give it, over a corpus written to the folder."""
    data = {"source_language": "de", "target_language": "en", "workers": 0, "max_length": 30}
    sizes = {"train": (pairs, 1), "valid": (20, 2)}
    data |= {name: write_corpus(folder, name, *size, longest) for name, size in sizes.items()}
    defaults: dict[str, Any] = {
        "batch_tokens": 200,
        "max_steps": 12,
        "warmup_steps": 20,
        "validate_every": 6,
        "save_every": 4,
        "log_every": 1,
        "validation_sentences": 8,
    }
    return {
        "data": data,
        "vocabulary": {"tokenizer": "whitespace"},
        "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 32, "norm": "pre"},
        "training": defaults | training,
        "decoding": {"max_length_ratio": 1.0, "max_length_extra": 4},
    }


@pytest.fixture
def tiny_tree() -> Callable[..., dict[str, Any]]:
    """Call it with a folder (and training values): a config, as YAML would give it, over a corpus in the folder."""
    return _tree


@pytest.fixture
def tiny_config() -> Callable[..., Config]:
    """Call it with a folder (and training values): the config of `tiny_tree`."""
    return lambda folder, **training: Config.model_validate(_tree(folder, **training))
