"""What grows is told apart from what a start costs; a table has the sizes in order, whatever is missing."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "experiments")
    return importlib.import_module("growth_picture")


def test_a_linear_stage_is_linear_whatever_its_start_costs(module: Any, tmp_path: Path) -> None:
    for power in (7, 4, 6, 5):  # in an order that is not that of names, nor of numbers
        lines = 10**power
        known = {"lines": lines, "seconds": 30 + 4e-6 * lines, "peak": 200_000_000 + 8 * lines}
        (tmp_path / f"plan-{lines}.json").write_text(json.dumps(known))
    found = module.gather(tmp_path, {"load": "loading", "plan": "planning"})
    assert [growth.name for growth in found] == ["planning"]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in module.describe(found)][2:]
    assert [row[1] for row in rows] == ["10,000", "100,000", "1,000,000", "10,000,000"]
    assert [row[3] for row in rows] == ["–", "4", "4", "4"]
    assert [row[4] for row in rows] == ["–", "–", "+0 %", "+0 %"]
    assert [row[6] for row in rows] == ["–", "–", "8", "8"]
    assert module.draw(found).axes
