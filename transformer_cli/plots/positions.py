"""The sinusoids that tell a Transformer where a token stands (§3.5): all of them, and a few as lines."""

import math

from matplotlib.figure import Figure

from transformer_cli.model.positions import sinusoidal_table
from transformer_cli.plots.style import add_title, count_axis, line_look, style, whole_numbers


def positions_figure(d_model: int = 128, length: int = 100) -> Figure:
    """Above a heat map of the encodings of `length` positions, below the lines of some dimensions.

    d_model is even. Positions and dimensions are counted from 0, as in the formula.
    """
    assert d_model % 2 == 0, "sines and cosines come in pairs"
    table = sinusoidal_table(length, d_model).numpy()  # (L, D)
    with style():
        figure = Figure(figsize=(8, 7), layout="constrained")
        add_title(figure, "Sinusoidal position encodings")
        above, below = figure.subplots(2, 1, height_ratios=(3, 2), sharex=True)

        image = above.imshow(
            table.T,
            cmap="RdBu_r",
            vmin=-1,
            vmax=1,
            aspect="auto",
            origin="lower",
            interpolation="auto",
            interpolation_stage="data",
        )
        above.grid(False)
        above.set_title(f"all {d_model} dimensions (even: sine, odd: cosine)")
        above.set_ylabel("dimension")
        above.yaxis.set_major_locator(whole_numbers())
        figure.colorbar(image, ax=above, label="value", pad=0.01, ticks=[-1, -0.5, 0, 0.5, 1])

        for number, pair in enumerate(_pairs(d_model, length)):
            wavelength = 2 * math.pi * 10_000 ** (2 * pair / d_model)
            for dimension, dashes in ((2 * pair, "-"), (2 * pair + 1, "--")):
                below.plot(
                    range(length),
                    table[:, dimension],
                    color=line_look(number)["color"],
                    linestyle=dashes,
                    marker="o" if length < 20 else "",
                    label=f"{dimension} ({'sine' if dashes == '-' else 'cosine'}, wavelength {wavelength:,.0f})",
                )
        below.set_title("some dimensions")
        below.set_ylabel("value")
        below.set_ylim(-1.1, 1.1)
        count_axis(below, "position")
        below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, title="dimension", fontsize=8)
    return figure


def _pairs(d_model: int, length: int) -> list[int]:
    """Pairs of dimensions whose waves can be seen over so many positions, from fast to slow."""
    waves = (length / 5, length / 2, length * 1.5)
    places = [math.log(max(wave, 2 * math.pi) / (2 * math.pi), 10_000) * d_model / 2 for wave in waves]
    return sorted({min(round(place), d_model // 2 - 1) for place in places})
