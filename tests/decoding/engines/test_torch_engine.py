"""The engine on a small random model in float64: what must hold whatever the weights are."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.decoding import toy
from tests.decoding.searching import search_batch
from tests.sampling import one_of_each
from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig
from transformer_cli.decoding.devices import choose_device
from transformer_cli.decoding.engines.protocol import Hypothesis, TokenConstraints, occurs, own_sources
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.search import beam, greedy
from transformer_cli.errors import UserError
from transformer_cli.model.masks import padding_mask
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD

SOURCES = [[5, 6, 7], [8], [4, 9, 9, 1, 5, 12, 13, 6, 7, 7], [11, 12], [10, 4, 8, 15, 16, 4, 4]]
SEARCHES = {
    "greedy": SearchOptions(method="greedy"),
    "beam": SearchOptions(beam_size=4, n_best=4, length_penalty=0.8),
    "exact": SearchOptions(beam_size=3, n_best=2, stopping="exact", length_penalty_kind="gnmt"),
    "sample": SearchOptions(method="sample", n_best=3, temperature=1.3, top_k=9, top_p=0.95, seed=7),
    "diverse": SearchOptions(beam_size=6, n_best=2, diversity_groups=3),
    "fresh": SearchOptions(beam_size=4, n_best=2, no_repeat_ngram=2, min_length=5),
}
CONSTRAINTS = [
    TokenConstraints(prefix=(5, 6)),
    TokenConstraints(required=((7, 8), (9,))),
    TokenConstraints(forbidden=((4,), (9, 9))),
    TokenConstraints(),
    TokenConstraints((4,), ((12, 13, 14, 15, 16),), ((7,),)),
]


def make_engine(**options: Any) -> TorchEngine:
    """A model that ends now and then, and would love to say <pad> and <s>."""
    torch.manual_seed(19)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 24, "generator_bias": True}
    config = ModelConfig(**{**shape, "dropout": 0.0, "tie_embeddings": "none", **options})
    model = build_model(config, 17, 19).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.generator.projection.bias[EOS] = 2.0
        model.generator.projection.bias[[PAD, BOS]] = 3.0
    return TorchEngine(model)


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return make_engine()


def same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for group, other in zip(found, expected, strict=True):
        toy.same(group, other, tolerance=1e-10)


@pytest.mark.parametrize("method", SEARCHES)
def test_scores_are_those_of_a_forced_uncached_pass(engine: TorchEngine, method: str) -> None:
    options = SEARCHES[method]
    found = search_batch(engine, SOURCES, options)
    every = [(source, one) for source, group in zip(SOURCES, found, strict=True) for one in group]
    kinds = {True} if options.no_repeat_ngram else {True, False}
    assert {one.ended for _, one in every} == kinds, "the test wants both kinds"
    forced = engine.score([source for source, _ in every], [one.ids for _, one in every])
    for (_, one), row in zip(every, forced, strict=True):
        assert len(row) == len(one.ids) + 1
        total = sum(row) if one.ended else sum(row[:-1])
        assert one.log_probability == pytest.approx(total, abs=1e-10)
        assert one.score == pytest.approx(total / options.penalty(len(one.ids)), abs=1e-10)
        assert one.ids
        assert not {PAD, BOS, EOS} & set(one.ids)
    for group in found:
        assert len(group) == options.n_best
        assert [one.score for one in group] == sorted((one.score for one in group), reverse=True)


@pytest.mark.parametrize("method", SEARCHES)
def test_padding_batch_size_and_order_change_nothing(engine: TorchEngine, method: str) -> None:
    options = SEARCHES[method]
    keys = [(place,) for place in range(len(SOURCES))]
    together = search_batch(engine, SOURCES, options, keys)
    same(search_batch(engine, SOURCES[::-1], options, keys[::-1])[::-1], together)
    for source, key, expected in zip(SOURCES, keys, together, strict=True):
        same(search_batch(engine, [source], options, [key]), [expected])


@pytest.mark.medium
@pytest.mark.parametrize("method", SEARCHES)
def test_constraints_hold_and_a_batch_changes_nothing(engine: TorchEngine, method: str) -> None:
    options = SEARCHES[method]
    keys = [(place,) for place in range(len(SOURCES))]
    together = search_batch(engine, SOURCES, options, keys, CONSTRAINTS)
    free = search_batch(engine, SOURCES, options, keys)
    same([together[3]], [free[3]])
    for source, key, constraint, group in zip(SOURCES, keys, CONSTRAINTS, together, strict=True):
        same(search_batch(engine, [source], options, [key], [constraint]), [group])
        for one in group:
            assert tuple(one.ids[: len(constraint.prefix)]) == constraint.prefix
            assert all(occurs(sequence, one.ids) for sequence in constraint.required)
            assert not any(occurs(sequence, one.ids) for sequence in constraint.forbidden)
            row = engine.score([source], [one.ids])[0]
            assert one.log_probability == pytest.approx(sum(row if one.ended else row[:-1]), abs=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("constraints", [None, CONSTRAINTS])
def test_a_gpu_finds_the_same(engine: TorchEngine, method: str, constraints: list[TokenConstraints] | None) -> None:
    on_gpu = TorchEngine(make_engine().model, "cuda")
    beta = 0.3 if SEARCHES[method].method == "beam" else 0.0
    for options in (SEARCHES[method], replace(SEARCHES[method], coverage_penalty=beta)):
        same(
            search_batch(on_gpu, SOURCES, options, constraints=constraints),
            search_batch(engine, SOURCES, options, constraints=constraints),
        )


def test_a_position_table_has_room_for_what_is_required_or_it_is_refused() -> None:
    engine = make_engine(positions="learned", max_positions=9)
    for options in SEARCHES.values():
        found = search_batch(engine, [[4]], options, constraints=[TokenConstraints((5,), ((6, 7), (8, 9, 10), (4, 4)))])
        assert all(len(one.ids) == 8 and occurs((8, 9, 10), one.ids) for one in found[0])
        with pytest.raises(UserError, match=r"9 tokens, .* end at 8"):
            search_batch(engine, [[4]], options, constraints=[TokenConstraints((5, 5), ((6, 7), (8, 9, 10), (4, 4)))])


@pytest.mark.parametrize("groups", [1, 2])
def test_coverage_is_that_of_the_last_layer_over_the_words(engine: TorchEngine, groups: int) -> None:
    options = SearchOptions(beam_size=4, n_best=4, coverage_penalty=0.7, diversity_groups=groups)
    for source, group in zip(SOURCES, search_batch(engine, SOURCES, options), strict=True):
        for one in group:
            encoded = torch.tensor([[*source, EOS]])
            with torch.no_grad():
                memory = engine.model.encode(encoded, padding_mask(encoded))
                target = torch.tensor([[BOS, *one.ids[:-1]]])
                output = engine.model.decode(target, memory, padding_mask(encoded), need_weights=True)
            attended = output.cross_attention[-1][0].mean(dim=0).sum(dim=0)  # (S,)
            expected = 0.7 * attended.clamp(max=1).log().sum().item()
            assert one.score == pytest.approx(one.log_probability / len(one.ids) + expected, abs=1e-9)


@pytest.mark.parametrize("method", SEARCHES)
def test_parts_of_a_batch_change_nothing(engine: TorchEngine, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SEARCHES[method]
    found = search_batch(engine, SOURCES, options)
    targets = [group[0].ids for group in found]
    scores, alignments = engine.score(SOURCES, targets), engine.align(SOURCES, targets)
    monkeypatch.setattr("transformer_cli.decoding.engines.torch_engine.MAX_CELLS", 160)
    same(search_batch(engine, SOURCES, options), found)
    assert engine.align(SOURCES, targets) == alignments
    for row, expected in zip(engine.score(SOURCES, targets), scores, strict=True):
        assert row == pytest.approx(expected, abs=1e-10)


def test_beam_one_is_greedy_in_either_way(engine: TorchEngine) -> None:
    greedy = search_batch(engine, SOURCES, SearchOptions(method="greedy"))
    same(search_batch(engine, SOURCES, SearchOptions(beam_size=1)), greedy)
    for source, group in zip(SOURCES, greedy, strict=True):  # step by step, without a cache
        ids: list[int] = []
        limit = SearchOptions().length_limit(len(source))
        while len(ids) < limit and (not ids or ids[-1] != EOS):
            ids.append(next_token(engine, source, ids))
        assert group[0].ids == [token for token in ids if token != EOS]


def next_token(engine: TorchEngine, source: list[int], ids: list[int]) -> int:
    encoded = torch.tensor([[*source, EOS]])
    with torch.no_grad():
        output = engine.model(encoded, padding_mask(encoded), torch.tensor([[BOS, *ids]]))
        log_probs = engine.model.generator(output, encoded)[0, -1]
    log_probs[[PAD, BOS] if ids else [PAD, BOS, EOS]] = -torch.inf
    return int(log_probs.argmax())


def test_learned_positions_bound_every_length() -> None:
    engine = make_engine(positions="learned", max_positions=11)
    assert (engine.max_source_length, engine.max_target_length) == (10, 10)
    for options in SEARCHES.values():
        found = search_batch(engine, SOURCES, options)
        targets = [group[0].ids for group in found]
        assert max(map(len, targets)) == 10
        assert [len(row) for row in engine.score(SOURCES, targets)] == [len(ids) + 1 for ids in targets]
        assert [len(row) for row in engine.align(SOURCES, targets)] == [len(ids) for ids in targets]
    assert make_engine().max_target_length is None


@pytest.mark.parametrize(("layer", "heads"), [(-1, None), (0, None), (1, [0]), (-2, [1, 0]), (0, [1])])
def test_alignments_come_from_the_layer_and_heads_asked_for(
    engine: TorchEngine, layer: int, heads: list[int] | None
) -> None:
    targets = [[4, 5, 6, 7], [8, 9], [4], [], [10, 11, 12, 13, 14, 15]]
    alignments = engine.align(SOURCES, targets, layer, heads)
    assert len({place for row in alignments for place in row}) > 2, "the test wants different places"
    for source, target, row in zip(SOURCES, targets, alignments, strict=True):
        encoded = torch.tensor([[*source, EOS]])
        with torch.no_grad():
            memory = engine.model.encode(encoded, padding_mask(encoded))
            decoder_input = torch.tensor([[BOS, *target]])
            output = engine.model.decode(decoder_input, memory, padding_mask(encoded), need_weights=True)
        weights = output.cross_attention[layer][0, heads or [0, 1, 2]].mean(dim=0)[: len(target), : len(source)]
        assert row == own_sources(weights.numpy())


def test_another_layer_aligns_otherwise(engine: TorchEngine) -> None:
    targets = [[4, 5, 6, 7, 8, 9]] * len(SOURCES)
    assert engine.align(SOURCES, targets) == engine.align(SOURCES, targets, layer=1)
    assert engine.align(SOURCES, targets) != engine.align(SOURCES, targets, layer=0)
    assert engine.align(SOURCES, targets) != engine.align(SOURCES, targets, heads=[0])


@pytest.mark.parametrize(
    ("layer", "heads", "named"), [(2, None, "layer 2"), (-3, None, "layer -3"), (0, [3], "head 3")]
)
def test_a_layer_or_head_that_is_missing_is_refused(
    engine: TorchEngine, layer: int, heads: list[int] | None, named: str
) -> None:
    with pytest.raises(UserError, match=named):
        engine.align(SOURCES, [[4]] * len(SOURCES), layer, heads)


def test_the_models_mode_is_as_before_and_dropout_is_off() -> None:
    engine = make_engine(dropout=0.5)
    engine.model.train()
    first = search_batch(engine, SOURCES, SEARCHES["beam"])
    same(search_batch(engine, SOURCES, SEARCHES["beam"]), first)
    targets = [group[0].ids for group in first]
    assert engine.score(SOURCES, targets) == engine.score(SOURCES, targets)
    assert all(module.training for module in engine.model.modules())
    engine.model.eval()
    search_batch(engine, SOURCES, SEARCHES["greedy"])
    assert not any(module.training for module in engine.model.modules())


def test_searching_leaves_the_global_random_generator_alone(engine: TorchEngine) -> None:
    before = torch.get_rng_state()
    for options in SEARCHES.values():
        search_batch(engine, SOURCES, options)
    assert torch.equal(torch.get_rng_state(), before)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu").type == "cpu"
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda cuda=cuda: 2 * cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert choose_device("auto").type == expected
        if cuda:
            assert choose_device("cuda:1").index == 1
    for name in ("cuda", "cuda:0", "mps", "abacus", "meta", ""):
        with pytest.raises(UserError, match=f"device '{name}'"):
            choose_device(name)


@pytest.mark.parametrize(
    ("method", "every"), one_of_each([pytest.param(method, every) for every in (2, 3, 50)] for method in SEARCHES)
)
def test_checking_seldom_who_is_done_finds_the_same(method: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's values are looked at every few steps only."""
    engine = make_engine()
    constraints = None if method == "sample" else CONSTRAINTS
    expected = [search_batch(engine, SOURCES, SEARCHES[method], None, one) for one in (None, constraints)]
    for module in (greedy, beam):
        monkeypatch.setattr(module, "check_interval", lambda device: every)
    monkeypatch.setattr(beam, "is_cheap_to_read", lambda tensor: False)
    for one, other in zip((None, constraints), expected, strict=True):
        same(search_batch(engine, SOURCES, SEARCHES[method], None, one), other)
