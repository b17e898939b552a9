"""Who may ask, and how much: API keys, and what a client may ask a minute. No torch."""

import hashlib
import os
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformer_cli.errors import UserError
from transformer_cli.text.lines import read_lines

MOST_CLIENTS = 10_000  # that are remembered
MOST_ALTERNATIVES = 10  # to a translation
_HASH = re.compile(r"(?P<hash>[0-9a-fA-F]{64})(?:\s.*)?")


class Refused(Exception):
    """A request that is answered with an error: its status, what is said, and after how many seconds to try again."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(status, message, retry_after)
        self.status, self.message, self.retry_after = status, message, retry_after


@dataclass(frozen=True)
class Limits:
    """What a request, and a client a minute, may ask; None: any number."""

    max_characters: int = 200_000  # of all texts of a request
    max_texts: int = 1_000  # of a request
    max_body: int = 4_000_000  # bytes
    max_seconds: float = 60.0  # until a request is given up
    max_waiting: int = 20_000  # lines before each model
    requests_per_minute: int | None = None
    characters_per_minute: int | None = None
    cache: int = 0  # translations that each model keeps


class Keys:
    """The API keys of a file, by their SHA-256; read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        """Raise `UserError` where the file cannot be read, or holds anything but hashes."""
        self.path = path
        self._seen = self._stamp()
        self._hashes = _read_hashes(path)

    def knows(self, key: str) -> bool:
        """Return whether it is one of the keys. What was right last counts where the file is wrong now."""
        if (now := self._stamp()) != self._seen:
            self._seen = now
            try:
                self._hashes = _read_hashes(self.path)
            except UserError as error:
                print(f"warning: {error}; the keys before stay", file=sys.stderr, flush=True)
        return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest() in self._hashes

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path)
            return status.st_mtime_ns, status.st_size, status.st_ino
        except OSError:
            return None


def _read_hashes(path: Path) -> frozenset[str]:
    hashes = set()
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _HASH.fullmatch(line.strip())
        if found is None:
            raise UserError(
                f"{path}:{number}: is not the SHA-256 of a key; write one a line, as printf %s KEY | sha256sum does"
            )
        hashes.add(found["hash"].lower())
    return frozenset(hashes)


class Meter:
    """What each client has asked for in the last minute, in requests and characters; the oldest are forgotten.

    Threads may share it.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.clock = limits, clock
        self._lock = threading.Lock()
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()  # by limit and client; and when

    def charge(self, client: str, requests: int, characters: int) -> None:
        """Take it off what a client has left, which grows back within a minute; raise `Refused` at too much."""
        with self._lock:
            self._take(client, "requests", requests, self.limits.requests_per_minute)
            self._take(client, "characters", characters, self.limits.characters_per_minute)

    def _take(self, client: str, what: str, count: int, most: int | None) -> None:
        if most is None or not count:
            return
        now = self.clock()
        left, then = self._left.pop((what, client), (float(most), now))
        left = min(most, left + (now - then) * most / 60)
        if enough := left >= min(count, most):  # one that is larger than the limit empties it, and passes
            left -= count
        self._left[what, client] = left, now
        if len(self._left) > 2 * MOST_CLIENTS:
            self._left.popitem(last=False)
        if not enough:
            wait = int((min(count, most) - left) * 60 / most) + 1
            raise Refused(429, f"Slowdown: {most:,} {what} per minute", wait)
