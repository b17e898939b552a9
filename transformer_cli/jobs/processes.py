"""Processes that share work: torchrun's, and those of `--jobs`, each with a model of its own. No torch.

`shards` calls it. What takes time to import is imported where jobs are started.
"""

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from transformer_cli.decoding.devices import has_gpu, usable_cores
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")


def rank_and_size() -> tuple[int, int]:
    """Return which of torchrun's processes this is, and how many there are; (0, 1) where it was not started so.

    Raises `UserError` where the variables RANK and WORLD_SIZE do not say that.
    """
    values = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not all(value.isdecimal() for value in values) or int(values[0]) >= int(values[1]):
        raise UserError(f"RANK={values[0]} WORLD_SIZE={values[1]}: are not a process of torchrun's; unset both")
    return int(values[0]), int(values[1])


def device_of(device: str, number: int) -> str:
    """Return the device of a process: those that may take any GPU take one each, in turn."""
    number += int(os.environ.get("LOCAL_RANK", "0"))
    if device not in ("auto", "cuda") or not has_gpu():
        return device  # without importing torch, which a process on the CPU may not need
    import torch

    count = torch.cuda.device_count()
    return f"cuda:{number % count}" if count else device


def kind_of(device: str) -> str:
    """Return cpu, cuda or mps for any device of that kind; auto stays where only torch can say.

    Under torchrun it does in any case: its processes have to agree, on machines of whatever kind.
    """
    if device == "auto" and rank_and_size()[1] == 1 and has_gpu():
        return "cuda"
    return device.partition(":")[0]


class Worker:
    """A process that waits for items at the other end of a pipe; when this end is closed, it ends."""

    def __init__(self, prepare: Callable[[int], Callable[[Any], Any]], number: int, jobs: int) -> None:
        import multiprocessing

        context = multiprocessing.get_context("spawn")  # a fresh process: the caller may run threads
        self.number = number
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, prepare, number, jobs), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, item: object) -> None:
        """Send the next item. That the process has died, `take` reports."""
        with contextlib.suppress(OSError):
            self.connection.send(item)

    def take(self) -> Any:
        """Return the result of the last item; raise what the work raised, `ChildProcessError` if the process died."""
        try:
            done, result = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            why = f"was killed by signal {-code} (by the system, out of memory?)" if code < 0 else f"left ({code})"
            raise ChildProcessError(
                errno.ECHILD,
                f"job {self.number + 1} {why}; what is done is kept: give the same command again, with fewer --jobs",
            ) from None
        if not done:
            raise result
        return result


def run_jobs(prepare: Callable[[int], Callable[[Item], Result]], items: Iterable[Item], jobs: int) -> Iterator[Result]:
    """Yield the results of all items, as they are done, in any order. Each process calls `prepare(number)` once, and
    what that gives for each item.

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


def _first_done(busy: "dict[Connection, Worker]") -> Worker:
    """Wait for the first that has something to say; it is busy no more."""
    from multiprocessing.connection import Connection, wait

    ready = wait([*busy])[0]
    assert isinstance(ready, Connection)
    return busy.pop(ready)


def _serve(connection: "Connection", prepare: Callable[[int], Callable[[Any], Any]], number: int, jobs: int) -> None:
    """Work on items until there are no more: the life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // jobs)))  # before torch looks
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
