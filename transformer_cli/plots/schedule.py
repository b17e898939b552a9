"""The learning rate over the steps of one or several configs."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from transformer_cli.config import Config
from transformer_cli.plots.style import add_title, count_axis, isolated, line_look, plain_numbers, style
from transformer_cli.training.schedules import learning_rate

POINTS = 1000  # of a line; the peak is always one of them


def schedule_figure(configs: Sequence[tuple[str, Config]], steps: int | None = None) -> Figure:
    """A line for each named config, up to `steps`: else its `max_steps`, else ten times its warmup."""
    with style():
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        add_title(figure, "Learning rate over the steps of training")
        axes = figure.add_subplot()
        for number, (name, config) in enumerate(configs):
            training = config.training
            last = steps or training.max_steps or 10 * max(100, training.warmup_steps)
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
    return figure


def _describe(config: Config) -> str:
    training = config.training
    if training.schedule == "noam":
        factor = "" if training.factor == 1 else f", factor {training.factor:g}"
        kind = f"noam, d_model {config.model.d_model}{factor}"
    else:
        kind = f"{training.schedule}, peak {training.peak_learning_rate:g}"
    return f"{kind}, {training.warmup_steps:,} warmup steps"
