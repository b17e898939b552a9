"""An ensemble of a model with itself is the model; of different models, the mean of their probabilities."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decoding.checkpoints import make_checkpoint
from tests.decoding.searching import search_batch
from tests.decoding.toy import same
from transformer_cli.build import build_model, load_model
from transformer_cli.config import ModelConfig
from transformer_cli.decoding.engines.protocol import SearchBatch, TokenConstraints
from transformer_cli.decoding.engines.torch_engine import TorchEngine, mean_log_probs
from transformer_cli.decoding.loading import check_vocabularies, load_ensemble
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import EOS, SPECIALS, Vocabulary

SOURCES = [[5, 6, 7], [8], [4, 9, 9, 1, 5, 12, 13, 6, 7, 7], [11, 12]]
SEARCHES = {
    "greedy": SearchOptions(method="greedy"),
    "beam": SearchOptions(beam_size=4, n_best=4, length_penalty=0.8),
    "exact": SearchOptions(beam_size=3, n_best=2, stopping="exact"),
    "diverse": SearchOptions(beam_size=4, n_best=3, diversity_groups=2),
    "covered": SearchOptions(beam_size=4, n_best=4, coverage_penalty=0.3),
    "sample": SearchOptions(method="sample", n_best=3, temperature=1.3, seed=7),
}


def make_engine(seed: int, **options: Any) -> TorchEngine:
    torch.manual_seed(seed)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 24, "generator_bias": True}
    config = ModelConfig(**{**shape, "dropout": 0.0, "tie_embeddings": "none", **options})
    model = build_model(config, 17, 19).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.generator.projection.bias[EOS] = 2.0
    return TorchEngine(model)


def ensemble_of(engines: Sequence[TorchEngine]) -> TorchEngine:
    return TorchEngine(engines[0].model, others=[engine.model for engine in engines[1:]])


@pytest.mark.parametrize("method", SEARCHES)
def test_a_model_with_itself_is_the_model(method: str) -> None:
    engine = make_engine(1)
    constraints = [
        TokenConstraints(),
        TokenConstraints(prefix=(5, 6)),
        TokenConstraints(required=((7, 8),)),
        TokenConstraints(forbidden=((4,), (9, 9))),
    ]
    for options in (SEARCHES[method], replace(SEARCHES[method], no_repeat_ngram=2, min_length=4)):
        for found, expected in zip(
            search_batch(ensemble_of([engine, engine, engine]), SOURCES, options, constraints=constraints),
            search_batch(engine, SOURCES, options, constraints=constraints),
            strict=True,
        ):
            same(found, expected)


@pytest.mark.parametrize("method", SEARCHES)
def test_scores_are_those_of_a_forced_pass_and_the_mean_of_the_models(method: str) -> None:
    engines = [make_engine(1), make_engine(2, d_model=16, heads=2, norm="pre", decoder_layers=1), make_engine(3)]
    ensemble = ensemble_of(engines)
    found = search_batch(ensemble, SOURCES, replace(SEARCHES[method], coverage_penalty=0.0))
    every = [(source, one) for source, group in zip(SOURCES, found, strict=True) for one in group]
    sources, targets = [source for source, _ in every], [one.ids for _, one in every]
    forced = ensemble.score(sources, targets)
    each = [engine.score(sources, targets) for engine in engines]
    for place, (_, one) in enumerate(every):
        row = forced[place]
        assert one.log_probability == pytest.approx(sum(row if one.ended else row[:-1]), abs=1e-10)
        for value, *values in zip(row, *(rows[place] for rows in each), strict=True):
            assert value == pytest.approx(math.log(sum(map(math.exp, values)) / 3), abs=1e-10)
    assert ensemble.align(sources, targets) == engines[0].align(sources, targets)


def test_order_of_models_and_sentences_changes_nothing() -> None:
    engines = [make_engine(1), make_engine(2)]
    found = search_batch(ensemble_of(engines), SOURCES, SEARCHES["beam"])
    for one, other in zip(search_batch(ensemble_of(engines[::-1]), SOURCES, SEARCHES["beam"]), found, strict=True):
        same(one, other)
    for source, expected in zip(SOURCES, found, strict=True):
        same(search_batch(ensemble_of(engines), [source], SEARCHES["beam"])[0], expected)
    assert [group[0].ids for group in found] != [
        group[0].ids for group in search_batch(engines[0], SOURCES, SEARCHES["beam"])
    ]


def test_the_shortest_position_table_bounds_all() -> None:
    engines = [make_engine(1, positions="learned", max_positions=40), make_engine(2)]
    assert ensemble_of(engines[1:]).max_target_length is None
    engines.append(make_engine(3, positions="learned", max_positions=12))
    ensemble = ensemble_of(engines)
    assert (ensemble.max_source_length, ensemble.max_target_length) == (11, 11)
    assert all(len(group[0].ids) <= 11 for group in search_batch(ensemble, SOURCES, SEARCHES["greedy"]))


def test_batches_in_a_row_are_searched_as_alone() -> None:
    ensemble = ensemble_of([make_engine(1), make_engine(2)])
    batches = [SearchBatch([source], [(place,)]) for place, source in enumerate(SOURCES)]
    for options in (SEARCHES["beam"], SEARCHES["sample"]):
        expected = search_batch(ensemble, SOURCES, options)
        for found, group in zip(ensemble.search(batches, options), expected, strict=True):
            same(found[0], group)


def test_the_mean_is_of_probabilities() -> None:
    logs = [torch.tensor([0.5, 0.25, 0.0]).log(), torch.tensor([0.1, 0.75, 0.0]).log()]
    assert torch.allclose(mean_log_probs(logs).exp(), torch.tensor([0.3, 0.5, 0.0]))


def test_an_ensemble_is_loaded_from_folders_and_only_with_one_vocabulary(tmp_path: Path) -> None:
    folders = [make_checkpoint(tmp_path / "one"), make_checkpoint(tmp_path / "two", seed=2, norm="pre", d_model=12)]
    loaded = load_ensemble(folders, "cpu")
    models = [load_model(folder) for folder in folders]
    assert loaded.config == models[0].config
    found = search_batch(loaded.engine, SOURCES, SEARCHES["beam"])
    expected = search_batch(ensemble_of([TorchEngine(each.model) for each in models]), SOURCES, SEARCHES["beam"])
    assert [[one.ids for one in group] for group in found] == [[one.ids for one in group] for group in expected]
    with pytest.raises(UserError, match=r"three: its source vocabulary is not that of .*one"):
        load_ensemble([*folders, make_checkpoint(tmp_path / "three", shared=False, tie_embeddings="decoder")], "cpu")


class Side:
    def __init__(self, *tokens: str) -> None:
        self.vocabulary = Vocabulary([*SPECIALS, *tokens])


class Sides:
    def __init__(self, source: Side, target: Side) -> None:
        self.source, self.target = source, target


def test_different_vocabularies_are_refused() -> None:
    def check(one: Any, other: Any) -> None:
        check_vocabularies(one, Path("first"), other, Path("second"))

    check(Sides(Side("a", "b"), Side("c")), Sides(Side("a", "b"), Side("c")))
    with pytest.raises(UserError, match=r"second: its source vocabulary .*token 4 is 'a' and 'b'"):
        check(Sides(Side("a", "b"), Side("c")), Sides(Side("b", "a"), Side("c")))
    with pytest.raises(UserError, match=r"target vocabulary .*5 and 6 tokens"):
        check(Sides(Side("a", "b"), Side("c")), Sides(Side("a", "b"), Side("c", "d")))
