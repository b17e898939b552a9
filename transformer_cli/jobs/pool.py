"""One job in several processes, each with a model of its own.

`tfm translate --jobs` calls it. Results come as they are done, in any order.
"""

import contextlib
import errno
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Worker:
    """A process that waits for items at the other end of a pipe; when this end is closed, it ends."""

    def __init__(self, prepare: Callable[[int], Callable[[Any], Any]], number: int, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fresh process: the caller may run threads
        self.number = number
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, prepare, number, jobs), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, item: object) -> None:
        """Send the next item. That the process has died, `take` tells."""
        with contextlib.suppress(OSError):
            self.connection.send(item)

    def take(self) -> Any:
        """The result of the last item; raises what the work raised, `ChildProcessError` where the process died."""
        try:
            done, result = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            why = f"was killed by signal {-code} (by the system, for want of memory?)" if code < 0 else f"left ({code})"
            raise ChildProcessError(
                errno.ECHILD,
                f"job {self.number + 1} {why}; what is done is kept: give the same command again, with fewer --jobs",
            ) from None
        if not done:
            raise result
        return result


def run_jobs(prepare: Callable[[int], Callable[[Item], Result]], items: Iterable[Item], jobs: int) -> Iterator[Result]:
    """The results of all items, as they are done. Each process calls `prepare(number)` once, and what that gives for
    each item.

    One job needs no process beside this one. Where an item fails, the processes are ended and what it raised goes up.
    """
    if jobs == 1:
        work = None
        for item in items:
            work = work or prepare(0)
            yield work(item)
        return
    workers: list[Worker] = []
    try:
        busy: dict[Connection, Worker] = {}
        for item in items:
            if len(workers) < jobs:
                worker = Worker(prepare, len(workers), jobs)
                workers.append(worker)
            else:
                worker = _first_done(busy)
                yield worker.take()
            worker.give(item)
            busy[worker.connection] = worker
        while busy:
            yield _first_done(busy).take()
        for worker in workers:
            worker.connection.close()
            worker.process.join()
    finally:
        for worker in workers:
            worker.process.terminate()


def _first_done(busy: dict[Connection, Worker]) -> Worker:
    """The first that has something to say; it is busy no more."""
    ready = multiprocessing.connection.wait([*busy])
    assert isinstance(ready[0], Connection)
    return busy.pop(ready[0])


def _serve(connection: Connection, prepare: Callable[[int], Callable[[Any], Any]], number: int, jobs: int) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # before torch looks
    work = None
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        try:
            work = work or prepare(number)
            answer = True, work(item)
        except Exception as error:
            answer = False, error
        try:
            connection.send(answer)
        except OSError:
            return  # the parent was killed
        except Exception:  # an error that cannot be pickled
            connection.send((False, RuntimeError(f"{type(answer[1]).__name__}: {answer[1]}")))
