"""What `experiments/waiting.py` makes of processes that wait."""

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def waiting(load_program: Callable[[str], ModuleType]) -> ModuleType:
    return load_program("waiting")


def test_waiting_is_counted_for_what_it_is_for(waiting: ModuleType) -> None:
    """By the file that calls; what follows a validation or a checkpoint in the next update counts as theirs."""
    clock, clock_of_test = waiting.Clock(), Time()
    wait = clock.timed(clock_of_test.advance)

    def call(file: str, seconds: float) -> None:
        exec(compile("wait(seconds)", f"/somewhere/{file}", "exec"), {"wait": wait, "seconds": seconds})

    with pytest.MonkeyPatch.context() as patch:
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
    assert "| the whole run | 100 s: 20 updates, 2 validations |" in table


class Time:
    """A clock that advances only when asked to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
