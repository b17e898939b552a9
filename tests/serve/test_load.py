"""Many clients at once, beside slow ones, while the server is killed and its models change: no wrong answer."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import GLOSSES
from tests.serve.conftest import translate
from tests.serve.test_server import Server

pytestmark = pytest.mark.slow
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def some_lines(count: int) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(list(GLOSSES), k=draw.randint(1, 12))) + " ." for _ in range(count)]


def opening(serving: Server) -> Callable[[], Awaitable[Streams]]:
    host, port = serving.url.removeprefix("http://").split(":")
    return lambda: asyncio.open_connection(host, int(port))


async def ask(streams: Streams, text: str) -> str:
    """Ask over a connection that stays open."""
    reader, writer = streams
    body = json.dumps(translate(q=text)).encode()
    kind = b"content-type: application/json\r\n"
    writer.write(b"POST /translate HTTP/1.1\r\nhost: x\r\n%scontent-length: %d\r\n\r\n" % (kind, len(body)) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return str(json.loads(await reader.readexactly(length))["translatedText"])


async def ask_for_all(serving: Server, lines: Sequence[str], clients: int) -> list[str]:
    """Let some clients ask for all lines; whoever loses its connection asks again over a new one."""
    connect = opening(serving)
    answers: dict[int, str] = {}
    waiting = iter(enumerate(lines))

    async def one() -> None:
        streams = None
        for place, line in waiting:
            while place not in answers:
                try:
                    streams = streams or await connect()
                    answers[place] = await ask(streams, line)
                except (OSError, asyncio.IncompleteReadError):
                    if streams is not None:
                        streams[1].close()
                    streams = None
                    await asyncio.sleep(0.05)
        if streams is not None:
            streams[1].close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return [answers[place] for place in range(len(lines))]


def right_answers(serving: Server, lines: Sequence[str]) -> list[set[str]]:
    """Ask for each line within one list and alone.

    The sums of a batch are rounded otherwise than those of one line, so that of two tokens whose scores are as good as
    equal, as those of a model of random weights may be, either can win.
    """
    listed, alone = (
        serving.ask(q=list(lines), **translate())["translatedText"],
        asyncio.run(ask_for_all(serving, lines, 1)),
    )
    answers = [{*both} for both in zip(listed, alone, strict=True)]
    assert sum(len(both) > 1 for both in answers) <= 0.005 * len(lines)
    return answers


def test_many_clients_beside_slow_ones(models: dict[str, Path]) -> None:
    serving = Server(models["de-en"], "--greedy", "--quiet", "--max-texts", 5000)
    lines = some_lines(64 * 50)

    async def work() -> list[str]:
        connect = opening(serving)
        slow = [await connect() for _ in range(200)]
        answered = 0

        async def be_slow() -> None:
            while True:
                for _, writer in slow:
                    with contextlib.suppress(OSError):  # it was cut, as it should be
                        writer.write(b"x")
                await asyncio.sleep(0.5)

        async def look() -> None:
            nonlocal answered
            reader, writer = await connect()
            with contextlib.closing(writer):
                while True:
                    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
                    await reader.readexactly(len(b'{"status":"ok"}'))
                    answered += 1
                    await asyncio.sleep(0.05)

        beside = [asyncio.create_task(be_slow()), asyncio.create_task(look())]
        try:
            return await ask_for_all(serving, lines, 64)
        finally:
            for task in beside:
                assert not task.done() or not task.exception()
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            assert answered > 5
            for _, writer in slow:
                writer.close()

    try:
        answers, right = asyncio.run(work()), right_answers(serving, lines)
        assert all(answer in either for answer, either in zip(answers, right, strict=True))
    finally:
        assert serving.end() == 143


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_are_right_through_kills_restarts_and_new_models(
    workers: int, models: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(models["de-en"], run)
    index = json.loads((run / "checkpoints.json").read_text())
    lines = some_lines(3000)

    def start(port: str = "0") -> Server:
        return Server(run, "--greedy", "--quiet", "--max-texts", 5000, "--workers", workers, "--port", port)

    serving = start()
    port = serving.url.rpartition(":")[2]
    first = right_answers(serving, lines)

    async def disturb() -> Server:
        server = serving
        for number in (signal.SIGTERM, signal.SIGKILL):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.end, number)
            server = await asyncio.to_thread(start, port)
        (run / "checkpoints.json").write_text(json.dumps(index | {"best": [2]}))
        server.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(server.hear, "loaded anew")
        return server

    async def work() -> tuple[Server, list[str]]:
        disturbing = asyncio.create_task(disturb())
        answers = await ask_for_all(serving, lines, 16)
        while not disturbing.done():
            answers += await ask_for_all(serving, lines[:50], 16)
        return disturbing.result(), answers

    serving, answers = asyncio.run(work())
    second = right_answers(serving, lines)
    assert serving.end() == 143
    assert not first[0] & second[0]
    for place, answer in enumerate(answers):
        line = place if place < len(lines) else (place - len(lines)) % 50
        assert answer in first[line] | second[line]


def test_memory_stays_flat(models: dict[str, Path]) -> None:
    serving = Server(models["de-en"], "--greedy", "--quiet", "--cache", 1000)
    lines = some_lines(2000)

    def resident() -> int:
        rows = Path(f"/proc/{serving.process.pid}/statm").read_text().split()
        return int(rows[1]) * os.sysconf("SC_PAGE_SIZE")

    asyncio.run(ask_for_all(serving, lines * 4, 32))
    before = resident()
    asyncio.run(ask_for_all(serving, lines * 10, 32))
    after = resident()
    assert serving.end() == 143
    assert abs(after - before) < 0.05 * before
