"""Items handed to threads come back in order, are read no further ahead than needed, and leave torch as it was."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from transformer_cli.decoding.engines.torch_engine import map_in_order


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_keep_the_order_of_their_items(workers: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3 == 0))
        return number * number

    assert list(map_in_order(work, iter(range(20)), workers)) == [number * number for number in range(20)]
    assert list(map_in_order(work, [], workers)) == []


def test_as_many_items_are_under_way_as_there_are_workers() -> None:
    together = threading.Barrier(3, timeout=10)  # breaks unless three wait at once
    assert list(map_in_order(lambda _: together.wait() >= 0, range(6), 3)) == [True] * 6


def test_items_are_read_in_the_callers_thread_and_one_ahead_of_the_workers() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            assert threading.current_thread() is threading.main_thread()
            read.append(number)
            yield number

    found = map_in_order(lambda number: number, items(), 2)
    for number in range(10):
        assert next(found) == number
        assert len(read) <= number + 3
    found.close()  # type: ignore[attr-defined]
    assert len(read) <= 13


def test_a_single_item_is_computed_with_all_cores_in_the_callers_thread() -> None:
    def work(_: int) -> tuple[int, bool]:
        return torch.get_num_threads(), threading.current_thread() is threading.main_thread()

    assert list(map_in_order(work, [1], 2)) == [(2, True)]
    assert list(map_in_order(work, [1, 2], 2)) == [(1, False)] * 2


def test_afterwards_operations_are_as_wide_as_before_in_new_threads_too() -> None:
    one, other = (map_in_order(lambda _: torch.get_num_threads(), range(9), 2) for _ in range(2))
    assert next(one) == next(other) == 1
    one.close()  # type: ignore[attr-defined]
    assert list(other) == [1] * 8
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2


def test_what_the_work_raises_comes_at_its_place() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    found = map_in_order(work, range(10), 2)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(found)
    assert torch.get_num_threads() == 2


def test_what_the_items_raise_comes_through_after_nothing_is_left_running() -> None:
    running: set[int] = set()

    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("no more")

    def work(number: int) -> int:
        running.add(number)
        time.sleep(0.02)
        running.remove(number)
        return number

    with pytest.raises(OSError, match="no more"):
        list(map_in_order(work, items(), 2))
    assert not running
