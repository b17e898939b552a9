"""How far a long command is: a bar on a terminal, a line now and then anywhere else, nothing with --quiet."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from transformer_cli.cli.streams import note

if TYPE_CHECKING:
    from tqdm import tqdm

LOG_SECONDS = 30.0
BAR_SECONDS = 0.1


class Progress:
    """Counts lines on stderr; says at the end how many there were and how fast, unless the block failed."""

    def __init__(
        self,
        doing: str,
        total: int | None = None,
        quiet: bool = False,
        estimate: Callable[[], int | None] = lambda: None,
    ) -> None:
        """estimate: about how many lines there are, where the total is not known; None: nobody knows."""
        self.doing, self.total, self.quiet, self.done = doing, total, quiet, 0
        self._estimate = estimate
        self._kept = 0
        self._began = self._shown = time.monotonic()
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, desc=self.doing, unit=" lines", leave=False, dynamic_ncols=True)
        return self

    def __call__(self, done: int, kept: int = 0, expected: int | None = None) -> None:
        """Show that so many lines are done, of about `expected`; `kept` of them by an earlier command, at no speed."""
        new, self.done, self._kept = done - self.done, done, kept
        if expected is not None:
            self._estimate = lambda: expected
        now = time.monotonic()
        if self._bar is not None:
            self._bar.initial = kept
            if now - self._shown >= BAR_SECONDS:
                self._shown = now
                self._bar.total = self._expected()
            self._bar.update(new)
        elif not self.quiet and now - self._shown >= LOG_SECONDS:
            self._shown = now
            note(self._summary(now) + self._left(now))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if kind is None and not self.quiet:
            note(self._summary(time.monotonic()))

    def _summary(self, now: float) -> str:
        seconds = max(now - self._began, 1e-9)
        of = f" of {self.total:,}" if self.total is not None and self.done < self.total else ""
        lines = "line" if self.done == 1 and not of else "lines"
        before = f" ({self._kept:,} of them before)" if self._kept else ""
        speed = (self.done - self._kept) / seconds
        return f"{self.doing}: {self.done:,}{of} {lines}{before} in {seconds:.1f} s ({speed:.1f} lines/s)"

    def _left(self, now: float) -> str:
        """Return how much of it that is, and how long the rest will take at the speed so far."""
        new, expected = self.done - self._kept, self._expected()
        if expected is None or new <= 0 or expected <= self.done:
            return ""
        seconds = (expected - self.done) * (now - self._began) / new
        return f", {self.done / expected:.0%}, about {_duration(seconds)} left"

    def _expected(self) -> int | None:
        if self.total is not None:
            return self.total
        estimate = self._estimate()
        return None if estimate is None else max(self.done, estimate)


def _duration(seconds: float) -> str:
    """Return `40 s`, `12 min` or `3 h 5 min`"""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
