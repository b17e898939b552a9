"""Models that run through the layers as they are: a search over a vocabulary of many blocks is their own scores."""

from typing import Any

import pytest
import torch

from tests.decoding.searching import search_batch
from transformer_cli.build import build_engine, build_model
from transformer_cli.config import ModelConfig
from transformer_cli.search_options import SearchOptions

SOURCES = [[5, 6, 7], [8], [9, 10, 11, 12]]


@pytest.mark.parametrize("variant", [{"value_dim": 2}, {"generator": "pointer"}], ids=str)
def test_beam_search_finds_what_the_model_scores(variant: dict[str, Any]) -> None:
    torch.manual_seed(1)
    shape = {
        "encoder_layers": 1,
        "decoder_layers": 2,
        "d_model": 12,
        "heads": 3,
        "d_ff": 20,
        "tie_embeddings": "decoder",
        **variant,
    }
    engine = build_engine(build_model(ModelConfig.model_validate(shape), 1500, 1501).double())
    searched = search_batch(engine, SOURCES, SearchOptions(beam_size=3, n_best=2))
    assert search_batch(engine, SOURCES, SearchOptions(beam_size=3, n_best=2, coverage_penalty=0.1))
    for hypotheses, source in zip(searched, SOURCES, strict=True):
        for hypothesis in hypotheses:
            (forced,) = engine.score([source], [hypothesis.ids])
            expected = sum(forced if hypothesis.ended else forced[:-1])
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-6)
