"""What `experiments/exchange.py` makes of measured points."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def exchange(load_program: Callable[[str], ModuleType]) -> ModuleType:
    return load_program("exchange")


def test_the_fit_finds_what_made_the_points_and_predicts_one_that_it_has_not_seen(exchange: ModuleType) -> None:
    coefficients = np.array([3e-10, 1e-9, 1.05, 1.1])
    points = []
    for processes, rate, delay, size in itertools.product((2, 4), (1e10, 1e9, 1e8), (1e-4, 1e-2), (10**8, 10**9)):
        point = exchange.Point("base", processes, rate, delay, bytes=size)
        points.append(replace(point, seconds=exchange.predict(point, coefficients)))
    np.testing.assert_allclose(exchange.fit(points), coefficients, rtol=1e-6)
    for number, point in enumerate(points):
        others = exchange.fit([*points[:number], *points[number + 1 :]])
        assert exchange.predict(point, others) == pytest.approx(point.seconds, rel=1e-6)
    assert "24 of 24 points are predicted within 15 %" in [*exchange.describe(points)][-1]
    update = replace(points[0], update=True, alone=2.0, seconds=2.0 + points[0].seconds)
    single = replace(points[0], update=True, processes=1, alone=2.0, seconds=2.5)
    rows = [*exchange.describe([*points, update, single])][-2:]
    assert [row.split("|")[-2].strip() for row in rows] == ["+0%", "-20%"]


def test_kept_points_are_read_in_the_order_of_the_table(exchange: ModuleType, tmp_path: Path) -> None:
    assert exchange.kept_points(tmp_path / "none") == []
    lines = ['{"model": "base", "processes": 2, "rate": 1e9, "delay": 0.01, "bytes": 4, "seconds": 1.5}']
    lines += ['{"model": "base", "processes": 2, "rate": 1e10, "delay": 0.01, "bytes": 4, "seconds": 0.5}']
    (tmp_path / "kept").write_text("\n".join(lines) + "\n")
    assert [point.rate for point in exchange.kept_points(tmp_path / "kept")] == [1e10, 1e9]
