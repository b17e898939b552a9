"""What the documentation has ever named can still be imported by that name."""

import importlib

import pytest

import transformer_cli

NAMED = {
    "transformer_cli.decoding.demands": ["TextDemands"],
    "transformer_cli.decoding.options": ["Hypothesis", "SearchOptions", "TokenConstraints"],
    "transformer_cli.decoding.protecting": ["Protector", "translate_protected"],
    "transformer_cli.model.build": ["build_model", "count_parameters"],
    "transformer_cli.model.one_hot": ["OneHotEmbedding"],
    "transformer_cli.model.positions": ["sinusoidal_table", "SinusoidalPositions", "LearnedPositions"],
    "transformer_cli.protected.glossary": ["Glossary"],
    "transformer_cli.text.glossary": ["Glossary"],
    "transformer_cli.training.losses": ["smoothed_cross_entropy", "fused_linear_cross_entropy"],
}


@pytest.mark.parametrize("module", NAMED)
def test_an_earlier_name_gives_what_is_there_today(module: str) -> None:
    place, renamed = transformer_cli.MOVED[module]
    today = importlib.import_module(place)
    for name in NAMED[module]:
        assert getattr(importlib.import_module(module), name) is getattr(today, renamed.get(name, name))


def test_every_module_that_moved_is_tried() -> None:
    assert set(NAMED) == set(transformer_cli.MOVED)


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("transformer_cli.model.nothing")
    with pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module("transformer_cli.model.build").nothing
