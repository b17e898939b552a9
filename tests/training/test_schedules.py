import math
from itertools import pairwise
from typing import Any

import pytest

from transformer_cli.config import TrainingConfig
from transformer_cli.training.schedules import decay, dropout_share, last_free_step, learning_rate, r_drop_share


def rates(steps: int, d_model: int = 512, **training: Any) -> list[float]:
    config = TrainingConfig(**training)
    return [learning_rate(config, d_model, step) for step in range(1, steps + 1)]


def test_noam_is_equation_3() -> None:
    for step, rate in enumerate(rates(300, warmup_steps=100, factor=2.0), start=1):
        assert math.isclose(rate, 2.0 / math.sqrt(512) * min(1 / math.sqrt(step), step / 100**1.5), rel_tol=1e-12)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "wsd", "constant"])
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


def test_wsd_stays_and_falls_in_the_last_quarter_wherever_that_begins() -> None:
    config = TrainingConfig(schedule="wsd", warmup_steps=50, peak_learning_rate=0.01, max_steps=200)
    for decay_from, last in ((None, 200), (100, 133), (60, 80), (170, 200)):  # 170: later than max_steps allows
        found = [learning_rate(config, 512, step, decay_from) for step in range(51, 201)]
        begins = min(150, decay_from or 150)
        assert set(found[: begins - 50]) == {0.01}
        assert all(a > b for a, b in pairwise(found[begins - 51 : last - 50]))
        assert set(found[last - 51 :]) == {0.0}
        assert decay(config, decay_from) == (begins, last)
    quarter = learning_rate(config, 512, 150 + 50 // 4, None)
    assert math.isclose(quarter, 0.01 * (1 - math.sqrt(12 / 50)))


def test_wsd_never_falls_before_its_warmup_is_over() -> None:
    config = TrainingConfig(schedule="wsd", warmup_steps=90, peak_learning_rate=0.01, max_steps=100)
    found = [learning_rate(config, 512, step) for step in range(1, 101)]
    assert max(found) == found[89] == 0.01
    assert all(a < b for a, b in pairwise(found[:90]))
    assert all(a > b for a, b in pairwise(found[89:]))
    assert decay(config, None) == decay(config, 50) == (90, 100)


@pytest.mark.parametrize("max_steps", range(2, 12))
def test_only_the_last_update_of_wsd_has_no_rate(max_steps: int) -> None:
    config = TrainingConfig(schedule="wsd", warmup_steps=1, peak_learning_rate=0.01, max_steps=max_steps)
    for decay_from in (None, *range(1, max_steps)):
        first, last = decay(config, decay_from)
        assert first < last <= max_steps
        found = [learning_rate(config, 512, step, decay_from) for step in range(1, last + 1)]
        assert found[-1] == 0.0
        assert min(found[:-1]) > 0.0
    assert decay(config, None)[1] == max_steps


def test_no_warmup_starts_at_the_peak() -> None:
    assert rates(3, schedule="constant", warmup_steps=0, peak_learning_rate=0.5) == [0.5] * 3


@pytest.mark.parametrize(("schedule", "same"), [("inverse_sqrt", 200), ("constant", 200), ("wsd", 30), ("cosine", 5)])
def test_up_to_some_step_the_rate_is_the_same_whatever_the_last_step_is(schedule: Any, same: int) -> None:
    common: dict[str, Any] = {"schedule": schedule, "warmup_steps": 5, "peak_learning_rate": 0.01}
    short, long = (rates(200, max_steps=steps, **common) for steps in (40, 60))
    assert [a == b for a, b in zip(short, long, strict=True)].index(False) == same if same < 200 else short == long
    free = min(last_free_step(TrainingConfig(max_steps=steps, **common)) for steps in (40, 60))
    assert free == {200: math.inf, 30: 30, 5: 0}[same]


def test_dropout_is_whole_after_its_warmup_and_at_once_without_one() -> None:
    rising = TrainingConfig(dropout_warmup_steps=8)
    assert [dropout_share(rising, step) for step in (1, 2, 5, 9, 10, 10**6)] == [0.0, 0.125, 0.5, 1.0, 1.0, 1.0]
    assert {dropout_share(TrainingConfig(), step) for step in (1, 2, 10**6)} == {1.0}


def test_r_drop_waits_twice_as_long_as_dropout_rises_then_rises_and_is_whole_at_once_without_that() -> None:
    rising = TrainingConfig(dropout_warmup_steps=8)
    shares = [r_drop_share(rising, step) for step in (1, 9, 17, 20, 29, 41, 42, 10**6)]
    assert shares == [0.0, 0.0, 0.0, 0.125, 0.5, 1.0, 1.0, 1.0]
    assert {r_drop_share(TrainingConfig(), step) for step in (1, 2, 10**6)} == {1.0}
