"""Work on a long stream by several processes, results in order, memory bounded. Counting and encoding use it."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from transformer_cli.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

_work: Callable[[Any], Any]  # of this worker process


def map_in_processes(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """`work(item)` for each item, in order; `work` is sent to each process once, and few items are under way at a time.

    The processes are spawned, not forked: the caller may run threads, and a fresh process holds nothing of the
    caller's memory. They end with the caller, however it ends. Raises `UserError` where one dies.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(work,))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_do, item))
            if len(waiting) > 2 * workers:  # enough to keep all busy; more would fill the memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            f"data.workers: one of {workers} processes died, likely for want of memory; lower data.workers (0: none)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(work: Callable[[Any], Any]) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work = work


def _end_with_parent() -> None:
    """A killed parent cannot stop its pool, and a worker never sees its queue close: it holds both ends itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in worker processes only"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _do(item: Any) -> Any:
    return _work(item)
