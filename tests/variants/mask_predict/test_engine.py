"""The engine of models that write all at once: batches, options, scores and alignments."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decoding.checkpoints import make_loaded
from tests.decoding.searching import search_batch
from transformer_cli.build import build_engine
from transformer_cli.decoding import pipeline
from transformer_cli.decoding.engines.protocol import SearchBatch, TokenConstraints
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import LENGTH_SPAN, MASK, NonAutoregressiveTransformer

KINDS = ["mask_predict", "one_shot"]
SOURCES = [[5, 6, 7, 8, 9, 10], [11], [12, 13, 14], [6, 5]]


def make(generation: str, **options: Any) -> NonAutoregressiveEngine:
    """In float64, with lengths spread over a few near the source's."""
    loaded = make_loaded(generation=generation, generator_bias=True, **options)
    model = loaded.model.double()
    assert isinstance(model, NonAutoregressiveTransformer)
    if model.length_predictor is not None:
        with torch.no_grad():
            model.length_predictor.projection.bias.fill_(-30.0)
            model.length_predictor.projection.bias[LENGTH_SPAN : LENGTH_SPAN + 8] = torch.linspace(1.0, 0.0, 8).double()
    engine = build_engine(model)
    assert isinstance(engine, NonAutoregressiveEngine)
    return engine


def options(generation: str, **changes: Any) -> SearchOptions:
    return SearchOptions(**{"n_best": 3 if generation == "mask_predict" else 1, "iterations": 4, **changes})


@pytest.mark.parametrize("generation", KINDS)
def test_what_is_found_does_not_hang_on_the_batch(generation: str) -> None:
    engine, how = make(generation), options(generation)
    together = search_batch(engine, SOURCES, how)
    for order in ([0], [1], [3, 1, 0, 2]):
        found = search_batch(engine, [SOURCES[place] for place in order], how)
        for place, hypotheses in zip(order, found, strict=True):
            assert [one.ids for one in hypotheses] == [one.ids for one in together[place]]
            scores = [one.score for one in together[place]]
            assert [one.score for one in hypotheses] == pytest.approx(scores, abs=1e-10)
    batches = [SearchBatch([source], [(0,)]) for source in SOURCES]
    assert [found[0] for found in engine.search(batches, how)] == [
        search_batch(engine, [source], how)[0] for source in SOURCES
    ]


@pytest.mark.parametrize("generation", KINDS)
def test_hypotheses_are_what_they_say(generation: str) -> None:
    engine = make(generation, positions="learned")
    for how in (options(generation), options(generation, max_length=3), options(generation, min_length=4)):
        for source, hypotheses in zip(SOURCES, search_batch(engine, SOURCES, how), strict=True):
            scores = [one.score for one in hypotheses]
            assert scores == sorted(scores, reverse=True)
            assert 1 <= len(hypotheses) <= how.n_best
            for one in hypotheses:
                assert max(1, how.min_length) <= len(one.ids) <= min(40, how.length_limit(len(source)))
                assert not {PAD, BOS, EOS} & {*one.ids}
                assert one.score == pytest.approx(one.log_probability / how.penalty(len(one.ids)))
                assert one.ended or generation == "one_shot"


def test_one_pass_is_the_likeliest_token_at_each_place_by_the_models_own_score() -> None:
    engine = make("mask_predict")
    found = search_batch(engine, SOURCES, options("mask_predict", iterations=1, length_candidates=1, n_best=1))
    for source, (one,) in zip(SOURCES, found, strict=True):
        (scores,) = engine.score([source], [one.ids])
        assert sum(scores) == pytest.approx(one.log_probability, abs=1e-9)
        for place in range(len(one.ids)):
            for other in (4, 9, 20):
                changed = [*one.ids[:place], other, *one.ids[place + 1 :]]
                assert engine.score([source], [changed])[0][place] <= scores[place] + 1e-12


def test_one_long_output_scores_as_it_was_found() -> None:
    engine = make("one_shot")
    found = [
        (source, one)
        for source, (one,) in zip(SOURCES, search_batch(engine, SOURCES, options("one_shot")), strict=True)
    ]
    ended = [(source, one) for source, one in found if one.ended]  # else the canvas had no room for what is scored
    assert ended
    for source, one in ended:
        assert sum(engine.score([source], [one.ids])[0]) == pytest.approx(one.log_probability, abs=1e-9)


def test_scores_of_targets_add_up_to_one() -> None:
    """Over all targets of one token, and over all lengths: what is scored is a distribution over translations."""
    engine = make("mask_predict")
    targets = [[token] for token in range(engine.vocabulary_size)]
    rows = engine.score([[5, 6]] * len(targets), targets)
    assert sum(torch.tensor([row[0] for row in rows]).exp()) == pytest.approx(1.0)
    lengths = engine.score([[5, 6]] * 60, [[7] * length for length in range(60)])
    assert sum(torch.tensor([row[-1] for row in lengths]).exp()) == pytest.approx(1.0, abs=1e-9)
    assert [len(row) for row in lengths] == [*range(1, 61)]


