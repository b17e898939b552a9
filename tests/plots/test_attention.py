"""Attention pictures show the model's own weights, for the layers and heads that were asked for."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.inside.attention import Attention, attend
from transformer_cli.model.attention import MultiHeadAttention, attention_weights
from transformer_cli.plots.attention import KINDS, attention_figure, heads_figure

MakeAttention = Callable[[int, int, list[str]], Attention]
SENTENCE = "ein Hund läuft $a$"


@pytest.fixture(scope="module")
def attention(translator: Translator) -> Attention:
    return attend(translator, SENTENCE)


def maps(figure: Figure) -> dict[str, Any]:
    """The heat maps of a figure by their titles."""
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}


def shown(axes: Any) -> Any:
    return np.asarray(axes.images[0].get_array())


def test_rows_sum_to_one_and_the_decoder_sees_nothing_later(attention: Attention) -> None:
    S, T = len(attention.source), len(attention.target_output)
    assert attention.source == ["ein", "Hund", "läuft", "$a$", "</s>"]
    assert attention.target_input[1:] == attention.target_output[:-1]
    shapes = {"encoder": (2, 2, S, S), "decoder": (3, 2, T, T), "cross": (3, 2, T, S)}
    for kind in KINDS:
        weights = attention.of(kind)
        assert weights.shape == shapes[kind]
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    assert not np.triu(attention.decoder, k=1).any()


def test_the_weights_are_those_of_a_pass_that_asks_for_none(attention: Attention, translator: Translator) -> None:
    """What each attention layer really gets, in training and search, gives the weights that are shown."""
    engine = translator.engine
    assert isinstance(engine, TorchEngine)
    found: list[Any] = []

    def look(layer: Any, arguments: Any, options: Any) -> None:
        states, keys_values, *mask = arguments
        query = layer.query(states).unflatten(2, (layer.heads, layer.head_dim)).transpose(1, 2)
        mask = mask[0] if mask else None
        if options.get("causal"):
            mask = query.new_ones(query.size(2), query.size(2)).tril().bool()
        found.append(attention_weights(query, keys_values.split()[0], mask)[0].detach().numpy())

    layers = [module for module in engine.model.modules() if isinstance(module, MultiHeadAttention)]
    hooks = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]
    try:
        source = translator.codecs.source.encode(SENTENCE)
        engine.score([source], [translator.codecs.target.lookup(attention.target_output[:-1])])
    finally:
        for hook in hooks:
            hook.remove()
    np.testing.assert_allclose(np.stack(found[:2]), attention.encoder, atol=1e-5)
    np.testing.assert_allclose(np.stack(found[2::2]), attention.decoder, atol=1e-5)
    np.testing.assert_allclose(np.stack(found[3::2]), attention.cross, atol=1e-5)


def test_it_is_the_best_translation_and_its_alignment(attention: Attention, translator: Translator) -> None:
    best = translator.translate_batch([SENTENCE])[0]
    assert (attention.translation, attention.target_output[:-1]) == (best.text, best.tokens)
    peaks = attention.cross[-1].mean(axis=0)[:-1, :-1].argmax(axis=-1)
    assert peaks.tolist() == best.alignment


def test_a_given_translation_is_shown_instead(translator: Translator) -> None:
    forced = attend(translator, SENTENCE, "Hund -- c")
    assert forced.translation == "Hund -- c"
    assert forced.target_output == ["Hund", "--", "c", "</s>"]


@pytest.mark.parametrize("kind", KINDS)
def test_all_layers_and_heads_with_tokens_on_both_axes(kind: str, attention: Attention) -> None:
    panels = maps(attention_figure(attention, kind))
    weights = attention.of(kind)
    count = weights.shape[0]
    assert list(panels) == [f"layer {layer}, head {head}" for layer in range(1, count + 1) for head in (1, 2)]
    rows = attention.source if kind == "encoder" else attention.target_output
    columns = attention.target_input if kind == "decoder" else attention.source
    for place, axes in enumerate(panels.values()):
        np.testing.assert_array_equal(shown(axes), weights[place // 2, place % 2])
        # Maps beside each other share the names of their rows, those below each other the names of their columns.
        assert [label.get_text() for label in axes.get_yticklabels()] == rows * (place % 2 == 0)
        assert [label.get_text() for label in axes.get_xticklabels()] == columns * (place // 2 == count - 1)
        assert axes.images[0].get_clim() == (0.0, pytest.approx(weights.max()))


def test_chosen_layers_and_heads(attention: Attention) -> None:
    panels = maps(attention_figure(attention, layers=[3, 1], heads=[2]))
    assert list(panels) == ["layer 3, head 2", "layer 1, head 2"]
    np.testing.assert_array_equal(shown(panels["layer 3, head 2"]), attention.cross[2, 1])
    panels = maps(attention_figure(attention, mean=True))
    assert list(panels) == [f"layer {layer}, mean of all heads" for layer in (1, 2, 3)]
    np.testing.assert_allclose(shown(panels["layer 2, mean of all heads"]), attention.cross[1].mean(axis=0))


def test_what_there_is_not_is_refused(attention: Attention, translator: Translator) -> None:
    for layers, heads, message in (
        ([4], None, "layer 4.*layers 1 to 3"),
        ([0], None, "layer 0.*layers 1 to 3"),
        (None, [2, 3], "head 3.*heads 1 to 2"),
    ):
        with pytest.raises(UserError, match=message):
            attention_figure(attention, layers=layers, heads=heads)
    for sentence in ("", " \u3000"):
        with pytest.raises(UserError, match="no tokens"):
            attend(translator, sentence)
    with pytest.raises(UserError, match=r"13 tokens.*at most 12"):
        attend(translator, "c " * 13)


@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_labels_stay_apart_and_inside_whatever_the_number_of_tokens(tokens: int, make_attention: MakeAttention) -> None:
    words = [f"▁word{place}" for place in range(tokens)]
    figure = attention_figure(make_attention(1, 2, words))
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    for axes in maps(figure).values():
        boxes = [label.get_window_extent() for label in (*axes.get_yticklabels(), *axes.get_xticklabels())]
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
        below = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(one.x1 <= two.x0 + 1 for one, two in pairwise(below))
        beside = [label.get_window_extent() for label in axes.get_yticklabels()]
        assert all(one.y0 >= two.y1 - 1 for one, two in pairwise(beside))


@pytest.mark.parametrize(("layers", "across"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 3), (8, 4), (12, 4)])
def test_means_stand_in_full_rows(layers: int, across: int, make_attention: MakeAttention) -> None:
    """Where the layers allow it; a map with none below it has the names of its columns."""
    panels = maps(attention_figure(make_attention(layers, 2, ["word"] * 5), mean=True))
    lefts = [round(axes.get_position().x0, 3) for axes in panels.values()]
    assert len(panels) == layers
    assert len(set(lefts)) == across
    labelled = [bool(axes.get_xticklabels()) for axes in panels.values()]
    assert labelled == [False] * (layers - across) + [True] * across


@pytest.mark.medium
@pytest.mark.parametrize("mean", [False, True])
def test_a_long_sentence_makes_a_picture_that_fits_a_screen_or_two(mean: bool, make_attention: MakeAttention) -> None:
    """25 words as subwords, in all heads of a small model; labels stay readable."""
    figure = attention_figure(make_attention(4, 4, ["▁word"] * 30), mean=mean)
    width, height = figure.get_size_inches() * figure.dpi
    assert height < 2500
    assert width < 2800
    label = next(iter(maps(figure).values())).get_yticklabels()[0]
    assert label.get_fontsize() * figure.dpi / 72 >= 11, "pixels"


@pytest.mark.medium
@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("draw", [attention_figure, lambda one: attention_figure(one, mean=True), heads_figure])
def test_no_empty_band_is_below(layers: int, draw: Any, make_attention: MakeAttention) -> None:
    figure = draw(make_attention(layers, 2, ["▁a", "▁longer"] * 5))
    figure.draw_without_rendering()
    lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert 0 < lowest / figure.dpi < 0.35


def test_pictures_too_large_to_read_are_refused(make_attention: MakeAttention) -> None:
    with pytest.raises(UserError, match=r"pixels.*--layers and --heads"):
        attention_figure(make_attention(6, 8, ["word"] * 60))
