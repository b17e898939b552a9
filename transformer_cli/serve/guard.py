"""Around every request: an answer in time, always JSON where it is an error, and counted. No text is kept. No torch."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error: `error` as LibreTranslate's clients read it, `message` as DeepL's do."""
    return JSONResponse({"error": message, "message": message}, status, headers)


class Metrics:
    """What `GET /metrics` gives. With PROMETHEUS_MULTIPROC_DIR, of all processes whose counts are kept there."""

    def __init__(self) -> None:
        self._own = own = CollectorRegistry()
        self.requests = Counter("tfm_requests", "Requests that were answered.", ["path", "status"], registry=own)
        self.seconds = Histogram("tfm_request_seconds", "Time until the answer.", registry=own)
        self.characters = Counter("tfm_characters", "Characters that were sent.", registry=own)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.batches = Histogram("tfm_batch_lines", "Lines searched together.", buckets=sizes, registry=own)
        self.waiting = Gauge("tfm_waiting_lines", "Lines that wait.", registry=own, multiprocess_mode="livesum")

    def text(self) -> bytes:
        """Return all of it as Prometheus reads it."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._own)
        every = CollectorRegistry()
        MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        return generate_latest(every)


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, seconds: float) -> None:
        """seconds: after which a request is given up."""
        self.app, self.metrics, self.seconds = app, metrics, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0
        begun = time.perf_counter()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            async with asyncio.timeout(self.seconds):
                await self.app(scope, receive, noting)
        except TimeoutError:
            await self._fail(503, "The request took too long", status, scope, receive, noting)
        except asyncio.CancelledError:  # by uvicorn, whose own answer would not be JSON
            await self._fail(503, "The server is stopping", status, scope, receive, noting)
        except Exception as error:  # a fault of ours; its message may hold what was to be translated
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            line = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where is not None else ""
            print(f"error: internal: {type(error).__name__} at {line}; please report it", file=sys.stderr, flush=True)
            await self._fail(500, "Internal error", status, scope, receive, noting)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "") if route is not None else "(none)"
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.observe(time.perf_counter() - begun)

    async def _fail(self, code: int, message: str, begun: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with an error; where an answer has begun, break it off."""
        if begun:
            raise ConnectionAbortedError
        await error_response(code, message, {"Retry-After": "1"} if code == 503 else None)(scope, receive, send)
