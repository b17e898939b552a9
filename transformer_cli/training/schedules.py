"""The learning rate and the dropout as pure functions of the step, so that a resumed run needs no schedule state."""

import math

from transformer_cli.config import TrainingConfig

DECAY = 0.25  # of all steps of wsd: those in which the rate falls
R_DROP_RISES = 2, 5  # when R-Drop begins, and when it is there in full: so many times as late as dropout


def learning_rate(config: TrainingConfig, d_model: int, step: int, decay_from: int | None = None) -> float:
    """Return the learning rate of update `step` (the first is 1).

    noam: factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) (§5.3, eq. 3). The others rise linearly to
    `peak_learning_rate` over the warmup steps, then: inverse_sqrt falls with step^-0.5, cosine falls to zero at
    `max_steps`, constant stays, wsd stays and in the end falls to zero with 1 - √ (Hu et al. 2024, "MiniCPM", §4;
    Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", §3).
    decay_from: wsd: the step after which it falls; None: as late as `max_steps` allows.
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
    if config.schedule == "wsd":
        first, last = decay(config, decay_from)
        return peak * (1.0 - math.sqrt(min(1.0, max(0, step - first) / (last - first))))
    return peak


def last_free_step(config: TrainingConfig) -> float:
    """Return the last step up to which the rate is the same whatever `max_steps` is."""
    if config.schedule == "wsd":
        return decay(config, None)[0]
    return 0 if config.schedule == "cosine" else math.inf


def decay(config: TrainingConfig, decay_from: int | None) -> tuple[int, int]:
    """Return the steps after which the rate of wsd begins to fall and is zero: the last quarter of all, or what the
    warmup leaves of it."""
    assert config.max_steps is not None
    latest = min(config.max_steps - 1, max(config.warmup_steps, math.floor((1 - DECAY) * config.max_steps)))
    first = latest if decay_from is None else min(max(config.warmup_steps, decay_from), latest)
    return first, config.max_steps if first == latest else max(first + 1, round(first / (1 - DECAY)))


def dropout_share(config: TrainingConfig, step: int) -> float:
    """Return how much of the model's dropout is in force in update `step` (the first is 1): it rises evenly from 0 to 1
    over `dropout_warmup_steps` (after Morerio et al. 2017, "Curriculum Dropout")."""
    return min(1.0, (step - 1) / config.dropout_warmup_steps) if config.dropout_warmup_steps else 1.0


def r_drop_begins(config: TrainingConfig) -> int:
    """Return after which step updates have R-Drop."""
    return R_DROP_RISES[0] * config.dropout_warmup_steps + 1 if config.dropout_warmup_steps else 0


def r_drop_share(config: TrainingConfig, step: int) -> float:
    """Return how much of R-Drop's α is in force in update `step` (the first is 1): all, unless dropout rises.

    Where it does, none for twice as many updates as that takes, since little is memorised yet; then, over three times
    as many, it rises evenly, since a strong one would set the model back (docs/results.md, "R-Drop that rises").
    """
    if not config.dropout_warmup_steps:
        return 1.0
    first, last = R_DROP_RISES
    return min(1.0, max(0.0, ((step - 1) / config.dropout_warmup_steps - first) / (last - first)))
