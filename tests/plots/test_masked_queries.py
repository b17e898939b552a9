"""Attention of mask-predict models is that of the passes in which each token was masked, and so predicted."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch import Tensor

from transformer_cli.decoding.translator import Translator
from transformer_cli.inside.attention import Attention, attend
from transformer_cli.inside.trace import MASKED
from transformer_cli.model.masks import padding_mask
from transformer_cli.plots.attention import attention_figure, entropy_figure
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import EOS
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import MASK, canvas_length

KINDS = ["mask_predict", "one_shot"]
SENTENCES = ["ein Hund läuft $a$", "a", "שלום לכולם a <b> -- & c"]
MakeTranslator = Callable[..., Translator]


def engine_of(translator: Translator) -> NonAutoregressiveEngine:
    assert isinstance(translator.engine, NonAutoregressiveEngine)
    return translator.engine


def check_rows(attention: Attention, translator: Translator, looks: Sequence[tuple[Tensor, int]]) -> None:
    """Row t is what the decoder attends to at a place of the ids (T',) that it sees; `looks` holds both."""
    engine = engine_of(translator)
    source = torch.tensor([[*translator.codecs.source.encode(attention.sentence), EOS]])
    assert len(looks) == len(attention.target_output)
    with torch.inference_mode():
        memory = engine.model.encode(source, padding_mask(source))
        for token, (seen, place) in enumerate(looks):
            output = engine.model.decode(seen[None], memory, padding_mask(source), need_weights=True)
            for layer in range(engine.layers):
                for shown, weights in (
                    (attention.decoder, output.self_attention),
                    (attention.cross, output.cross_attention),
                ):
                    np.testing.assert_allclose(shown[layer, :, token], weights[layer][0, :, place], atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("generation", KINDS)
@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize("no_repeat_ngram", [0, 1])
def test_each_row_is_of_the_last_pass_that_masked_the_token(
    generation: str, sentence: str, no_repeat_ngram: int, make_translator: MakeTranslator
) -> None:
    translator = make_translator(generation=generation)
    translator.guarded = False  # which would search again
    decoding = translator.config.decoding.model_copy(update={"no_repeat_ngram": no_repeat_ngram, "iterations": 3})
    translator.config = translator.config.model_copy(update={"decoding": decoding})
    options = SearchOptions.from_config(decoding)
    attention, best = attend(translator, sentence), translator.translate_batch([sentence], options)[0]
    assert attention.target_output[: len(best.tokens)] == best.tokens
    followed = engine_of(translator).trace(translator.codecs.source.encode(sentence), options)
    length = len(attention.target_input)
    written = followed.passes[-1].tokens.ids[0, :length]
    names = translator.codecs.target.tokens(written.tolist())
    assert attention.target_input == (names if generation == "mask_predict" else [MASKED] * length)
    assert [names[place] for place in followed.places] == attention.target_output
    looks = []
    for place in followed.places:
        (seen,) = [one.seen[0, :length] for one in followed.passes if one.seen[0, place] == MASK][-1:]
        looks.append((seen, place))
    check_rows(attention, translator, looks)


@pytest.mark.parametrize("generation", KINDS)
def test_where_the_guard_searched_again_that_search_is_shown(generation: str, make_translator: MakeTranslator) -> None:
    translator = make_translator(generation=generation)
    encode = translator.codecs.source.encode
    options, left_out = SearchOptions.from_config(translator.config.decoding), 0
    for sentence in SENTENCES:
        attention, best = attend(translator, sentence), translator.translate_batch([sentence])[0]
        assert attention.target_output[: len(best.tokens)] == best.tokens
        plain = engine_of(translator).trace(encode(sentence), options).hypothesis
        left_out += translator.codecs.target.tokens(plain.ids) != best.tokens
    assert left_out, "the guard had nothing to do"


@pytest.mark.parametrize("target", ["Hund $a$ a", "a"])
def test_a_given_target_is_masked_word_by_word(target: str, make_translator: MakeTranslator) -> None:
    translator = make_translator(generation="mask_predict")
    attention = attend(translator, SENTENCES[0], target)
    assert attention.target_output == attention.target_input == target.split()
    ids = torch.tensor(translator.codecs.target.encode(target))
    places = torch.arange(len(ids))
    check_rows(attention, translator, [(ids.masked_fill(places == place, MASK), place) for place in range(len(ids))])


@pytest.mark.parametrize("words", [3, 15])
def test_a_given_target_lies_on_one_canvas_with_its_end(words: int, make_translator: MakeTranslator) -> None:
    translator = make_translator(generation="one_shot")
    attention = attend(translator, "a Hund", " ".join(["Hund"] * words))
    assert attention.target_output == [*["Hund"] * words, "</s>"]
    canvas = max(int(canvas_length(torch.tensor(2))), words + 1)
    assert attention.target_input == [MASKED] * canvas
    check_rows(attention, translator, [(torch.full((canvas,), MASK), place) for place in range(words + 1)])


@pytest.mark.parametrize("generation", KINDS)
def test_rows_sum_to_one_over_all_positions(generation: str, make_translator: MakeTranslator) -> None:
    attention = attend(make_translator(generation=generation), SENTENCES[0])
    for kind in ("encoder", "decoder", "cross"):
        np.testing.assert_allclose(attention.of(kind).sum(axis=-1), 1.0, atol=1e-5)
    assert (attention.decoder > 0).all()
    figure = attention_figure(attention, "decoder")
    axes: Any = next(axes for axes in figure.axes if axes.get_title(loc="left") == "layer 3, head 2")
    assert np.asarray(axes.images[0].get_array()) == pytest.approx(attention.decoder[2, 1])
    assert {"target position"} < texts(figure)
    even = f"decoder {np.log(len(attention.target_input)):.2f}"
    assert any(even in text for text in texts(entropy_figure([attention])))


def texts(figure: Any) -> set[str]:
    return {text.get_text() for text in figure.findobj(Text)}
