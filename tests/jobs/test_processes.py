"""Jobs: every item is done once, what fails goes up, and a process that dies is named."""

import functools
import math
import multiprocessing
import operator
import os
import signal
from typing import Any

import pytest

from transformer_cli.errors import UserError
from transformer_cli.jobs.processes import rank_and_size, run_jobs


def always(work: Any) -> Any:
    """What gives every process the same work; a test's own function could not be imported there."""
    return [work, work].__getitem__


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_item_is_done_once_in_processes_that_know_their_number(jobs: int) -> None:
    numbered = functools.partial(functools.partial, operator.mul)  # number → item → number × item
    found = sorted(run_jobs(numbered, iter([10, 20, 30, 40, 50]), jobs))
    assert len(found) == 5
    assert set(found) <= {0, 10, 20, 30, 40, 50}
    assert found[0] == 0
    assert found == [0] * 5 or jobs == 2
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_an_item_raises_goes_up_and_ends_the_rest(jobs: int) -> None:
    with pytest.raises(ValueError, match=r"math domain error|negative"):
        list(run_jobs(always(math.sqrt), [4, -1, 9, 16], jobs))
    for process in multiprocessing.active_children():
        process.join(10)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("work", "item", "why"), [(signal.raise_signal, 9, "was killed by signal 9"), (os._exit, 3, "left")]
)
def test_a_process_that_dies_is_told(work: Any, item: int, why: str) -> None:
    with pytest.raises(ChildProcessError, match=rf"job \d {why}.*give the same command again"):
        list(run_jobs(always(work), [item, item], 2))


def test_a_rank_is_one_of_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert rank_and_size() == (0, 1)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UserError, match="WORLD_SIZE=1"):
        rank_and_size()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_and_size() == (1, 4)
