"""Streams: a line is answered while the next is not yet there; readers may leave; memory stays flat."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

TFM = [sys.executable, "-m", "transformer_cli"]
ANSWER_SECONDS = 1.0


def test_each_line_of_a_pipe_is_answered_within_a_second(trial: Any) -> None:
    """As from `tail -f`: the pipe stays open, and the next line comes after the answer to the last."""
    run = [*TFM, "translate", str(trial.run), "--stream", "--no-guard"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(run, stdin=pipe, stdout=pipe, stderr=pipe, env=buffered) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        waits = []
        for number in range(4):
            process.stdin.write(f"ein hund {number}\n".encode())
            process.stdin.flush()
            began = time.monotonic()
            assert process.stdout.readline().endswith(b"\n")
            waits.append(time.monotonic() - began)
        process.stdin.close()
        assert process.wait() == 0
        watchdog.cancel()
    assert sorted(waits[1:])[1] < ANSWER_SECONDS, waits  # the first waits for the model


@pytest.mark.medium
def test_a_reader_that_leaves_ends_it_without_a_word(trial: Any, tmp_path: Path) -> None:
    """`tfm translate … | head -n 1`"""
    source = tmp_path / "source"
    source.write_text("ein hund\n" * 8000)
    run = [*TFM, "translate", str(trial.run), "-i", str(source), "--greedy", "--quiet"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141, "as sort and grep end"


def leave(command: list[object]) -> tuple[int, str]:
    """What a command ends with, and says, whose output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*TFM, *map(str, command)], stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", [["--help"], ["translate", "-h"], ["plot"], ["--version"], ["--show-completion"]])
def test_whatever_prints_may_lose_its_reader(command: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/bash")
    assert leave(command) == (141, "")


def test_a_file_is_whole_though_nobody_reads_the_rest(trial: Any, tmp_path: Path) -> None:
    files = ["--source", trial.source, "--reference", trial.reference, "-o", tmp_path / "out"]
    code, said = leave(["evaluate", trial.run, *files, "--metric", "bleu", "--greedy", "-q"])
    assert (code, said.count("error"), said.count("Traceback")) == (141, 0, 0), said
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text().count("\n") == trial.source.read_text().count("\n")


@pytest.mark.slow
def test_processes_end_with_the_one_whose_reader_left(trial: Any, tmp_path: Path) -> None:
    """`tfm translate --jobs 2 -o out 2>&1 | head -n 1`: at its next word the first process ends, and so do all."""
    source = tmp_path / "source"
    source.write_text("ein hund\n" * 4000)
    run = [*TFM, "translate", str(trial.run), "-i", str(source), "-o", str(tmp_path / "out"), "--jobs", "2"]
    with subprocess.Popen(run, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline()
        process.stderr.close()
        assert process.wait() == 141
    until = time.monotonic() + 10
    while alive(process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive(process.pid)
    assert not list(tmp_path.rglob("*.tmp"))
    if (tmp_path / "out").exists():
        assert (tmp_path / "out").read_text().count("\n") == 4000


def alive(session: int) -> list[str]:
    """Processes of a session that still run."""
    found = subprocess.run(["ps", "-o", "pid=,stat=,args=", "-s", str(session)], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if line.split()[1][0] != "Z"]


def test_a_pipe_between_our_own_processes_is_no_reader() -> None:
    from transformer_cli.cli.streams import has_no_reader

    assert not has_no_reader(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert not has_no_reader(OSError(errno.ENOSPC, "No space left on device", "stdout"))
    assert has_no_reader(BrokenPipeError(errno.EPIPE, "Broken pipe", "stdout"))


@pytest.mark.medium
def test_streams_that_are_closed(trial: Any, tmp_path: Path) -> None:
    """Closed, as some schedulers leave them: stdout is missed where it is needed, stderr never."""

    def run(arguments: str, redirected: str) -> subprocess.CompletedProcess[str]:
        command = f'exec "$0" -m transformer_cli translate "$1" "ein hund" {arguments} {redirected}'
        shell = ["sh", "-c", command, sys.executable, str(trial.run)]
        return subprocess.run(shell, capture_output=True, text=True, cwd=tmp_path)

    whole = run("", "")
    assert (whole.returncode, whole.stdout.count("\n")) == (0, 1), whole.stderr
    assert run("", "2>&-").stdout == whole.stdout
    assert run("--beam 2 --greedy", "2>&-").stdout == ""
    refused = run("", ">&-")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.startswith("error: stdout is closed")
    kept = run("-o kept", ">&-")
    assert kept.returncode == 0, kept.stderr
    assert (tmp_path / "kept").read_text() == whole.stdout


def peak_memory(trial: Any, source: Path, *options: str) -> int:
    """Bytes, the model and Python included."""
    run = [*TFM, "translate", str(trial.run), "-i", str(source), "-o", "/dev/null", "--greedy", "--quiet", *options]
    with subprocess.Popen(run, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(trial: Any, tmp_path: Path) -> None:
    """200,000 lines, of lengths that differ, need no more than 20,000 do."""
    choose = [f"{'ein hund sieht ' * (number % 5)}zwei katzen {number}\n" for number in range(20_000)]
    few, many = tmp_path / "few", tmp_path / "many"
    few.write_text("".join(choose))
    many.write_text("".join(choose) * 10)
    small, large = peak_memory(trial, few), peak_memory(trial, many)
    assert large < small + 30e6, (small, large)
