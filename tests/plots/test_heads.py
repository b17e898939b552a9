"""Grids of heads show each head's own weights; entropy is ln S where all S get the same and 0 where one gets all."""

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.inside.attention import Attention, Weights, attend
from transformer_cli.plots.attention import (
    KINDS,
    entropy,
    entropy_figure,
    heads_figure,
    mean_entropy,
)

MakeAttention = Callable[[int, int, list[str]], Attention]


@pytest.fixture(scope="module")
def attention(translator: Translator) -> Attention:
    return attend(translator, "ein Hund läuft $a$")


def of_weights(weights: Weights) -> Attention:
    """A sentence with these cross-attention weights (L, H, T, S)."""
    rows, columns = weights.shape[2:]
    tokens, words = ["a"] * columns, ["b"] * rows
    return Attention("a", "b", tokens, words, words, weights, weights, weights)


def labelled(figure: Figure, *starts: str) -> dict[str, Axes]:
    """The maps of a figure whose labels start so."""
    labels = {str(axes.get_label()): axes for axes in figure.axes}
    return {label: axes for label, axes in labels.items() if label.startswith(starts)}


@pytest.mark.parametrize("positions", [1, 2, 7, 40])
def test_uniform_attention_has_the_entropy_ln_s_and_one_hot_attention_none(positions: int) -> None:
    uniform = np.full((2, 3, 5, positions), 1 / positions, dtype=np.float32)
    np.testing.assert_allclose(entropy(uniform), np.log(positions), atol=1e-6)
    one_hot = np.eye(positions, dtype=np.float32)
    np.testing.assert_array_equal(entropy(one_hot), np.zeros(positions))
    assert not np.signbit(entropy(one_hot)).any()


def test_entropy_lies_between_and_ignores_what_has_no_weight() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(6), size=(2, 3, 4))
    found = entropy(weights)
    assert found.shape == (2, 3, 4)
    assert (found > 0).all()
    assert (found < np.log(6)).all()
    padded = np.concatenate([weights, np.zeros((2, 3, 4, 3))], axis=-1)
    np.testing.assert_allclose(entropy(padded), found)


def test_the_mean_is_over_all_positions_of_all_sentences() -> None:
    """A long sentence counts for as many positions as it has, not for one."""
    uniform = np.full((2, 2, 3, 4), 0.25, dtype=np.float32)
    sharp = np.zeros((2, 2, 1, 4), dtype=np.float32)
    sharp[..., 0] = 1.0
    values = mean_entropy([of_weights(uniform), of_weights(sharp)], "cross")
    np.testing.assert_allclose(values, np.full((2, 2), 0.75 * np.log(4)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_grid_has_a_map_for_each_layer_and_head(kind: str, attention: Attention) -> None:
    figure = heads_figure(attention, kind)
    maps = labelled(figure, "layer")
    weights = attention.of(kind)
    assert len(maps) == weights.shape[0] * weights.shape[1]
    for layer, head in np.ndindex(*weights.shape[:2]):
        shown = maps[f"layer {layer + 1}, head {head + 1}"].images[0]
        np.testing.assert_array_equal(np.asarray(shown.get_array()), weights[layer, head])
        assert shown.get_clim() == (0.0, 1.0)
    assert [text.get_text() for text in figure.texts][:2] == [f"{KINDS[kind]}: head by head", attention.sentence]


def test_chosen_layers_and_heads_of_a_grid(attention: Attention) -> None:
    figure = heads_figure(attention, "cross", layers=[3, 1], heads=[2])
    maps = labelled(figure, "layer")
    assert list(maps) == ["layer 3, head 2", "layer 1, head 2"]
    np.testing.assert_array_equal(np.asarray(maps["layer 3, head 2"].images[0].get_array()), attention.cross[2, 1])


def test_the_picture_of_entropies_shows_each_kind(attention: Attention) -> None:
    figure = entropy_figure([attention, attention])
    shown = labelled(figure, *KINDS.values())
    assert list(shown) == list(KINDS.values())
    for kind, axes in zip(KINDS, shown.values(), strict=True):
        values = np.asarray(axes.images[0].get_array())
        np.testing.assert_allclose(values, entropy(attention.of(kind)).mean(axis=-1))
        assert [text.get_text() for text in axes.texts] == [f"{value:.2f}" for value in values.flat]
    assert figure.texts[1].get_text() == "mean over 2 sentences"
    only = entropy_figure([attention], ["decoder"], layers=[2, 3], heads=[1])
    values = np.asarray(only.axes[0].images[0].get_array())
    np.testing.assert_allclose(values, mean_entropy([attention], "decoder")[1:, :1])


def test_even_attention_is_given_as_what_the_mask_allows(attention: Attention) -> None:
    """A decoder's position sees itself and those before it."""
    S, T = len(attention.source), len(attention.target_output)
    even = entropy_figure([attention]).texts[2].get_text()
    decoder = np.log(np.arange(1, T + 1)).mean()
    assert even.endswith(f"encoder {np.log(S):.2f}, decoder {decoder:.2f}, cross {np.log(S):.2f}")


@pytest.mark.medium
@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_all_is_inside_the_picture_whatever_the_number_of_tokens(tokens: int, make_attention: MakeAttention) -> None:
    attention = make_attention(2, 3, ["word"] * tokens)
    for figure in (heads_figure(attention, "encoder"), heads_figure(attention), entropy_figure([attention])):
        figure.draw_without_rendering()
        width, height = figure.get_size_inches() * figure.dpi
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert box is not None
            assert box.x0 >= 0
            assert box.x1 <= width
            assert box.y0 >= 0
            assert box.y1 <= height
        assert all(text.get_window_extent().x1 <= width for text in figure.texts)


def test_what_there_is_not_and_what_is_too_much_is_refused(attention: Attention, make_attention: MakeAttention) -> None:
    for figure in (heads_figure, lambda one, **chosen: entropy_figure([one], **chosen)):
        with pytest.raises(UserError, match=r"layer 4.*layers 1 to [23]"):
            figure(attention, layers=[4])
        with pytest.raises(UserError, match=r"head 3.*heads 1 to 2"):
            figure(attention, heads=[3])
        with pytest.raises(UserError, match="17 layers with 2 heads are too many"):
            figure(make_attention(17, 2, ["a"]))
