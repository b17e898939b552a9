"""A program that a benchmark talks to: it is told a line and answers with one line of JSON, or it has failed."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Conversation:
    """A Python program in a process of its own, with so many threads; `ready` is what it says when it has started."""

    def __init__(self, interpreter: str, program: Path, arguments: Sequence[str], threads: int) -> None:
        self.failure: str | None = None
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        numbers = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        try:
            self._process = subprocess.Popen(
                [interpreter, str(program), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, **numbers, "PYTHONPATH": str(ROOT), "TRANSFORMERS_OFFLINE": "1"},
                text=True,
            )
        except OSError as error:
            self.failure = str(error)
        self.ready = self._read()

    def ask(self, command: str) -> dict[str, Any]:
        """Its answer; empty once it has failed, and `failure` says how."""
        if self.failure is not None or self._process is None:
            return {}
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended; its last words follow
            print(command, file=self._process.stdin, flush=True)
        return self._read()

    def end(self) -> dict[str, Any]:
        """Tell it to end; its last answer."""
        answer = self.ask("end")
        if self._process:
            self._process.communicate()
        self._errors.close()
        return answer

    def _read(self) -> dict[str, Any]:
        if self._process is None:
            return {}
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._errors.seek(0)
        words = [text.strip() for text in self._errors.read().splitlines() if text.strip()]
        self.failure = words[-1] if words else f"ended with exit code {self._process.wait()}"
        return {}
