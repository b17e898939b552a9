"""Matrices of cases, too many for every run: CI takes one of each group, `make test-slow` the others."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def one_of_each(groups: Iterable[Sequence[Any]]) -> list[Any]:
    """Return all cases (`pytest.param`); but for one of each group, another one from group to group, they are slow."""
    found = []
    for number, group in enumerate(groups):
        for place, case in enumerate(group):
            slow = [] if place == number % len(group) else [pytest.mark.slow]
            found.append(pytest.param(*case.values, id=case.id, marks=[*case.marks, *slow]))
    return found


def quick(cases: Iterable[Any]) -> list[Any]:
    """Return the values of the cases that CI takes."""
    return [case.values for case in cases if not case.marks]
