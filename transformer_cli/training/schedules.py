"""The learning rate as a pure function of the step, so that a resumed run needs no schedule state."""

import math

from transformer_cli.config import TrainingConfig


def learning_rate(config: TrainingConfig, d_model: int, step: int) -> float:
    """Return the learning rate of update `step` (the first is 1).

    noam: factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) (§5.3, eq. 3). The others rise linearly to
    `peak_learning_rate` over the warmup steps, then: inverse_sqrt falls with step^-0.5, cosine falls to zero at
    `max_steps`, constant stays.
    """
    assert step >= 1
    warmup = config.warmup_steps
    if config.schedule == "noam":
        return float(config.factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = config.peak_learning_rate
    assert peak is not None
    if step < warmup:
        return peak * step / warmup
    if config.schedule == "inverse_sqrt":
        return float(peak * (warmup / step) ** 0.5)
    if config.schedule == "cosine":
        assert config.max_steps is not None
        progress = min(1.0, (step - warmup) / (config.max_steps - warmup))
        return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak
