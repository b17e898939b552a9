"""A trace shows what the model really does: its translation is the translator's, its tensors are the model's own."""

import math
from typing import Any

import pytest
import torch

from tests.decoding.checkpoints import WORDS, make_loaded
from tests.sampling import one_of_each
from transformer_cli.build import build_engine
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.inside.trace import DECODER, ENCODER, Step, Trace, trace
from transformer_cli.model.masks import padding_mask
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD
from transformer_cli.variants.pointer.model import PointerGenerator

SENTENCE = " ".join(WORDS[4:9])


def steps_of(traced: Trace) -> list[Step]:
    assert isinstance(traced.search, list)
    return traced.search


MODELS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "positions": "learned", "activation": "swiglu"},
    {"shared": False, "tie_embeddings": "decoder"},
    {"generator": "pointer"},
    {"value_dim": 5},
    {"embedding": "one_hot"},
    {"positions": "rotary", "qk_norm": True},
]


def make(seed: int = 1, *, guard: bool = True, **options: Any) -> Translator:
    loaded = make_loaded(seed, **options)
    if isinstance(loaded.model.generator, PointerGenerator):
        loaded.model.generator.set_target_ids(loaded.codecs.source.target_ids())  # type: ignore[attr-defined]
    return Translator(build_engine(loaded.model), loaded.codecs, loaded.config, guard=guard)


SEARCHES: list[dict[str, Any]] = [{}, {"beam_size": 3}, {"method": "greedy"}, {"beam_size": 4, "min_length": 9}]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("model", "search"),
    one_of_each([pytest.param(model, search, id=f"{model}-{search}") for search in SEARCHES] for model in MODELS),
)
def test_the_translation_is_the_translators(model: dict[str, Any], search: dict[str, Any]) -> None:
    translator = make(**model)
    options = SearchOptions.from_config(translator.config.decoding, **search)
    found = translator.translate_batch([SENTENCE], options)[0]
    traced = trace(translator, SENTENCE, options)
    assert traced.translation.text == found.text
    ended = ["</s>"] if found.hypotheses[0].ended else []
    assert [step.taken.token for step in steps_of(traced)] == [*found.tokens, *ended]
    assert [step.taken.id for step in steps_of(traced)] == traced.target_ids


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_probabilities_of_the_steps_make_the_log_probability(model: dict[str, Any]) -> None:
    traced = trace(make(**model), f"{SENTENCE} never-seen")
    total = sum(math.log(step.taken.probability) for step in steps_of(traced))
    assert total == pytest.approx(traced.translation.log_probability, abs=1e-4)


def test_words_that_are_copied_are_named() -> None:
    """A model that does nothing else copies the word that no vocabulary has, and its probabilities are of words."""
    translator = make(generator="pointer")
    assert isinstance(translator.engine, TorchEngine)
    with torch.no_grad():
        translator.engine.model.generator.mixture.bias.fill_(-30.0)  # type: ignore[union-attr, operator]
    traced = trace(translator, "never-seen", SearchOptions(max_length=3))
    size = len(translator.codecs.target.vocabulary)
    assert steps_of(traced)[0].best[0].token == "never-seen"
    assert steps_of(traced)[0].best[0].id == size
    assert (traced.decoder[-1].axes, traced.decoder[-1].shape) == ("B, T, V+S", (1, 1, size + 2))


def test_each_step_knows_what_is_before_it_and_what_may_come_next() -> None:
    translator = make(3, guard=False)  # which would search again
    traced = trace(translator, SENTENCE, SearchOptions(method="greedy"))
    names = translator.codecs.target.vocabulary.get_itos()
    so_far = ["<s>"]
    for step in steps_of(traced):
        assert step.so_far == so_far
        assert [choice.probability for choice in step.best] == sorted((c.probability for c in step.best), reverse=True)
        assert all(choice.token == names[choice.id] and choice.id not in (PAD, BOS) for choice in step.best)
        assert (step.best[0], step.rank) == (step.taken, 1)  # greedy search takes the first
        so_far = [*so_far, step.taken.token]
    beams = trace(translator, SENTENCE, SearchOptions(beam_size=5, length_penalty=0.2))
    for step in steps_of(beams):
        assert step.rank > len(step.best) or step.best[step.rank - 1] == step.taken


def test_shapes_are_those_the_model_has() -> None:
    translator = make()
    traced = trace(translator, SENTENCE)
    model = translator.config.model
    S, D, H = len(SENTENCE.split()) + 1, model.d_model, model.heads
    sizes = {"B": 1, "S": S, "T": 1, "D": D, "H": H, "V": len(translator.codecs.target.vocabulary), "d_ff": model.d_ff}
    sizes |= {"H·d_k": D, "H·(d_k+d_v)": 2 * D}
    for stage in [*traced.encoder, *traced.decoder]:
        assert stage.axes, stage.name
        assert stage.shape == tuple(sizes[axis] for axis in stage.axes.split(", ")), stage.name
    assert traced.tokens == [*SENTENCE.split(), "</s>"]
    assert traced.ids == [*translator.codecs.source.encode(SENTENCE), EOS]
    absent = {"layer 1: keys", "layer 1: values", "layer 1: feed-forward, gate"}  # of variants
    absent |= {"rotation: cosines", "rotation: sines"}
    for stages, parts, layers in ((traced.encoder, ENCODER, 1), (traced.decoder, DECODER, 2)):
        names = [name for _, name, _ in parts if name not in absent]
        expected = [name.format(1) for name in names] + [f"layer {number}" for number in range(2, layers + 1)]
        assert sorted(stage.name for stage in stages) == sorted(expected)


def test_parts_that_only_a_variant_has_are_shown() -> None:
    gated = {stage.name: stage for stage in trace(make(activation="swiglu"), SENTENCE).encoder}
    assert gated["layer 1: feed-forward, gate"].shape == gated["layer 1: feed-forward, inner"].shape
    uneven = {stage.name: stage for stage in trace(make(value_dim=5), SENTENCE).encoder}
    assert uneven["layer 1: values"].shape == (1, 6, 3 * 5)
    assert "layer 1: keys, values" not in uneven


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
    scaled = torch.tensor(encoder["embedding"]) * translator.config.model.d_model**0.5
    torch.testing.assert_close(torch.tensor(encoder["times √d_model"]), scaled)
    torch.testing.assert_close(torch.tensor(encoder["both added"]), scaled + torch.tensor(encoder["positions"]))


def test_with_rotary_positions_it_shows_what_turns_and_no_sum() -> None:
    traced = trace(make(positions="rotary"), SENTENCE)
    for stages in (traced.encoder, traced.decoder):
        names = {stage.name: stage.shape for stage in stages}
        assert not {"positions", "both added"} & names.keys()
        assert {name for name in names if "rotation" in name} == {"rotation: cosines", "rotation: sines"}
    assert names["rotation: sines"] == (1, 8)


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
        ("a " * 21, "has 21 tokens, but the model takes at most 20 at once"),
        ("a https://a.example b", "'https://a.example' would be kept away from the model; add --no-protect"),
    ):
        with pytest.raises(UserError, match=message):
            trace(translator, text, protect=True)
    assert trace(translator, "a https://a.example b").tokens[1] == "https://a.example"


def test_one_token_and_the_longest_sentence() -> None:
    translator = make()
    assert len(trace(translator, WORDS[0]).ids) == 2
    longest = trace(translator, " ".join(WORDS[:20]))
    assert len(longest.ids) == 21
