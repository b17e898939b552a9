"""Pictures that need no trained model: masks of a batch, position encodings, learning-rate schedules.

`tfm plot` calls them. Torch is imported by those that need it alone.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from transformer_cli.config import Config, ScheduledSampling
from transformer_cli.plots.grid import Colours, Panel, draw_grid, in_rows
from transformer_cli.plots.style import add_title, count_axis, isolated, line_look, style, whole_numbers
from transformer_cli.text.codec import Codec
from transformer_cli.training.schedules import learning_rate

MAY_NOT, MAY = "#E3E3E3", "#0072B2"  # attend
POINTS = 1000  # of a line over the steps; the peak is always one of them


def mask_figure(sentences: Sequence[Sequence[int]], codec: Codec, side: str) -> Figure:
    """Draw for each sentence (ids without specials) of one batch which of its tokens may attend to which.

    side: `source`, the encoder (tokens, `</s>`), whose only mask is the padding's; or `target`, the decoder (`<s>`,
    tokens), with the padding mask, the causal mask, and both. Raises `UserError` where the picture would be too large
    to read.
    """
    from transformer_cli.data.batch import Batch
    from transformer_cli.model.masks import causal_mask, padding_mask

    batch = Batch.from_ids([(sentence, sentence) for sentence in sentences])
    ids = batch.source if side == "source" else batch.target_input  # (B, T)
    count, length = ids.shape
    padding = padding_mask(ids)[:, 0].expand(count, length, length)  # (B, T, T)
    masks = {"padding": padding}
    if side == "target":
        causal = causal_mask(length, length).expand(count, length, length)  # (B, T, T)
        masks |= {"causal": causal, "padding and causal": padding & causal}
    panels = []
    for number, row in enumerate(ids.tolist()):
        tokens = codec.tokens(row)
        panels.append(
            [
                Panel(f"sentence {number + 1}: {name}", mask[number].numpy(), (tokens, tokens))
                for name, mask in masks.items()
            ]
        )
    if side == "source":
        panels = in_rows([panel for (panel,) in panels])
    figure = draw_grid(
        panels,
        title=f"{'Encoder' if side == 'source' else 'Decoder'} masks of {count} sentence{'s' * (count > 1)}",
        lines=[f"{side} side of a batch: {count} × {length} positions, padding included"],
        x_label="position attended to",
        y_labels=["position that attends"] * len(panels),
        colours=Colours("", ListedColormap([MAY_NOT, MAY]), 0, 1),
        fewer="take fewer or shorter sentences",
    )
    figure.axes[-1].set_yticks([0.25, 0.75], ["may\nnot", "may\nattend"])
    return figure


def positions_figure(d_model: int = 128, length: int = 100) -> Figure:
    """Draw the sinusoids that encode positions (Vaswani et al. 2017, §3.5): all as a heat map, some as lines.

    d_model is even. Positions and dimensions are counted from 0, as in the formula.
    """
    from transformer_cli.model.sinusoids import sinusoids

    assert d_model % 2 == 0, "sines and cosines come in pairs"
    table = sinusoids(length, d_model)  # (L, D)
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
    """Return pairs of dimensions whose waves can be seen over so many positions, from fast to slow."""
    waves = (length / 5, length / 2, length * 1.5)
    places = [math.log(max(wave, 2 * math.pi) / (2 * math.pi), 10_000) * d_model / 2 for wave in waves]
    return sorted({min(round(place), d_model // 2 - 1) for place in places})


def schedule_figure(configs: Sequence[tuple[str, Config]], steps: int | None = None) -> Figure:
    """Draw the learning rate of each named config up to `steps`: else its `max_steps`, else ten times its warmup.

    Below it, where a config has scheduled sampling, the probability of the true token.
    """
    sampled = any(config.training.scheduled_sampling for _, config in configs)
    with style():
        figure = Figure(figsize=(8, 7.5 if sampled else 4.5), layout="constrained")
        add_title(figure, "Learning rate over the steps of training")
        above, *below = figure.subplots(1 + sampled, 1, squeeze=False)[:, 0]
        for axes in below:
            axes.sharex(above)
        for number, (name, config) in enumerate(configs):
            training, sampling, label = config.training, config.training.scheduled_sampling, isolated(name)
            last = steps or training.max_steps or 10 * max(100, training.warmup_steps)
            places = sorted({*_steps(last), min(last, max(1, training.warmup_steps))})
            rates = [learning_rate(training, config.model.d_model, step) for step in places]
            _draw_line(above, number, places, rates, f"{label}: {_describe(config)}")
            if sampling is not None:
                _draw_truth(below[0], number, f"{label}: {sampling.schedule}", sampling, last)
        above.set_ylim(bottom=0)
        for axes, name in zip([above, *below], ["learning rate", "probability of the true token"], strict=False):
            _finish(axes, name)
    return figure


def truth_figure(samplings: Sequence[tuple[str, ScheduledSampling]], steps: int) -> Figure:
    """Draw the probability of the true token in `steps` steps, a line for each named scheduled sampling."""
    with style():
        figure = Figure(figsize=(8, 4), layout="constrained")
        add_title(figure, "How probably the decoder reads the true token")
        axes = figure.add_subplot()
        for number, (name, sampling) in enumerate(samplings):
            _draw_truth(axes, number, name, sampling, steps)
        _finish(axes, "probability of the true token")
    return figure


def _steps(last: int) -> list[int]:
    """Return the steps from 1 to the last at which a line is drawn."""
    steps: list[int] = np.unique(np.linspace(1, last, min(last, POINTS)).round().astype(int)).tolist()
    return steps


def _draw_truth(axes: Axes, number: int, label: str, sampling: ScheduledSampling, last: int) -> None:
    """Draw what update 1 to update `last` read."""
    from transformer_cli.variants.scheduled_sampling import truth_probability  # not at the top: it takes torch

    places = _steps(last)
    _draw_line(axes, number, places, [truth_probability(sampling, step - 1) for step in places], label)
    axes.set_ylim(0, 1.05)


def _draw_line(axes: Axes, number: int, places: Sequence[int], values: Sequence[float], label: str) -> None:
    axes.plot(places, values, label=label, marker="o" if len(places) == 1 else "", **line_look(number))


def _finish(axes: Axes, name: str) -> None:
    axes.set_xlim(left=0)
    axes.set_ylabel(name)
    axes.yaxis.set_major_formatter("{x:g}")
    count_axis(axes, "step (update of the weights)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))


def _describe(config: Config) -> str:
    training = config.training
    if training.schedule == "noam":
        factor = "" if training.factor == 1 else f", factor {training.factor:g}"
        kind = f"noam, d_model {config.model.d_model}{factor}"
    else:
        kind = f"{training.schedule}, peak {training.peak_learning_rate:g}"
    return f"{kind}, {training.warmup_steps:,} warmup steps"
