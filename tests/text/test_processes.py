import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from transformer_cli.errors import UserError
from transformer_cli.text.build import map_in_processes


def test_results_come_in_order_and_few_items_are_taken_ahead() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            yield number

    results = map_in_processes(partial(pow, 2), items(), workers=2)
    assert [next(results), next(results)] == [1, 2]
    assert len(taken) <= 7, "an endless stream would fill the memory"
    assert list(results) == [2**number for number in range(2, 40)]


def test_a_process_that_dies_is_explained() -> None:
    with pytest.raises(UserError, match=r"^data\.workers: one of 1 processes died"):
        list(map_in_processes(os._exit, [3, 4], workers=1))


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL to a process group")
@pytest.mark.parametrize("seconds", [0, 60], ids=["idle", "busy"])
def test_processes_end_when_their_parent_is_killed(seconds: int) -> None:
    """All of them, the resource tracker too, hold the parent's standard output: it ends when the last one has."""
    script = f"""
import time
from transformer_cli.text.build import map_in_processes
results = map_in_processes(time.sleep, [0] + 4 * [{seconds}], workers=2)
next(results)
print("at work", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "at work\n"
            parent.kill()
            parent.communicate(timeout=10)
        except BaseException:
            os.killpg(parent.pid, signal.SIGKILL)
            raise
    assert parent.returncode == -signal.SIGKILL