@pytest.mark.parametrize("generation", KINDS)
def test_scores_do_not_hang_on_the_batch(generation: str) -> None:
    engine, targets = make(generation), [[4, 5, 6], [7] * 20, [], [9]]
    for row, source, target in zip(engine.score(SOURCES, targets), SOURCES, targets, strict=True):
        assert row == pytest.approx(engine.score([source], [target])[0], abs=1e-10)


@pytest.mark.parametrize("generation", KINDS)
def test_alignments_do_not_hang_on_the_batch(generation: str) -> None:
    engine, targets = make(generation), [[4, 5, 6], [7] * 20, [8, 9], [9]]
    together = engine.align(SOURCES, targets, 0, [0, 2])
    for row, source, target in zip(together, SOURCES, targets, strict=True):
        assert row == engine.align([source], [target], 0, [0, 2])[0]
        assert len(row) == len(target)
        assert all(0 <= place < len(source) for place in row)
    for layer, heads in ((2, None), (0, [3])):
        with pytest.raises(UserError, match="count them from 0"):
            engine.align(SOURCES, targets, layer, heads)


def test_a_token_is_masked_where_its_attention_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make("mask_predict")
    asked: list[Tensor] = []
    decode = engine.model.decode

    def remember(ids: Tensor, *rest: Any, **more: Any) -> Any:
        asked.append(ids)
        return decode(ids, *rest, **more)

    monkeypatch.setattr(engine.model, "decode", remember)
    engine.align([[5, 6, 7]], [[4, 5, 6, 7, 8, 9]])
    masked = torch.stack([ids[0] == MASK for ids in asked])
    assert masked.sum(dim=0).tolist() == [1] * 6


@pytest.mark.parametrize(
    ("changes", "constraint", "named"),
    [
        ({"method": "sample", "n_best": 1}, None, "sampling"),
        ({"diversity_groups": 5}, None, "diverse"),
        ({"coverage_penalty": 0.1}, None, "coverage"),
        ({}, TokenConstraints(prefix=(4,)), "prefix"),
        ({"n_best": 5, "length_candidates": 4}, None, "4 length candidates"),
    ],
)
def test_what_it_cannot_do_is_refused(changes: dict[str, Any], constraint: TokenConstraints | None, named: str) -> None:
    engine = make("mask_predict")
    with pytest.raises(UserError, match=named):
        search_batch(
            engine, SOURCES[:1], options("mask_predict", **changes), constraints=[constraint] if constraint else None
        )


def test_what_repeats_itself_is_repaired() -> None:
    loaded = make_loaded(generation="mask_predict", generator_bias=True)
    assert isinstance(loaded.model, NonAutoregressiveTransformer)
    assert loaded.model.length_predictor is not None
    with torch.no_grad():
        loaded.model.length_predictor.projection.bias[LENGTH_SPAN + 9] = 99.0
        loaded.model.generator.projection.bias[7] = 99.0
    translator = Translator(build_engine(loaded.model), loaded.codecs, loaded.config)
    (translation,) = translator.translate_batch(["ba de"])
    assert (translator.tally["flagged"], translator.tally["repaired"]) == (1, 1)
    assert len(translation.tokens) == 3
    again = pipeline.search_again(SearchOptions())
    assert again is not None
    assert search_batch(translator.engine, [[5, 6]], replace(again, iterations=1))[0][0].ids == [7, 7, 7]


@pytest.mark.parametrize("generation", KINDS)
def test_narrow_types_sum_in_float32(generation: str) -> None:
    engine = make(generation)
    engine.model.bfloat16()
    for (one, *_), source in zip(search_batch(engine, SOURCES, options(generation)), SOURCES, strict=True):
        assert one.ids
        assert one.log_probability != torch.tensor(one.log_probability).bfloat16().item()
        assert len(engine.score([source], [one.ids])[0]) == len(one.ids) + 1
    assert engine.align([[5, 6]], [[7, 8, 9]])


def test_a_models_mode_is_left_as_it_was() -> None:
    engine = make("mask_predict")
    engine.model.train()
    search_batch(engine, SOURCES, options("mask_predict"))
    assert engine.model.training


def test_lengths_and_passes_do_only_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder runs once, so do the memory's keys and values, and the vocabulary is asked for masks alone."""
    engine = make("mask_predict")
    calls: dict[str, int] = {"encoder": 0, "memory": 0, "decoder": 0, "words": 0}

    def count(name: str, amount: Any = lambda arguments: 1) -> Any:
        def hook(module: Any, arguments: Any, output: Any) -> None:
            calls[name] += amount(arguments)

        return hook

    model = engine.model
    model.encoder.register_forward_hook(count("encoder"))
    model.decoder.register_forward_hook(count("decoder"))
    start = model.decoder.start_cache
    monkeypatch.setattr(
        model.decoder, "start_cache", lambda memory: calls.update(memory=calls["memory"] + 1) or start(memory)
    )
    model.generator.projection.register_forward_hook(count("words", lambda arguments: len(arguments[0])))
    found = search_batch(engine, [[5, 6, 7]], options("mask_predict", iterations=4, length_candidates=2, n_best=2))[0]
    lengths = [len(one.ids) for one in found]
    expected = sum(length * (4 - done) // 4 for done in range(4) for length in lengths)
    assert calls == {"encoder": 1, "memory": 1, "decoder": 4, "words": expected}
