"""Programs that are compared, each in a process of its own: none gains from another's settings, and memory is known.

`Contender` starts one and has it take its turns. This file is also the program of that process:

    python contender.py MODULE WORK SETTINGS

MODULE, in contenders/, has `start(work, **settings)`, which returns a function that does one turn and returns what is
known of it; WORK is a JSON file with what all contenders work on, SETTINGS a JSON object. Each line of stdin is a turn:
a JSON object of the function's arguments. Each is answered with a line of JSON; so is the start, with the versions of
the module's LIBRARIES, and the end of stdin, with the memory taken. Works under another interpreter too: needs what the
module imports.
"""

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from machine import process_memory

ROOT = Path(__file__).parents[1]


@dataclass
class Contender:
    """A row of a table, and the process behind it. Once that has failed, `failure` says how, and turns are left out."""

    key: str  # as the command line calls it
    name: str  # as the table does
    module: str  # in contenders/
    settings: dict[str, Any] = field(default_factory=dict)
    failure: str | None = "not started"
    versions: list[str] = field(default_factory=list)  # of the libraries that it computes with
    turns: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # answers by task, with the turn's `seconds`
    memory: dict[str, int] = field(default_factory=dict)  # bytes: `peak`, and `working` on top of the work itself

    _process: subprocess.Popen[str] | None = None
    _errors: IO[str] | None = None

    def start(self, work: Path, threads: int, interpreter: str = sys.executable) -> None:
        """Start the process and wait until it is ready."""
        numbers = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [interpreter, __file__, self.module, str(work), json.dumps(self.settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **numbers, "PYTHONPATH": str(ROOT), "TRANSFORMERS_OFFLINE": "1"},
                text=True,
            )
        except OSError as error:
            self.failure = str(error)
            return
        self.failure = None
        self.versions = self._read().get("versions", [])

    def turn(self, task: str = "", **arguments: object) -> None:
        """One turn of a task."""
        if self.failure is None and self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):  # it has ended; its last words follow
                print(json.dumps(arguments), file=self._process.stdin, flush=True)
            if answer := self._read():
                self.turns.setdefault(task, []).append(answer)

    def end(self) -> None:
        """End the process, which reports what memory it took."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with suppress(OSError):
                self._process.stdin.close()
            if self.failure is None:
                self.memory = self._read()
            self._process.stdout.close()
            self._process.wait()
        if self._errors is not None:
            self._errors.close()

    def seconds(self, task: str = "") -> list[float]:
        """The time of each turn."""
        return [turn["seconds"] for turn in self.turns.get(task, [])]

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._errors is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._errors.seek(0)
        words = [text.strip() for text in self._errors.read().splitlines() if text.strip()]
        self.failure = words[-1] if words else f"ended with exit code {self._process.wait()}"
        return {}


def take_turns(entries: Sequence[Contender], number: int, task: str = "", **arguments: object) -> None:
    """Round `number` of a task: who begins moves on by one each round, so that none always follows the same other."""
    for place in range(len(entries)):
        entries[(number + place) % len(entries)].turn(task, **arguments)


def ratio(entry: Contender, other: Contender | None, task: str = "") -> str:
    """How many times as fast as the other: the median of the rounds."""
    ours, theirs = entry.seconds(task), other.seconds(task) if other and other.failure is None else []
    if not ours or not theirs:
        return "–"
    return f"{statistics.median(b / a for a, b in zip(ours, theirs, strict=True)):.2f}"


def main() -> None:
    """Take the turns that stdin asks for."""
    module, path, settings = sys.argv[1:]
    replies: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no reply

    def reply(**values: object) -> None:
        print(json.dumps(values), file=replies, flush=True)

    program = importlib.import_module(f"contenders.{module}")
    work = json.loads(Path(path).read_text(encoding="utf-8"))
    before = process_memory("RssAnon")
    turn = program.start(work, **json.loads(settings))
    reply(versions=[f"{name} {version(name)}" for name in program.LIBRARIES])
    for line in sys.stdin:
        arguments = json.loads(line)
        began = time.perf_counter()
        known = turn(**arguments)
        reply(seconds=time.perf_counter() - began, **known)
    in_files = process_memory("VmRSS") - process_memory("RssAnon")
    reply(peak=process_memory("VmHWM"), working=process_memory("VmHWM") - in_files - before)


if __name__ == "__main__":
    main()
