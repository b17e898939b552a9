"""The learning rate, and scheduled sampling's share of truth, as pure functions of the step.

So a resumed run needs no schedule state.
"""

import math

from transformer_cli.config import ScheduledSampling, TrainingConfig


def learning_rate(config: TrainingConfig, d_model: int, step: int) -> float:
    """The learning rate of update `step` (the first is 1).

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


def truth_probability(sampling: ScheduledSampling, updates: int) -> float:
    """How probably the decoder reads a true token, after so many updates: p(i) = f + (1 - f) · s(i).

    i are the updates since `start_step`, f is `floor`; before `start_step` p is 1. Of Bengio et al. 2015, §2.4, with n
    for `steps`: linear: s(i) = max(0, 1 - i / n). exponential: s(i) = k^i with k = ½^(1 / n). inverse_sigmoid:
    s(i) = k / (k + exp(i / k)) with k · ln k = n. So after n updates the first is at its floor, the others halfway.
    """
    since, steps = updates - sampling.start_step, sampling.steps
    if since < 0:
        return 1.0
    if sampling.schedule == "linear":
        share = max(0.0, 1.0 - since / steps)
    elif sampling.schedule == "exponential":
        share = 0.5 ** (since / steps)
    else:
        k = _inverse_sigmoid_k(steps)
        share = 1.0 / (1.0 + math.exp(min(700.0, (since - steps) / k)))  # exp(i / k) / k = exp((i - k ln k) / k)
    return sampling.floor + (1.0 - sampling.floor) * share


def _inverse_sigmoid_k(steps: int) -> float:
    """The k of which k · ln k = steps, by Newton's method, which comes down to it from above."""
    k = steps + 2.0
    for _ in range(20):  # half of them would do for any number of steps
        k -= (k * math.log(k) - steps) / (math.log(k) + 1.0)
    return k
