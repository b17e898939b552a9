"""What `experiments/exchange.py` makes of measured points, and `experiments/waiting.py` of waiting processes."""

import itertools
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import exchange  # type: ignore[import-not-found]

    return exchange


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import waiting  # type: ignore[import-not-found]

    return waiting


def test_the_fit_finds_what_made_the_points_and_predicts_one_that_it_has_not_seen(exchange: ModuleType) -> None:
    coefficients = np.array([3e-10, 1e-9, 1.05, 1.1])
    points = []
    for processes, rate, delay, size in itertools.product((2, 4), (1e10, 1e9, 1e8), (1e-4, 1e-2), (10**8, 10**9)):
        point = exchange.Point("base", processes, rate, delay, size)
        points.append(replace(point, seconds=exchange.predict(point, coefficients)))
    np.testing.assert_allclose(exchange.fit(points), coefficients, rtol=1e-6)
    for number, point in enumerate(points):
        others = exchange.fit([*points[:number], *points[number + 1 :]])
        assert exchange.predict(point, others) == pytest.approx(point.seconds, rel=1e-6)
    assert "24 of 24 points are predicted within 15 %" in [*exchange.describe(points)][-1]


def test_kept_points_are_read_in_the_order_of_the_table(exchange: ModuleType, tmp_path: Path) -> None:
    assert exchange.kept_points(tmp_path / "none") == []
    lines = ('{"model": "base", "processes": 2, "rate": 1e9, "delay": 0.01, "bytes": 4, "seconds": 1.5}',)
    lines += ('{"model": "base", "processes": 2, "rate": 1e10, "delay": 0.01, "bytes": 4, "seconds": 0.5}',)
    (tmp_path / "kept").write_text("\n".join(lines) + "\n")
    assert [point.rate for point in exchange.kept_points(tmp_path / "kept")] == [1e10, 1e9]


def test_waiting_is_counted_for_what_it_is_for(waiting: ModuleType) -> None:
    """By the file that calls; what follows a validation or a checkpoint in the next update counts as theirs."""
    clock = waiting.Clock()
    wait = clock.timed(lambda seconds: clock_of_test.advance(seconds))

    def call(file: str, seconds: float) -> None:
        exec(compile("wait(seconds)", f"/somewhere/{file}", "exec"), {"wait": wait, "seconds": seconds})

    with pytest.MonkeyPatch.context() as patch:
        clock_of_test = Time()
        patch.setattr(waiting.time, "monotonic", clock_of_test)
        for file, seconds in [("run.py", 5), ("session.py", 1), ("loop.py", 2), ("loop.py", 0.5)]:
            call(file, seconds)
        for file, seconds in [("validation.py", 3), ("loop.py", 0.25), ("loop.py", 0.5), ("session.py", 4)]:
            call(file, seconds)
        call("loop.py", 0.125)
    assert dict(clock.seconds) == {"start": 8, "update": 1, "validation": 3.25, "checkpoint": 4.125}


def test_the_table_has_the_least_and_the_most_and_its_share(waiting: ModuleType) -> None:
    ranks = [{"start": 1.0, "validation": 0.5, "checkpoint": 0.0, "update": 9.0}, dict.fromkeys(waiting.PHASES, 2.0)]
    table = [*waiting.describe([waiting.Waited(20, 2, 100.0, ranks)])]
    assert "| validations | 0.5 … 2.0 (2.0%) |" in table
    assert "| all but updates | 1.5 … 6.0 (6.0%) |" in table
    assert "| the whole run | 100, 20 updates, 2 validations |" in table


class Time:
    """A clock that goes on when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
