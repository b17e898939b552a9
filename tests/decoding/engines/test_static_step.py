"""Steps in fixed buffers find what ordinary steps find, whatever is searched for; and the buffers come back."""

import threading
from typing import Any

import pytest
import torch

from tests.decoding.toy import same
from transformer_cli.config import ModelConfig
from transformer_cli.decoding.engines import static_buffers
from transformer_cli.decoding.engines.static_buffers import BufferPool, Buffers, Shape
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.options import Demands, Hypothesis, SearchOptions
from transformer_cli.model.build import build_model
from transformer_cli.model.transformer import Transformer
from transformer_cli.text.vocabulary import EOS

SOURCES = [[5, 6, 7], [8], [4, 9, 9, 1, 5, 12, 13, 6, 7, 7], [11, 12], [10, 4, 8, 15, 16, 4, 4]]
SEARCHES = {
    "greedy": SearchOptions(method="greedy"),
    "beam": SearchOptions(beam_size=4, n_best=4, length_penalty=0.8),
    "exact": SearchOptions(beam_size=3, n_best=2, stopping="exact", max_length_ratio=0.5, max_length_extra=3),
    "sample": SearchOptions(method="sample", n_best=3),
    "diverse": SearchOptions(beam_size=6, n_best=2, diversity_groups=3),
    "fresh": SearchOptions(beam_size=3, no_repeat_ngram=2, min_length=4),
    "coverage": SearchOptions(beam_size=2, coverage_penalty=0.2),
    "one token": SearchOptions(beam_size=2, max_length=1),
}
SHAPES: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"norm": "pre", "activation": "swiglu"},
    "learned": {"positions": "learned", "max_positions": 13, "head_dim": 5, "attention_bias": False},
}


def build(**options: Any) -> Transformer:
    """A random model in float64 that ends now and then."""
    torch.manual_seed(3)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 20, "generator_bias": True}
    model = build_model(ModelConfig(**{**shape, "dropout": 0.0, "tie_embeddings": "none", **options}), 17, 19).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.generator.projection.bias[EOS] = 2.5
    return model


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers so small that batches of this size move from one to the next."""
    for name, least in (("SENTENCES", 1), ("ROOM", 2), ("SOURCE", 2)):
        monkeypatch.setattr(static_buffers, name, least)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return build()


def pool_of(engine: TorchEngine) -> BufferPool:
    assert engine._buffers is not None
    return engine._buffers


def equal(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_search_finds_the_same(shape: str) -> None:
    model = build(**SHAPES[shape])
    plain, static = TorchEngine(model), TorchEngine(model, static=True)
    for options in SEARCHES.values():
        equal(static.search(SOURCES, options), plain.search(SOURCES, options))
    shapes = {buffers.shape for buffers in pool_of(static).kept}
    assert len({shape.sentences for shape in shapes}) > 1, "the test wants sentences to leave …"
    assert len({shape.room for shape in shapes}) > 1, "… and others to outgrow their room"


def test_demands_are_met_alike(model: Transformer) -> None:
    demands = [Demands(prefix=(5, 6)), Demands(required=((7, 8), (9,))), Demands(forbidden=((4,), (9, 9)))]
    demands += [Demands(), Demands((4,), ((12, 13),), ((7,),))]
    plain, static = TorchEngine(model), TorchEngine(model, static=True)
    for name in ("greedy", "beam"):
        found, expected = (engine.search(SOURCES, SEARCHES[name], None, demands) for engine in (static, plain))
        equal(found, expected)


def test_what_buffers_held_before_changes_nothing(model: Transformer) -> None:
    engine = TorchEngine(model, static=True)
    expected = engine.search(SOURCES, SEARCHES["beam"])
    with torch.inference_mode():
        for buffers in pool_of(engine).kept:
            for tensor in (buffers.decoded, buffers.memory, buffers.hidden):
                tensor.fill_(torch.nan)
            buffers.past.random_(4)
            buffers.source_mask.fill_(True)
    equal(engine.search(SOURCES, SEARCHES["beam"]), expected)


def test_buffers_come_back_and_serve_again(model: Transformer) -> None:
    engine = TorchEngine(model, static=True)
    engine.search(SOURCES, SEARCHES["beam"])
    kept = {id(buffers) for buffers in pool_of(engine).kept}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Buffers, "step", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.search(SOURCES, SEARCHES["beam"])
    engine.search(SOURCES[::-1], SEARCHES["beam"])
    assert {id(buffers) for buffers in pool_of(engine).kept} == kept


def test_no_more_memory_is_kept_than_allowed(model: Transformer) -> None:
    engine = TorchEngine(model, static=True)
    expected = engine.search(SOURCES, SEARCHES["beam"])
    pool_of(engine).most = max(buffers.bytes for buffers in pool_of(engine).kept)
    equal(engine.search(SOURCES, SEARCHES["beam"]), expected)
    assert 0 < sum(buffers.bytes for buffers in pool_of(engine).kept) <= pool_of(engine).most


def test_searches_at_once_have_buffers_of_their_own(model: Transformer) -> None:
    engine = TorchEngine(model, static=True)
    batches = [SOURCES, SOURCES[::-1], [source[::-1] for source in SOURCES]]
    expected = [TorchEngine(model).search(batch, SEARCHES["beam"]) for batch in batches]
    found: dict[int, list[list[Hypothesis]]] = {}

    def work(number: int) -> None:
        found[number] = engine.search(batches[number], SEARCHES["beam"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, one in enumerate(expected):
        equal(found[number], one)


def test_shapes_hold_what_is_asked_and_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    shapes = {Shape.holding(M, 5, R, S) for M in range(1, 65) for R in (1, 32, 33, 64) for S in (5, 16, 17)}
    assert shapes == {Shape(M, 5, R, S) for M in (8, 16, 32, 64) for R in (32, 64) for S in (16, 32)}
    assert Shape.holding(9, 5, 33, 17) == Shape(16, 5, 64, 32)
    assert all(shape.holding_sentences(shape.sentences) == shape for shape in shapes)
    assert Shape(64, 5, 32, 16).holding_sentences(20) == Shape(32, 5, 32, 16)


@torch.inference_mode()
def test_buffers_that_are_out_are_nobody_elses(model: Transformer) -> None:
    pool, shape = BufferPool(model, torch.device("cpu")), Shape(2, 1, 4, 2)
    first, second = pool.take(shape), pool.take(shape)
    pool.give(first)
    assert pool.take(shape) is first
    assert pool.take(shape) not in (first, second)
