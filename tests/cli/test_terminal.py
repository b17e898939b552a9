"""No text of the user's steers a terminal; files get every byte."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.cli.streams import _BUT_OF_BARS, Terminal, shown

TFM = [sys.executable, "-m", "transformer_cli"]
OWNED = "https://a.b/\033]0;owned\007\u009b2J"
WRITTEN = r"https://a.b/\x1b]0;owned\x07\x9b2J"
CONTROLS = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))} - {"\n", "\t"}


def on_terminal(command: Sequence[object], **files: Any) -> tuple[int, str]:
    """What a command leaves with, and what the terminal got on stdout and stderr."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*TFM, *map(str, command)], **{"stdout": theirs, "stderr": theirs, **files})
    os.close(theirs)
    got = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not part:
            break
        got += part
    os.close(ours)
    return process.wait(), got.decode().replace("\r\n", "\n")


def test_what_a_terminal_gets_says_which_characters_there_were() -> None:
    every = "".join(map(chr, range(0x200)))
    assert not CONTROLS & set(shown(every))
    assert shown("a\tb\nc é 漢 😀 \x1b[1m\r") == "a\tb\nc é 漢 😀 \\x1b[1m\\r"


@pytest.mark.medium
@pytest.mark.parametrize(
    "options", [[], pytest.param(["--format", "tsv", "-o", "/dev/stdout"], marks=pytest.mark.slow)]
)
def test_protected_text_does_not_steer_the_terminal(trial: Any, options: list[str]) -> None:
    code, got = on_terminal(["translate", trial.run, OWNED, *options, "--engine", "torch", "--device", "cpu"])
    assert code == 0
    assert WRITTEN in got
    assert not CONTROLS & set(got)


def test_a_file_keeps_the_bytes(trial: Any, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        code, got = on_terminal(["translate", trial.run, OWNED], stdout=out)
    assert (code, CONTROLS & set(got)) == (0, set())
    assert (tmp_path / "out").read_text() == OWNED + "\n"


@pytest.mark.medium
def test_what_commands_print_does_not_either(trial: Any) -> None:
    code, got = on_terminal(["translate", trial.run, "--trace", "hund \033]0;owned\007"])
    assert code == 0
    assert not CONTROLS & set(got)


def test_errors_and_warnings_do_not_either(trial: Any, tmp_path: Path) -> None:
    code, got = on_terminal(["translate", tmp_path / "no\033[2Jmodel", "hund"])
    assert (code, r"no\x1b[2Jmodel" in got) == (2, True)
    assert not CONTROLS & set(got)


def test_progress_bars_still_draw() -> None:
    raw = io.BytesIO()
    terminal = Terminal(io.TextIOWrapper(raw, "utf-8"), _BUT_OF_BARS)
    print("\r 10%\x1b[A", "a\x1b]0;owned\x07\x1b[2J\x9b", file=terminal, flush=True)
    assert raw.getvalue().decode() == "\r 10%\x1b[A a\\x1b]0;owned\\x07\\x1b[2J\\x9b\n"
