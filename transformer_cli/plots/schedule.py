"""The learning rate over the steps of one or several configs, and how often the decoder reads true tokens."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_cli.config import Config, ScheduledSampling
from transformer_cli.plots.style import add_title, count_axis, isolated, line_look, plain_numbers, style
from transformer_cli.training.schedules import learning_rate

POINTS = 1000  # of a line; the peak is always one of them


def schedule_figure(configs: Sequence[tuple[str, Config]], steps: int | None = None) -> Figure:
    """A line for each named config, up to `steps`: else its `max_steps`, else ten times its warmup.

    Below it, where a config has scheduled sampling, the probability of the true token.
    """
    with style():
        sampling = {
            number: config.training.scheduled_sampling
            for number, (_, config) in enumerate(configs)
            if config.training.scheduled_sampling is not None
        }
        figure = Figure(figsize=(8, 7.5 if sampling else 4.5), layout="constrained")
        add_title(figure, "Learning rate over the steps of training")
        axes = figure.add_subplot(2 if sampling else 1, 1, 1)
        for number, (name, config) in enumerate(configs):
            training = config.training
            last = steps or _last_step(config)
            places = np.unique(np.linspace(1, last, min(last, POINTS)).round().astype(int))
            places = np.union1d(places, [min(last, max(1, training.warmup_steps))])
            rates = [learning_rate(training, config.model.d_model, int(step)) for step in places]
            axes.plot(
                places,
                rates,
                label=f"{isolated(name)}: {_describe(config)}",
                marker="o" if last == 1 else "",
                **line_look(number),
            )
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_ylabel("learning rate")
        plain_numbers(axes)
        count_axis(axes, "step (update of the weights)")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))
        if sampling:
            below = figure.add_subplot(2, 1, 2, sharex=axes)
            for number, one in sampling.items():
                name, config = configs[number]
                _draw_truth(below, f"{isolated(name)}: {one.schedule}", one, steps or _last_step(config), number)
            _finish_truth(below)
    return figure


def truth_figure(samplings: Sequence[tuple[str, ScheduledSampling]], steps: int) -> Figure:
    """The probability of the true token in `steps` steps, a line for each named scheduled sampling."""
    with style():
        figure = Figure(figsize=(8, 4), layout="constrained")
        add_title(figure, "How probably the decoder reads the true token")
        axes = figure.add_subplot()
        for number, (name, sampling) in enumerate(samplings):
            _draw_truth(axes, name, sampling, steps, number)
        _finish_truth(axes)
    return figure


def _draw_truth(axes: Axes, label: str, sampling: ScheduledSampling, last: int, number: int) -> None:
    """The line `number`: what update 1 to update `last` read."""
    from transformer_cli.variants.scheduled_sampling import truth_probability  # not at the top: it takes torch

    places = np.unique(np.linspace(1, last, min(last, POINTS)).round().astype(int))
    truths = [truth_probability(sampling, int(step) - 1) for step in places]
    axes.plot(places, truths, label=label, marker="o" if last == 1 else "", **line_look(number))


def _finish_truth(axes: Axes) -> None:
    axes.set_ylim(0, 1.05)
    axes.set_xlim(left=0)
    axes.set_ylabel("probability of the true token")
    plain_numbers(axes)
    count_axis(axes, "step (update of the weights)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))


def _last_step(config: Config) -> int:
    return config.training.max_steps or 10 * max(100, config.training.warmup_steps)


def _describe(config: Config) -> str:
    training = config.training
    if training.schedule == "noam":
        factor = "" if training.factor == 1 else f", factor {training.factor:g}"
        kind = f"noam, d_model {config.model.d_model}{factor}"
    else:
        kind = f"{training.schedule}, peak {training.peak_learning_rate:g}"
    return f"{kind}, {training.warmup_steps:,} warmup steps"
