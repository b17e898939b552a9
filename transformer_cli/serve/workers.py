"""`tfm serve --workers N`: processes that serve on one socket, each with its models, and the one that keeps them alive.

What holds for all of them together is in the main process, in memory: what each client has asked for, and translated
files. Counts for Prometheus are in a temporary folder, where each process has its own. No torch.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseManager
from typing import Any, cast

from prometheus_client.multiprocess import mark_process_dead

from transformer_cli.decoding.engines.ctranslate2_engine import worker_count
from transformer_cli.errors import UserError
from transformer_cli.serve.files import Results
from transformer_cli.serve.limits import Meter
from transformer_cli.serve.models import Serving
from transformer_cli.serve.server import LAST_SECONDS, run, say
from transformer_cli.serve.translating import Service

SERVING = "serving"  # how what a worker says first begins, and what models it has; or FAILED and why
FAILED = "error: "
LONGEST_PAUSE = 60.0  # seconds, before one that could not even load its models is replaced; after the first, 1
_SPAWN = multiprocessing.get_context("spawn")  # a fresh process holds nothing of this one's memory and threads

Make = Callable[..., Service]


class _Common(BaseManager):
    """What the main process keeps for all; workers call it over a socket that only this user's processes can open."""


def _keep_common(serving: Serving) -> Any:
    """Answer workers in threads of this process; return the address."""
    meter, results = Meter(serving.limits), Results()
    _Common.register("meter", lambda: meter, exposed=["charge"])
    _Common.register("results", lambda: results, exposed=["keep", "find"])
    server = _Common().get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.address


def _work(make: Make, serving: Serving, bound: socket.socket, common: Any, main: Connection) -> None:
    """Be a worker, until the main process ends or ends this one."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # closing a terminal reaches all its processes; the main one asks
    try:
        _Common.register("meter")
        _Common.register("results")
        manager = cast(Any, _Common(address=common))
        manager.connect()
        limits = serving.limits
        limited = limits.requests_per_minute or limits.characters_per_minute
        meter = manager.meter() if limited else Meter(limits)  # asking costs a tenth of a millisecond
        service = make(serving, serving.load(), meter, results=manager.results())
    except UserError as error:
        main.send(f"{FAILED}{error}")
        return
    run(service, bound, "\n".join([SERVING, *service.models.lines()]), main)


class _Worker:
    """A worker as the main process sees it."""

    def __init__(self, *arguments: Any) -> None:
        self.main, other = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_work, args=(*arguments, other))
        self.process.start()
        other.close()  # so that its end is heard
        self.serves = False
        self.reloads = False  # whether it has been asked to, and has not answered yet


class Workers:
    """Keeps some workers alive, until a signal ends them all."""

    def __init__(self, make: Make, serving: Serving, bound: socket.socket, count: int, folder: str) -> None:
        self._arguments = make, serving, bound, _keep_common(serving)
        self._count, self._folder = count, folder
        self._workers: set[_Worker] = set()
        self._said: dict[str, None] = {}  # by workers that were asked to load anew
        self._pause = 1.0
        self._ended: asyncio.Future[int]  # the signal that ended all
        self._stopped: int | None = None

    async def run(self, ready: str, *, quiet: bool) -> int:
        """Serve until a signal comes; return it once all have finished. Raises `UserError` where one cannot begin."""
        self._quiet = quiet
        loop = asyncio.get_running_loop()
        self._ready, self._ended = ready, loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        for _ in range(self._count):
            self._start()
        try:
            return await self._ended
        finally:
            self._kill()

    def _start(self) -> None:
        if self._stopped is None:
            worker = _Worker(*self._arguments)
            self._workers.add(worker)
            asyncio.get_running_loop().add_reader(worker.main.fileno(), self._hear, worker)

    def _hear(self, worker: _Worker) -> None:
        try:
            said = worker.main.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if said.startswith(SERVING):
            worker.serves, self._pause = True, 1.0
            if self._ready and all(one.serves for one in self._workers):
                for line in [] if self._quiet else said.split("\n")[1:]:
                    say(line)
                say(self._ready)
                self._ready = ""
        elif said.startswith(FAILED) and self._ready:
            self._fail(said.removeprefix(FAILED))
        elif worker.reloads:
            worker.reloads = False
            self._said[said] = None
            self._report()
        else:
            say(f"warning: a worker: {said.removeprefix(FAILED)}")

    def _report(self) -> None:
        """Say what came of loading anew, once every worker has answered."""
        if not any(one.reloads for one in self._workers):
            for line in self._said:
                say(line)
            self._said.clear()

    def _bury(self, worker: _Worker) -> None:
        """Put another one in a worker's place that has ended; at the end of all, end."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(worker.main.fileno())
        worker.main.close()
        worker.process.join()
        self._workers.discard(worker)
        mark_process_dead(worker.process.pid, self._folder)  # type: ignore[no-untyped-call]
        code = worker.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        if self._stopped is not None:
            if not self._workers and not self._ended.done():
                self._ended.set_result(self._stopped)
        elif self._ready:
            self._fail(f"a worker {how} before it served; is there enough memory for --workers {self._count}?")
        else:
            say(f"warning: a worker {how}; another one takes its place")
            self._report()
            loop.call_later(0 if worker.serves else self._pause, self._start)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _fail(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(UserError(why))

    def _reload(self) -> None:
        for worker in self._workers:
            if not worker.reloads:
                worker.reloads = True
                with contextlib.suppress(OSError):
                    worker.main.send("load anew")

    def _stop(self, number: int) -> None:
        self._stopped = number
        for worker in self._workers:
            worker.process.terminate()
        asyncio.get_running_loop().call_later(LAST_SECONDS + 5, self._kill)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()


def serve(make: Make, serving: Serving, bound: socket.socket, ready: str, count: int, *, quiet: bool) -> None:
    """Serve with several processes until a signal ends it, as `server.run` does with one.

    make: called in each worker with what is served, the loaded models and what all share. The threads of
    CTranslate2 are divided among the workers. Raises `UserError` where one of them cannot load its models.
    """
    os.environ["OMP_NUM_THREADS"] = str(max(1, worker_count() // count))
    with tempfile.TemporaryDirectory(prefix="tfm-serve-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # which prometheus_client reads as a worker imports it
        number = asyncio.run(Workers(make, serving, bound, count, folder).run(ready, quiet=quiet))
    raise SystemExit(128 + number)
