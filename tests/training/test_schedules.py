import math
from itertools import pairwise
from typing import Any

import pytest

from transformer_cli.config import ScheduledSampling, TrainingConfig
from transformer_cli.training.schedules import _inverse_sigmoid_k, learning_rate, truth_probability


def rates(steps: int, d_model: int = 512, **training: Any) -> list[float]:
    config = TrainingConfig(**training)
    return [learning_rate(config, d_model, step) for step in range(1, steps + 1)]


def test_noam_is_equation_3() -> None:
    for step, rate in enumerate(rates(300, warmup_steps=100, factor=2.0), start=1):
        assert math.isclose(rate, 2.0 / math.sqrt(512) * min(1 / math.sqrt(step), step / 100**1.5), rel_tol=1e-12)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "constant"])
def test_warmup_rises_linearly_to_the_peak(schedule: Any) -> None:
    rising = rates(50, schedule=schedule, warmup_steps=50, peak_learning_rate=0.01, max_steps=200)
    for step, rate in enumerate(rising, start=1):
        assert math.isclose(rate, 0.01 * step / 50, rel_tol=1e-12)


def test_after_the_peak() -> None:
    common: dict[str, Any] = {"warmup_steps": 50, "peak_learning_rate": 0.01, "max_steps": 200}
    constant = rates(200, schedule="constant", **common)[50:]
    root = rates(200, schedule="inverse_sqrt", **common)[50:]
    cosine = rates(200, schedule="cosine", **common)[50:]
    assert set(constant) == {0.01}
    assert all(math.isclose(rate, 0.01 * math.sqrt(50 / step)) for step, rate in enumerate(root, start=51))
    assert all(a > b for a, b in pairwise(cosine))
    assert math.isclose(cosine[74], 0.005, rel_tol=1e-9), "half-way down at half the way"
    assert abs(cosine[-1]) < 1e-12


def test_no_warmup_starts_at_the_peak() -> None:
    assert rates(3, schedule="constant", warmup_steps=0, peak_learning_rate=0.5) == [0.5] * 3


# --- scheduled sampling -------------------------------------------------------------------------------------------


def truths(updates: list[int], **options: Any) -> list[float]:
    return [truth_probability(ScheduledSampling(**options), update) for update in updates]


def test_linear_truth_falls_to_its_floor_and_stays() -> None:
    """max(ε, k - c i) of Bengio et al. 2015 with k = 1 and c = (1 - ε) / steps."""
    found = truths([0, 1, 25, 100, 150], schedule="linear", steps=100, floor=0.2)
    assert found == pytest.approx([max(0.2, 1 - 0.8 / 100 * i) for i in (0, 1, 25, 100, 150)], rel=1e-12)


def test_exponential_truth_is_a_power_of_k() -> None:
    k = 0.5 ** (1 / 100)
    found = truths([0, 1, 100, 1000], schedule="exponential", steps=100, floor=0.0)
    assert found == pytest.approx([k**i for i in (0, 1, 100, 1000)], rel=1e-9)


@pytest.mark.parametrize("k", [2.0, 30.0, 1000.0])
def test_inverse_sigmoid_truth_is_its_formula(k: float) -> None:
    steps = round(k * math.log(k))
    exact = _inverse_sigmoid_k(steps)
    assert exact * math.log(exact) == pytest.approx(steps, rel=1e-12)
    updates = [0, 1, steps, 3 * steps]
    found = truths(updates, schedule="inverse_sigmoid", steps=steps, floor=0.0)
    assert found == pytest.approx([exact / (exact + math.exp(i / exact)) for i in updates], rel=1e-9)


@pytest.mark.parametrize("schedule", ["linear", "exponential", "inverse_sigmoid"])
@pytest.mark.parametrize("steps", [1, 100, 10**7])
def test_truth_falls_from_one_to_the_floor_from_its_start_on(schedule: Any, steps: int) -> None:
    common: dict[str, Any] = {"schedule": schedule, "steps": steps, "floor": 0.25, "start_step": 50}
    found = truths([0, 49, 50, 50 + steps // 3, 50 + steps, 50 + 3 * steps, 2**62], **common)
    assert found[:2] == [1.0, 1.0]
    assert all(1.0 >= a >= b >= 0.25 for a, b in pairwise(found))
    assert found[4] == pytest.approx(0.25 if schedule == "linear" else 0.625), "after `steps`"
    assert found[-1] == pytest.approx(0.25)
    assert truths([0, 10**9], schedule=schedule, floor=1.0) == [1.0, 1.0], "a floor of 1 is teacher forcing"
