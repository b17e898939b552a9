"""The masks shown are those that the model uses, over the batch's own tokens."""

from typing import Any

import numpy as np
import pytest

from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.plots.masks import mask_figure


@pytest.mark.parametrize("side", ["source", "target"])
def test_no_position_attends_to_padding_or_to_a_later_one(side: str, translator: Translator) -> None:
    codec = translator.codecs.source
    sentences = [codec.encode("a <b> --"), codec.encode("ein Hund läuft $a$ c")]
    figure = mask_figure(sentences, codec, side)
    panels: dict[str, Any] = {axes.get_title(loc="left"): axes for axes in figure.axes}
    tokens = {
        "source": [["a", "<b>", "--", "</s>", "<pad>", "<pad>"], ["ein", "Hund", "läuft", "$a$", "c", "</s>"]],
        "target": [["<s>", "a", "<b>", "--", "<pad>", "<pad>"], ["<s>", "ein", "Hund", "läuft", "$a$", "c"]],
    }[side]
    assert len(panels) == 6
    for number, row in enumerate(tokens, start=1):
        length = len(row) - row.count("<pad>")
        allowed = {
            "padding": [[key < length for key in range(6)] for _ in range(6)],
            "causal": [[key <= query for key in range(6)] for query in range(6)],
            "padding and causal": [[key < length and key <= query for key in range(6)] for query in range(6)],
        }
        for name, expected in allowed.items():
            axes = panels[f"sentence {number}: {name}"]
            np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), expected)
            assert [label.get_text() for label in axes.get_xticklabels()] == row
            assert [label.get_text() for label in axes.get_yticklabels()] == row


def test_sentences_too_long_to_read_are_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="fewer or shorter sentences"):
        mask_figure([[5] * 400] * 3, translator.codecs.target, "target")
