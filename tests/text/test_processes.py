import os
from collections.abc import Iterator
from functools import partial

import pytest

from transformer_cli.errors import UserError
from transformer_cli.text.processes import map_in_processes


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
