"""A trace shows what the model really does: its translation is the translator's, its tensors are the model's own."""

import math
from typing import Any

import pytest
import torch

from tests.decoding.checkpoints import WORDS, make_loaded
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.tracing import DECODER, ENCODER, trace
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.model.masks import padding_mask
from transformer_cli.text.vocabulary import BOS, EOS, PAD

SENTENCE = " ".join(WORDS[4:9])


def make(seed: int = 1, *, guard: bool = True, **options: Any) -> Translator:
    loaded = make_loaded(seed, **options)
    return Translator(TorchEngine(loaded.model), loaded.codecs, loaded.config, guard=guard)


@pytest.mark.parametrize(
    "model", [{}, {"norm": "pre", "positions": "learned"}, {"shared": False, "tie_embeddings": "decoder"}], ids=str
)
@pytest.mark.parametrize("search", [{}, {"beam_size": 3}, {"method": "greedy"}, {"beam_size": 4, "min_length": 9}])
def test_the_translation_is_the_translators(model: dict[str, Any], search: dict[str, Any]) -> None:
    for seed in range(3):
        translator = make(seed, **model)
        options = SearchOptions.from_config(translator.config.decoding, **search)
        found = translator.translate_batch([SENTENCE], options)[0]
        traced = trace(translator, SENTENCE, options)
        assert traced.translation.text == found.text
        ended = [EOS] if found.hypotheses[0].ended else []
        assert traced.target_ids == [*translator.codecs.target.lookup(found.tokens), *ended]
        assert [step.taken.id for step in traced.steps] == traced.target_ids
        assert translator.codecs.target.decode(traced.target_ids) == found.text


def test_probabilities_of_the_steps_make_the_log_probability() -> None:
    traced = trace(make(), SENTENCE)
    total = sum(math.log(step.taken.probability) for step in traced.steps)
    assert total == pytest.approx(traced.translation.log_probability, abs=1e-4)


def test_each_step_knows_what_is_before_it_and_what_may_come_next() -> None:
    translator = make(3, guard=False)  # which would search again
    traced = trace(translator, SENTENCE, SearchOptions(method="greedy"))
    names = translator.codecs.target.vocabulary.get_itos()
    so_far = ["<s>"]
    for step in traced.steps:
        assert step.so_far == so_far
        assert [choice.probability for choice in step.best] == sorted((c.probability for c in step.best), reverse=True)
        assert all(choice.token == names[choice.id] and choice.id not in (PAD, BOS) for choice in step.best)
        assert (step.best[0], step.rank) == (step.taken, 1)  # greedy search takes the first
        so_far = [*so_far, step.taken.token]
    beams = trace(translator, SENTENCE, SearchOptions(beam_size=5, length_penalty=0.2))
    for step in beams.steps:
        assert step.rank > len(step.best) or step.best[step.rank - 1] == step.taken


def test_shapes_are_those_the_model_has() -> None:
    translator = make()
    traced = trace(translator, SENTENCE)
    model = translator.config.model
    S, D, H = len(SENTENCE.split()) + 1, model.d_model, model.heads
    sizes = {"B": 1, "S": S, "T": 1, "D": D, "H": H, "V": len(translator.codecs.target.vocabulary), "d_ff": model.d_ff}
    sizes |= {"H·d": D, "2·H·d": 2 * D}
    for stage in [*traced.encoder, *traced.decoder]:
        assert stage.axes, stage.name
        assert stage.shape == tuple(sizes[axis] for axis in stage.axes.split(", ")), stage.name
    assert traced.tokens == [*SENTENCE.split(), "</s>"]
    assert traced.ids == [*translator.codecs.source.encode(SENTENCE), EOS]
    assert len(traced.encoder) == sum(len(outputs) for _, outputs in ENCODER) + model.encoder_layers - 1
    assert len(traced.decoder) == sum(len(outputs) for _, outputs in DECODER) + model.decoder_layers - 1


def test_values_are_those_of_a_pass_without_a_trace() -> None:
    translator = make(norm="pre")
    traced = trace(translator, SENTENCE)
    assert isinstance(translator.engine, TorchEngine)
    model = translator.engine.model
    source = torch.tensor([traced.ids])
    with torch.inference_mode():
        embedded = model.source_embedding(source)
        memory = model.encode(source, padding_mask(source))
        hidden = model.decode(torch.tensor([[BOS]]), memory, padding_mask(source)).hidden
    stages = {stage.name: stage.first for stage in [*traced.encoder, *traced.decoder]}
    encoder = {stage.name: stage.first for stage in traced.encoder}
    torch.testing.assert_close(torch.tensor(encoder["both added"]), embedded[0, 0, :5])
    torch.testing.assert_close(torch.tensor(stages["memory"]), memory[0, 0, :5])
    torch.testing.assert_close(torch.tensor(stages["hidden"]), hidden[0, 0, :5])
    scaled = torch.tensor(encoder["embedding"]) * traced.scale
    torch.testing.assert_close(torch.tensor(encoder["times √d_model"]), scaled)
    torch.testing.assert_close(torch.tensor(encoder["both added"]), scaled + torch.tensor(encoder["positions"]))


def test_nothing_stays_behind_in_the_model() -> None:
    translator = make()
    before = translator.translate([SENTENCE])
    trace(translator, SENTENCE)
    assert isinstance(translator.engine, TorchEngine)
    assert not any(module._forward_hooks for module in translator.engine.model.modules())
    assert translator.translate([SENTENCE]) == before


def test_a_sentence_that_goes_another_way_is_refused() -> None:
    translator = make()
    for text, message in (
        ("", "has no tokens"),
        (" \u3000", "has no tokens"),
        ("a " * 21, "has 21 tokens, but the model takes 20"),
        ("a https://a.example b", "'https://a.example' would be kept away from the model; add --no-protect"),
    ):
        with pytest.raises(UserError, match=message):
            trace(translator, text, protect=True)
    assert trace(translator, "a https://a.example b").tokens[1] == "https://a.example"
    translator.engine = object()  # type: ignore[assignment]  # nothing to look into
    with pytest.raises(UserError, match=r"model\.generation: autoregressive"):
        trace(translator, SENTENCE)


def test_one_token_and_the_longest_sentence() -> None:
    translator = make()
    assert len(trace(translator, WORDS[0]).ids) == 2
    longest = trace(translator, " ".join(WORDS[:20]))
    assert len(longest.ids) == 21
