"""The pool: every item is done once, in order; what fails goes up, and how a process died is explained."""

import functools
import math
import multiprocessing
import os
import signal
from typing import Any

import pytest

from transformer_cli.processes import map_in_processes


def always(work: Any) -> Any:
    """What gives every process the same work; a test's own function could not be imported there."""
    return [work, work].__getitem__


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_is_done_in_order_by_processes_that_know_their_number(workers: int) -> None:
    numbered = functools.partial(functools.partial, complex)  # number → item → complex(number, item)
    items = [10, 20, 30, 40, 50]
    found = list(map_in_processes(numbered, iter(items), workers))
    assert [one.imag for one in found] == items
    assert {one.real for one in found} <= set(range(workers))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_item_raises_goes_up_and_ends_the_rest(workers: int) -> None:
    with pytest.raises(ValueError, match=r"math domain error|negative"):
        list(map_in_processes(always(math.sqrt), [4, -1, 9, 16], workers))
    for process in multiprocessing.active_children():
        process.join(10)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("work", "item", "why"), [(signal.raise_signal, 9, "was killed by signal 9"), (os._exit, 3, "exited with 3")]
)
def test_a_process_that_dies_is_explained(work: Any, item: int, why: str) -> None:
    with pytest.raises(ChildProcessError, match=f"one of 2 processes died: it {why}"):
        list(map_in_processes(always(work), [item, item], 2))
