"""The engine with a model that copies: what holds of any search holds where columns are source positions too."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.decoding.checkpoints import make_checkpoint
from tests.decoding.engines.test_torch_engine import SEARCHES, same
from tests.decoding.searching import search_batch
from transformer_cli.build import build_engine, build_model
from transformer_cli.config import ModelConfig
from transformer_cli.decoding.engines.protocol import TokenConstraints, occurs
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.loading import load_engine, load_ensemble
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD
from transformer_cli.variants.pointer.model import PointerGenerator

SOURCE_SIZE, V = 17, 19
NEW = SOURCE_SIZE + V  # the first id of what neither vocabulary knows
SOURCES = [[5, NEW, 7], [NEW], [4, 9, 9, 5, 12, SOURCE_SIZE + 8, 6, NEW, NEW + 1, 7], [11, 12], [10, NEW, 8, 15, 4, 4]]
CONSTRAINTS = [
    TokenConstraints(prefix=(5, V + 1)),
    TokenConstraints(required=((V,),)),
    TokenConstraints(forbidden=((4,), (V + 7,))),
    TokenConstraints(),
    TokenConstraints(),
]


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    """A model that likes to copy, ends now and then, and would love to say <pad> and <s>."""
    torch.manual_seed(19)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 24, "generator_bias": True}
    options = {**shape, "dropout": 0.0, "tie_embeddings": "none", "generator": "pointer"}
    model = build_model(ModelConfig.model_validate(options), SOURCE_SIZE, V).double()
    assert isinstance(model.generator, PointerGenerator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.generator.projection.bias[EOS] = 2.0
        model.generator.projection.bias[[PAD, BOS]] = 3.0
        model.generator.mixture.bias.fill_(-0.5)
    model.generator.set_target_ids([token if token < 10 else -1 for token in range(SOURCE_SIZE)])
    built = build_engine(model, constant=True)
    assert isinstance(built, TorchEngine)
    return built


COVERED = {
    f"{method}, covered": replace(options, coverage_penalty=0.3)
    for method, options in SEARCHES.items()
    if options.method == "beam"  # no other has it
}


@pytest.mark.medium
@pytest.mark.parametrize("options", (SEARCHES | COVERED).values(), ids=SEARCHES | COVERED)
def test_scores_are_forced_scores_and_a_batch_changes_nothing(engine: TorchEngine, options: SearchOptions) -> None:
    keys = [(place,) for place in range(len(SOURCES))]
    found = search_batch(engine, SOURCES, options, keys)
    every = [(source, one) for source, group in zip(SOURCES, found, strict=True) for one in group]
    assert any(index >= V for _, one in every for index in one.ids), "the test wants copied tokens"
    forced = engine.score([source for source, _ in every], [one.ids for _, one in every])
    for (source, one), row in zip(every, forced, strict=True):
        assert one.log_probability == pytest.approx(sum(row) if one.ended else sum(row[:-1]), abs=1e-10)
        assert all(index < V + len(source) for index in one.ids)
    for source, key, expected in zip(SOURCES, keys, found, strict=True):
        same(search_batch(engine, [source], options, [key]), [expected])


@pytest.mark.medium
@pytest.mark.parametrize("method", SEARCHES)
def test_constraints_may_be_of_copied_tokens(engine: TorchEngine, method: str) -> None:
    options = SEARCHES[method]
    keys = [(place,) for place in range(len(SOURCES))]
    together = search_batch(engine, SOURCES, options, keys, CONSTRAINTS)
    for source, key, constraint, group in zip(SOURCES, keys, CONSTRAINTS, together, strict=True):
        same(search_batch(engine, [source], options, [key], [constraint]), [group])
        for one in group:
            assert tuple(one.ids[: len(constraint.prefix)]) == constraint.prefix
            assert all(occurs(sequence, one.ids) for sequence in constraint.required)
            assert not any(occurs(sequence, one.ids) for sequence in constraint.forbidden)


@pytest.mark.gpu
@pytest.mark.parametrize("method", SEARCHES)
def test_a_gpu_finds_the_same(engine: TorchEngine, method: str) -> None:
    on_gpu = build_engine(copy.deepcopy(engine.model), "cuda", constant=True)
    same(
        search_batch(on_gpu, SOURCES, SEARCHES[method], constraints=CONSTRAINTS),
        search_batch(engine, SOURCES, SEARCHES[method], constraints=CONSTRAINTS),
    )


def test_beam_one_is_greedy(engine: TorchEngine) -> None:
    greedy = search_batch(engine, SOURCES, SearchOptions(method="greedy"))
    same(search_batch(engine, SOURCES, SearchOptions(beam_size=1)), greedy)
    same(search_batch(engine, SOURCES, SearchOptions(beam_size=1, stopping="exact")), greedy)


def test_parts_of_a_batch_change_nothing(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = search_batch(engine, SOURCES, SEARCHES["beam"])
    targets = [group[0].ids for group in found]
    scores, alignments = engine.score(SOURCES, targets), engine.align(SOURCES, targets)
    monkeypatch.setattr("transformer_cli.decoding.engines.torch_engine.MAX_CELLS", 160)
    same(search_batch(engine, SOURCES, SEARCHES["beam"]), found)
    assert engine.align(SOURCES, targets) == alignments
    for row, expected in zip(engine.score(SOURCES, targets), scores, strict=True):
        assert row == pytest.approx(expected, abs=1e-10)


def test_a_model_that_copies_is_for_torch_and_for_its_like(tmp_path: Path) -> None:
    copying = make_checkpoint(tmp_path / "copying", generator="pointer")
    loaded, choice = load_engine(copying, "cpu")
    assert isinstance(loaded.engine, TorchEngine)
    assert choice == "engine: torch (ctranslate2 has no generator: pointer)"
    with pytest.raises(UserError, match="ctranslate2 has no generator: pointer"):
        load_engine(copying, "cpu", "ctranslate2")
    plain = make_checkpoint(tmp_path / "plain")
    with pytest.raises(UserError, match="its generator is not that of"):
        load_ensemble([copying, plain], "cpu")


def test_an_ensemble_of_one_model_twice_is_that_model(tmp_path: Path) -> None:
    copying = make_checkpoint(tmp_path / "copying", generator="pointer")
    alone = load_engine(copying, "cpu", "torch")[0]
    twice = load_ensemble([copying, copying], "cpu")
    assert isinstance(alone.engine, TorchEngine)
    sources = alone.codecs.source.encode_batch(["ba new be newer", "gö new"])
    for options in (SEARCHES["beam"], SEARCHES["fresh"], replace(SEARCHES["beam"], coverage_penalty=0.3)):
        found = search_batch(alone.engine, sources, options)
        expected = [[one.ids for one in group] for group in found]
        assert [[one.ids for one in group] for group in search_batch(twice.engine, sources, options)] == expected
