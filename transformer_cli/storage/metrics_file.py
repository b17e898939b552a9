"""`metrics.jsonl`: one line an event of a run; whole lines only, and none that a resumed run will write again.

The run folder has one; training appends to it and cuts it back.
"""

import contextlib
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_cli.storage.publishing import atomic_write, naming


class MetricsFile:
    """The events of a run, in their order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: Mapping[str, Any]) -> None:
        """Add one event, one line; what is not finite there becomes null."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in event.items()
        }
        line = json.dumps(finite, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace") + b"\n"
        with naming(self.path), open(self.path, "ab", buffering=0) as file:
            start = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(start)  # no half line: the next event would be glued to it
                raise

    def cut(self, step: int, skipped: int = 0, validated: bool = True) -> None:
        """Drop the events past the checkpoint of `step`, and what a kill left half-written.

        `skipped`: so many updates were skipped after the step before it was saved; their events, which are the first of
        the step after, stay. `validated` False: it was not validated when it was saved; if it was later, that
        comes again, and the event goes.
        """
        if not os.path.lexists(self.path):
            return
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = []
        for line in lines:
            event = _parse_event(line)
            if event is None:
                continue
            number = event.get("step", 0)
            was_skipped = number == step + 1 and "skipped" in event and skipped > 0
            skipped -= was_skipped
            if was_skipped or number < step or (number == step and (validated or "valid_loss" not in event)):
                kept.append(line)
        if len(kept) < len(lines):
            atomic_write(self.path, b"".join(kept))


def _parse_event(line: bytes) -> dict[str, Any] | None:
    """Return None for what is not an event, or half of one."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(event, dict) and isinstance(event.get("step", 0), int)
    return event if whole else None
