"""The sinusoids are the paper's."""

import math
import re

import numpy as np
import pytest

from transformer_cli.plots.positions import positions_figure


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
