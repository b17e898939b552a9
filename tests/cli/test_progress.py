"""What is left is told from how much of the input was read; what an earlier command did makes nothing faster."""

import gzip
import io
import time
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.cli import streams
from transformer_cli.cli.streams import Progress, TextInput, open_input


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(streams, "LOG_SECONDS", 1.0)
    return now


@pytest.mark.parametrize(
    ("total", "left"),
    [
        (None, ""),
        (120, ", 17%, about 50 s left"),
        (1220, ", 2%, about 10 min left"),
        (40_020, ", 0%, about 5 h 33 min left"),
    ],
)
def test_the_rest_takes_as_long_as_the_speed_so_far_says(
    total: int | None, left: str, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("translated", estimate=lambda: total) as progress:
        clock[0] += 10
        progress(20)
        assert capsys.readouterr().err == f"translated: 20 lines in 10.0 s (2.0 lines/s){left}\n"
        progress(21)  # not again so soon
    assert capsys.readouterr().err == "translated: 21 lines in 10.0 s (2.1 lines/s)\n"


def test_what_was_done_before_makes_nothing_faster(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("translated", estimate=lambda: 1050) as progress:
        progress(1000, 1000)
        clock[0] += 10
        progress(1010, 1000)
        said = "translated: 1,010 lines (1,000 of them before) in 10.0 s (1.0 lines/s)"
        assert capsys.readouterr().err == f"{said}, 96%, about 40 s left\n"
    assert capsys.readouterr().err == said + "\n"


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_how_many_lines_there_are_is_guessed_from_those_read(name: str, tmp_path: Path) -> None:
    content = "".join(f"{number:>49}\n" for number in range(40_000)).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with open_input(None, tmp_path / name) as lines:
        assert lines.estimate() is None
        reading = iter(lines)
        for _ in range(20_000):
            next(reading)
        guess: Any = lines.estimate()
        assert 0.6 * 40_000 < guess < 1.4 * 40_000
        assert sum(1 for _ in reading) == 20_000
        assert lines.estimate() == pytest.approx(40_000, rel=0.01)


def test_of_a_pipe_nothing_is_guessed() -> None:
    lines = TextInput(io.BytesIO(b"a\nb\n"), "stdin")
    next(iter(lines))
    assert lines.estimate() is None
