"""The trace of a mask-predict or one-shot model is the search that found its translation, pass by pass."""

import math
from typing import Any

import pytest
import torch

from tests.decoding.checkpoints import WORDS, make_loaded
from transformer_cli.build import build_engine
from transformer_cli.decoding.translator import Translator
from transformer_cli.inside.trace import Refinement, Trace, trace
from transformer_cli.model.masks import padding_mask
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import EOS
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import CANVAS_EXTRA, CANVAS_RATIO, LENGTH_SPAN, MASK, LengthPredictor

SENTENCES = [" ".join(WORDS[4:9]), WORDS[2], " ".join(WORDS[:12])]
SEARCHES: list[tuple[str, dict[str, Any]]] = [
    ("mask_predict", {}),
    ("mask_predict", {"iterations": 1, "length_candidates": 1}),
    ("mask_predict", {"iterations": 3, "length_candidates": 7}),
    ("mask_predict", {"iterations": 2, "min_length": 9}),
    ("one_shot", {}),
    ("one_shot", {"max_length": 3}),
    ("one_shot", {"min_length": 5}),
]


def make(generation: str, *, guard: bool = True) -> Translator:
    """Lengths near the source's are likely."""
    loaded = make_loaded(generation=generation, generator_bias=True)
    predictor = loaded.model.length_predictor
    if isinstance(predictor, LengthPredictor):
        with torch.no_grad():
            predictor.projection.bias[LENGTH_SPAN : LENGTH_SPAN + 4] = 9.0
    return Translator(build_engine(loaded.model), loaded.codecs, loaded.config, guard=guard)


def followed(generation: str, text: str, **search: Any) -> tuple[Trace, Refinement]:
    """Without the guard, which would search again."""
    translator = make(generation, guard=False)
    traced = trace(translator, text, SearchOptions.from_config(translator.config.decoding, **search))
    assert isinstance(traced.search, Refinement)
    return traced, traced.search


@pytest.mark.medium
@pytest.mark.parametrize(("generation", "search"), [*SEARCHES, ("mask_predict", {"no_repeat_ngram": 2})])
@pytest.mark.parametrize("guard", [True, False])
def test_the_translation_is_the_translators(generation: str, search: dict[str, Any], guard: bool) -> None:
    translator = make(generation, guard=guard)
    options = SearchOptions.from_config(translator.config.decoding, **search)
    for text in SENTENCES:
        found = translator.translate_batch([text], options)[0]
        traced = trace(translator, text, options)
        assert traced.translation.text == found.text
        end = ["</s>"] if generation == "one_shot" and found.hypotheses[0].ended else []
        assert traced.target_tokens == [*found.tokens, *end]
        assert isinstance(traced.search, Refinement)
        written = [one.token.id for one in traced.search.passes[-1]]
        read = len(traced.target_ids) + traced.search.left_out
        kept = iter(written[:read])  # blocked repetition leaves tokens out
        assert all(index in kept for index in traced.target_ids)
        if generation == "mask_predict":
            assert read == traced.search.positions
        elif found.hypotheses[0].ended:
            assert written[:read].index(EOS) == read - 1


@pytest.mark.parametrize(("generation", "search"), SEARCHES)
@pytest.mark.parametrize("text", SENTENCES)
def test_probabilities_make_the_log_probability(generation: str, search: dict[str, Any], text: str) -> None:
    traced, way = followed(generation, text, **search)
    written = [one.token for one in way.passes[-1]][: len(traced.target_ids)]
    assert [one.id for one in written] == traced.target_ids
    assert way.left_out == 0
    assert [one.token for one in written] == traced.target_tokens
    total = sum(math.log(one.probability) for one in written)
    total += math.log(dict(way.lengths)[way.positions]) if way.lengths else 0.0
    assert total == pytest.approx(traced.translation.log_probability, abs=1e-4)


@pytest.mark.parametrize("iterations", [1, 3, 10])
@pytest.mark.parametrize("text", SENTENCES)
def test_what_is_not_masked_stays(iterations: int, text: str) -> None:
    _, way = followed("mask_predict", text, iterations=iterations)
    masked = [[one.masked for one in positions] for positions in way.passes]
    counts = [way.positions * (iterations - done) // iterations for done in range(iterations)]
    assert list(map(sum, masked)) == [count for count in counts if count]
    for before, now in zip(way.passes, way.passes[1:], strict=False):
        assert all(new.masked or new.token == old.token for old, new in zip(before, now, strict=True))
        surest = min((old.token.probability for old, new in zip(before, now, strict=True) if not new.masked), default=1)
        assert all(old.token.probability <= surest for old, new in zip(before, now, strict=True) if new.masked)


def test_lengths_are_the_likeliest_and_each_comes_once() -> None:
    for candidates in (1, 4, 50):
        _, way = followed("mask_predict", SENTENCES[0], length_candidates=candidates)
        lengths, chances = zip(*way.lengths, strict=True)
        assert len(set(lengths)) == len(lengths) <= candidates
        assert way.positions in lengths
        assert list(chances) == sorted(chances, reverse=True)
        assert sum(chances) <= 1.0 + 1e-6


@pytest.mark.parametrize("generation", ["mask_predict", "one_shot"])
def test_the_decoder_is_that_of_the_first_pass(generation: str) -> None:
    traced, way = followed(generation, SENTENCES[0])
    shapes = {stage.name: stage.shape for stage in traced.decoder}
    S, T = len(traced.ids), way.positions
    assert shapes["both added"] == (1, T, 24)
    weights = [stage.shape for stage in traced.decoder if stage.name == "layer 1: its weights"]
    assert weights == [(1, 3, T, T), (1, 3, T, S)]
    assert shapes["log-probabilities"][:2] == (1, T)
    names, values = zip(*((stage.name, stage.first) for stage in traced.decoder), strict=True)
    engine = make(generation).engine
    assert isinstance(engine, NonAutoregressiveEngine)
    source, masks = torch.tensor([traced.ids]), torch.full((1, T), MASK)
    with torch.inference_mode():
        output = engine.model.decode(masks, engine.model.encode(source, padding_mask(source)), padding_mask(source))
    torch.testing.assert_close(torch.tensor(values[names.index("hidden")]), output.hidden[0, 0, :5])
    if generation == "one_shot":
        assert (T, way.lengths, len(way.passes)) == (CANVAS_RATIO * (S - 1) + CANVAS_EXTRA, [], 1)
