"""How far a long command is: a bar on a terminal, a line now and then anywhere else, nothing with --quiet."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from transformer_cli.cli.output import note

if TYPE_CHECKING:
    from tqdm import tqdm

LOG_SECONDS = 30.0


class Progress:
    """Counts lines on stderr; says at the end how many there were and how fast, unless the block failed."""

    def __init__(self, doing: str, total: int | None = None, quiet: bool = False) -> None:
        self.doing, self.total, self.quiet, self.done = doing, total, quiet, 0
        self._began = self._logged = time.monotonic()
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, desc=self.doing, unit=" lines", leave=False, dynamic_ncols=True)
        return self

    def reached(self, done: int) -> None:
        """So many lines are done."""
        if self._bar is not None:
            self._bar.update(done - self.done)
        self.done = done
        now = time.monotonic()
        if not self.quiet and self._bar is None and now - self._logged >= LOG_SECONDS:
            self._logged = now
            note(self._summary(now))

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
        return f"{self.doing}: {self.done:,}{of} {lines} in {seconds:.1f} s ({self.done / seconds:.1f} lines/s)"
