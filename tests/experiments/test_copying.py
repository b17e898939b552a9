"""What experiments/copying.py counts."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config
from transformer_cli.text.build import build_codecs

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module("copying")


def test_words_outside_the_vocabulary_are_counted_as_often_as_they_stand_in_both(module: Any) -> None:
    files = {"source": "a", "target": "b"}
    data = {"source_language": "de", "target_language": "en", "train": files, "valid": files}
    config = Config.model_validate(
        {"data": data, "vocabulary": {"tokenizer": "whitespace", "shared": False}, "model": {"tie_embeddings": "none"}}
    )
    codecs, _ = build_codecs(config, lambda: [("ein Hund und Rex", "a dog and Rex")])
    sources = ["Ada und Bo", "Ada Ada", "Rex", "ein Tier"]
    references = ["Ada and Bo", "Ada Ada", "Rex", "an animal"]
    found = ["Bo and Bo", "Ada and Ada Ada", "a dog", "an dog"]
    # Ada, Bo; Ada, Ada; Rex is known; an, animal, of which the source has neither.
    assert module.count_copied(sources, references, found, codecs) == (6, 4, 4, 3)
    assert module.percent(1, 4) == 25.0
    assert module.percent(0, 0) == 0.0
