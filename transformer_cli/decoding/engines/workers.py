"""Several batches at once on a CPU: one thread searches each, with one core, while the caller prepares the next ones.

On few rows a matrix product gains little from a second core, and much of a step does not use it at all.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TypeVar

import torch

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_in_order(work: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int) -> Iterator[ResultT]:
    """`map`, with up to `workers` items under way at once. `items` are read in this thread, one ahead of the workers.

    What `work` raises is raised here, at its place. Closed early, it waits for what is under way and drops the rest.
    """
    items = iter(items)
    first = list(islice(items, 2))
    if workers < 2 or len(first) < 2:
        yield from map(work, chain(first, items))
        return
    width = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "tfm-search", initializer=_take_one_core)
    try:
        under_way: deque[Future[ResultT]] = deque()
        for item in chain(first, items):
            under_way.append(pool.submit(work, item))
            if len(under_way) > workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(width)  # a thread has its own number, but a new one starts with what was set last


def _take_one_core() -> None:
    """One thread for each operation of this one. Only when it is asked for does a thread keep what was set."""
    torch.set_num_threads(1)
    torch.get_num_threads()
