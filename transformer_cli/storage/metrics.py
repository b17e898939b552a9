"""The events of a run, `metrics.jsonl`: a line each, whole, and none that a resumed run will write again.

Training writes and cuts them; `tfm plot training` and `tfm report` read them.
"""

import contextlib
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_cli.errors import UserError
from transformer_cli.storage.holding import open_regular
from transformer_cli.storage.publishing import atomic_write, naming

METRICS = "metrics.jsonl"
LARGEST = 1e12  # no step or value of a training is above it
THIN = 0.8  # points of the line of the training loss
KEYS = ("loss", "valid_loss", "valid_bleu", "valid_chrf", "valid_source_gain", "learning_rate")


class Series(NamedTuple):
    """A value over the steps; NaN where it was not finite."""

    steps: list[int]
    values: list[float]


class MetricsFile:
    """The events of a run, `metrics.jsonl`: whole lines only, and none that a resumed run will write again."""

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

    def hardware(self) -> list[str]:
        """Return what the run was trained on, in order; more than one where it was continued on something else."""
        try:
            with open_regular(self.path) as file:
                events = [_parse_event(line) for line in file if b'"hardware"' in line]
        except OSError:
            return []  # nothing yet
        return [str(event["hardware"]) for event in events if event is not None and "hardware" in event]

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


# --- reading ---------------------------------------------------------------------------------------------------------


def read_metrics(run: Path) -> dict[str, Series]:
    """Return the values of `KEYS` in the `metrics.jsonl` of a run folder, without a last line half written by a kill.

    Of a run that has just begun, no key has any. Raises `UserError` where there is no such file, or anything else is
    in it.
    """
    path = run / METRICS
    if not os.path.exists(run):
        raise UserError(f"{run}: no such folder; give a run folder, as tfm train made it")
    if not os.path.isdir(run):
        raise UserError(f"{run}: is a file; give a run folder, as tfm train made it")
    if not os.path.exists(path):
        raise UserError(f"{run}: has no {path.name}, so it is not of a training; give the run folder, not a checkpoint")
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    metrics = {key: Series([], []) for key in KEYS}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        event = _parse(line, f"{path}:{number}")
        for key in event.keys() & metrics.keys():
            metrics[key].steps.append(event["step"])
            metrics[key].values.append(math.nan if event[key] is None else float(event[key]))
    return metrics


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(
            f"{where}: is not JSON: the file is damaged; remove this line, or copy the file again"
        ) from None
    if not (
        isinstance(event, dict)
        and type(event.get("step")) is int
        and 0 <= event["step"] < LARGEST
        and all(event.get(key) is None or _is_number(event[key]) for key in KEYS)
    ):
        raise UserError(f"{where}: is not an event of a training; remove this line, or copy the file again")
    return event


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST  # type: ignore[arg-type]
