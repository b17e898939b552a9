"""The process of `tfm serve`: its socket, its signals, and clients that are too slow. No torch."""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from transformer_cli.errors import UserError
from transformer_cli.serve.app import create_app
from transformer_cli.serve.guard import error_response
from transformer_cli.serve.translating import Service

LAST_SECONDS = 9  # to finish what is in flight after SIGTERM; a second is left for leaving within 10
READ_MILLISECONDS = 30_000  # after which a client that reads nothing of its answer is cut (Linux)
HEADER_SECONDS = 10.0  # in which a client must have sent the head of a request


class Impatient(H11Protocol):
    """HTTP/1.1 that closes connections on which no request begins in time, and answers what is none in JSON."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what has come; wait on where it is not the whole head of a request yet."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        body = error_response(400, msg).body
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + bytes(body))
        self.transport.close()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound; nobody is listened to yet. Raises `UserError` where that cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as stack:
            bound = stack.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
                bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, READ_MILLISECONDS)
            bound.bind(address)
            stack.pop_all()
    except OSError as error:
        raise UserError(
            f"--host {host} --port {port}: cannot be listened on: {error.strerror or error}; choose another one"
        ) from None
    return bound


def is_public(host: str) -> bool:
    """Return whether others than this machine may reach a host name or address."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def run(service: Service, bound: socket.socket, ready: str, main: Connection | None = None) -> None:
    """Serve until a signal ends it; SIGTERM and SIGINT arrive once what was in flight is done.

    ready: is said on stderr as soon as requests are answered. SIGHUP loads the models anew. main: the main process of
    several, which is told instead of stderr, asks for new models instead of SIGHUP, and whose end is the end.
    """
    config = uvicorn.Config(
        create_app(service),
        http=Impatient,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes what is answered with 400
    gc.freeze()  # full collections, which halt all requests, would look at all that was loaded: for 50 ms instead of 1
    server = uvicorn.Server(config)
    tell = say if main is None else main.send
    reloading: list[asyncio.Task[None]] = []

    def reload() -> None:
        if not reloading or reloading[-1].done():
            reloading[:] = [asyncio.create_task(_reload(service, tell))]

    def hear() -> None:
        assert main is not None
        try:
            main.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(main.fileno())
            server.should_exit = True
        else:
            reload()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        if main is not None:
            loop.add_reader(main.fileno(), hear)
        elif hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, reload)
        bound.listen(config.backlog)
        tell(ready)
        try:
            await server.serve(sockets=[bound])
        finally:
            for task in reloading:
                task.cancel()

    try:
        asyncio.run(serve())
    except (SystemExit, KeyboardInterrupt) as leaving:
        code = leaving.code if isinstance(leaving, SystemExit) else 128 + signal.SIGINT
        last = threading.Timer(1.0, os._exit, [code])  # a long search that nobody waits for any more is not waited for
        last.daemon = True
        last.start()
        raise


async def _reload(service: Service, tell: Callable[[str], None]) -> None:
    try:
        await service.reload()
    except (UserError, OSError, RuntimeError, ValueError) as error:
        tell(f"warning: the models before stay: {' '.join(str(error).split())}")
    else:
        tell("the models were loaded anew")


def say(message: str) -> None:
    """Write a line on stderr; where nobody reads it, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        print(message, file=sys.stderr, flush=True)
