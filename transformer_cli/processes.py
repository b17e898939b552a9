"""The pool of processes by which tokens are counted, corpora encoded and, with `--jobs`, files translated. No torch."""

import errno
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Prepare = Callable[[int], Callable[[Item], Result]]


def map_in_processes(prepare: Prepare[Item, Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Yield a result for each item, in order; few items wait at a time.

    Each process, numbered from 0, calls `prepare(number)` before its first item, and what that returns for each item.
    The processes are spawned, not forked: the caller may run threads, and a fresh process holds nothing of the
    caller's memory. They end with the caller, however it ends. What fails in one of them is raised here, and ends the
    others; `ChildProcessError` where one dies.
    """
    context = multiprocessing.get_context("spawn")
    numbers: SimpleQueue[int] = context.SimpleQueue()
    for number in range(workers):
        numbers.put(number)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(prepare, numbers))
    processes = pool._processes  # which the pool forgets when it is shut down
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_do, item))
            if len(waiting) > 2 * workers:  # enough to keep all busy; more would fill the memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        pool.shutdown()
        raise ChildProcessError(
            errno.ECHILD, f"one of {workers} processes died: it {_end(processes.values())}"
        ) from None
    except BaseException:
        for process in processes.values():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end(processes: Iterable[BaseProcess]) -> str:
    """Return how the process ended that broke the pool, which has terminated all others."""
    codes = [process.exitcode or 0 for process in processes]
    code = next((code for code in codes if code not in (0, -signal.SIGTERM)), -signal.SIGTERM)
    return f"was killed by signal {-code} (by the system, out of memory?)" if code < 0 else f"exited with {code}"


_prepare: Callable[[int], Callable[[Any], Any]]  # of this worker process
_number: int
_work: Callable[[Any], Any] | None = None


def _start(prepare: Callable[[int], Callable[[Any], Any]], numbers: "SimpleQueue[int]") -> None:
    global _prepare, _number
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _prepare, _number = prepare, numbers.get()


def _end_with_parent() -> None:
    """Exit with the parent: a killed one cannot stop its pool, and workers hold both ends of the queue themselves."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in worker processes only"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _do(item: Any) -> Any:
    global _work
    _work = _work or _prepare(_number)  # here, not in `_start`, so that what it raises reaches the caller
    return _work(item)
