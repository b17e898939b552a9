"""Masks are those that the model uses, sinusoids the paper's, and the line is the learning rate that training takes."""

import math
import re
from typing import Any

import numpy as np
import pytest

from transformer_cli.config import Config
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.plots.diagrams import mask_figure, positions_figure, schedule_figure, truth_figure
from transformer_cli.training.schedules import learning_rate
from transformer_cli.variants.scheduled_sampling import truth_probability

FILES = {"source": "a", "target": "b"}
DATA = {"source_language": "de", "target_language": "en", "train": FILES, "valid": FILES}
SCHEDULES: dict[str, dict[str, Any]] = {
    "noam": {"schedule": "noam", "warmup_steps": 4000, "factor": 2.0},
    "inverse_sqrt": {"schedule": "inverse_sqrt", "peak_learning_rate": 1e-3, "warmup_steps": 333, "max_steps": 5000},
    "cosine": {"schedule": "cosine", "peak_learning_rate": 1e-3, "warmup_steps": 0, "max_steps": 777},
    "constant": {"schedule": "constant", "peak_learning_rate": 1e-3, "max_steps": None, "max_epochs": 3},
    "short": {"max_steps": 1},
}


@pytest.mark.parametrize("side", ["source", "target"])
def test_no_position_attends_to_padding_nor_the_decoders_to_a_later_one(side: str, translator: Translator) -> None:
    """The encoder reads in both directions: its only mask is the padding's."""
    codec = translator.codecs.source
    sentences = [codec.encode("a <b> --"), codec.encode("ein Hund läuft $a$ c")]
    figure = mask_figure(sentences, codec, side)
    panels: dict[str, Any] = {axes.get_title(loc="left"): axes for axes in figure.axes[:-1]}
    assert [label.get_text() for label in figure.axes[-1].get_yticklabels()] == ["may\nnot", "may\nattend"]
    tokens = {
        "source": [["a", "<b>", "--", "</s>", "<pad>", "<pad>"], ["ein", "Hund", "läuft", "$a$", "c", "</s>"]],
        "target": [["<s>", "a", "<b>", "--", "<pad>", "<pad>"], ["<s>", "ein", "Hund", "läuft", "$a$", "c"]],
    }[side]
    assert len(panels) == {"source": 2, "target": 6}[side]
    for number, row in enumerate(tokens, start=1):
        length = len(row) - row.count("<pad>")
        allowed = {
            "padding": [[key < length for key in range(6)] for _ in range(6)],
            "causal": [[key <= query for key in range(6)] for query in range(6)],
            "padding and causal": [[key < length and key <= query for key in range(6)] for query in range(6)],
        }
        for name, expected in allowed.items() if side == "target" else [("padding", allowed["padding"])]:
            axes = panels[f"sentence {number}: {name}"]
            np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), expected)
            assert [label.get_text() for label in axes.get_xticklabels()] == row
            first = name == "padding"  # the panels beside it have the same rows
            assert [label.get_text() for label in axes.get_yticklabels()] == row * first


def test_sentences_too_long_to_read_are_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="fewer or shorter sentences"):
        mask_figure([[5] * 400] * 3, translator.codecs.target, "target")


@pytest.mark.parametrize(("d_model", "length"), [(2, 1), (8, 12), (64, 100), (512, 30)])
def test_map_and_lines_follow_the_formula(d_model: int, length: int) -> None:
    figure = positions_figure(d_model, length)
    above, below = figure.axes[:2]
    expected = np.array(
        [
            [(math.sin, math.cos)[d % 2](place / 10_000 ** (d // 2 * 2 / d_model)) for place in range(length)]
            for d in range(d_model)
        ]
    )
    np.testing.assert_allclose(np.asarray(above.images[0].get_array()), expected, atol=1e-6)
    assert 2 <= len(below.lines) <= 6
    for line in below.lines:
        dimension = int(re.match(r"\d+", str(line.get_label()))[0])  # type: ignore[index]
        np.testing.assert_allclose(np.asarray(line.get_ydata()), expected[dimension], atol=1e-6)
        assert np.asarray(line.get_xdata()).tolist() == list(range(length))


def make(name: str) -> Config:
    return Config.model_validate({"data": DATA, "training": SCHEDULES[name]})


def test_every_line_is_the_learning_rate_to_the_end_with_its_peak() -> None:
    configs = [(name, make(name)) for name in SCHEDULES]
    (axes,) = schedule_figure(configs).axes
    for (name, config), line in zip(configs, axes.lines, strict=True):
        training = config.training
        steps, rates = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        assert rates.tolist() == [learning_rate(training, config.model.d_model, int(step)) for step in steps]
        assert (steps[0], steps[-1]) == (1, training.max_steps or 40_000)
        if len(steps) > 1:
            assert max(rates) == learning_rate(training, config.model.d_model, max(1, training.warmup_steps))
        assert str(line.get_label()).startswith(f"{name}: {training.schedule}, ")
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == len(looks)


@pytest.mark.parametrize("steps", [1, 10, 100_000])
def test_the_number_of_steps_can_be_given(steps: int) -> None:
    (axes,) = schedule_figure([("a", make("noam"))], steps).axes
    (line,) = axes.lines
    assert np.asarray(line.get_xdata())[-1] == steps


def test_scheduled_sampling_has_a_picture_of_its_own_below() -> None:
    training = {**SCHEDULES["cosine"], "scheduled_sampling": {"schedule": "linear", "steps": 300, "floor": 0.25}}
    sampled = Config.model_validate({"data": DATA, "training": training})
    above, below = schedule_figure([("a", make("noam")), ("b", sampled)]).axes
    (line,) = below.lines
    sampling = sampled.training.scheduled_sampling
    assert sampling is not None
    steps = np.asarray(line.get_xdata()).tolist()
    assert (steps[0], steps[-1]) == (1, 777)
    assert np.asarray(line.get_ydata()).tolist() == [truth_probability(sampling, step - 1) for step in steps]
    assert line.get_color() == above.lines[1].get_color(), "a config keeps its colour"
    (axes,) = truth_figure([("b", sampling)], 777).axes
    assert np.array_equal(axes.lines[0].get_ydata(), line.get_ydata())
