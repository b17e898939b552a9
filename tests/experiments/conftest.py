"""Programs of `experiments/`, as modules."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import one by its name, with the modules that it shares with `benchmarks/`."""
    for folder in ("experiments", "benchmarks"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module
