"""How fast `tfm serve` answers, beside the engine alone and beside itself without joining; ratios of one run.

    python benchmarks/serving.py MODEL TEXT_FILE [--compute-type int8] [--clients 64] [--lines 1000] [--soak REQUESTS]
        [--beside PORT]

Servers and clients share the machine, as they do where one tries it out. Nothing is sent but over the loopback.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from transformer_cli.decoding.loading import FoundModel
from transformer_cli.jobs.translating import TranslationOptions

WITHOUT_JOINING = (
    "import sys; from transformer_cli.serve import batching; batching.MOST_LINES = 1; "
    "from transformer_cli.cli.app import main; sys.exit(main(sys.argv[1:]))"
)
LANGUAGES: dict[str, str] = {}  # of the model


class Server:
    """A `tfm serve` of its own, on a free port."""

    def __init__(self, arguments: Sequence[str], *, joins: bool) -> None:
        start = ["-m", "transformer_cli"] if joins else ["-c", WITHOUT_JOINING]
        self.process = subprocess.Popen(
            [sys.executable, *start, "serve", *arguments, "--greedy", "--port", "0", "--quiet"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.port = int(self.process.stderr.readline().rpartition(":")[2])

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, q: str | list[str]) -> bytes:
    """Send one request over a connection that stays open; return the answer's body."""
    body = json.dumps({"q": q, **LANGUAGES}).encode()
    head = (
        f"POST /translate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200"), answer
    length = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(length)


async def clients(port: int, count: int, lines: Sequence[str]) -> list[float]:
    """Let some clients translate lines, each one at a time; return how long each line took."""
    waiting = iter(lines)
    took: list[float] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for line in waiting:
            begun = time.perf_counter()
            await ask(reader, writer, line)
            took.append(time.perf_counter() - begun)
        writer.close()

    await asyncio.gather(*(one() for _ in range(count)))
    return took


def rate(port: int, count: int, lines: Sequence[str]) -> tuple[float, float, float]:
    """Return lines a second, and the median and 99th percentile of what each took, in milliseconds."""
    begun = time.perf_counter()
    took = asyncio.run(clients(port, count, lines))
    seconds = time.perf_counter() - begun
    return len(lines) / seconds, 1000 * statistics.median(took), 1000 * statistics.quantiles(took, n=100)[98]


def in_milliseconds(took: Sequence[float]) -> str:
    """Return the median and the 99th percentile."""
    return f"median {1000 * statistics.median(took):.0f} ms, p99 {1000 * statistics.quantiles(took, n=100)[98]:.0f} ms"


def be_clients(port: int, count: int, lines: Sequence[str], languages: dict[str, str]) -> None:
    """Ask for all lines, in a process of its own."""
    LANGUAGES.update(languages)
    asyncio.run(clients(port, count, lines))


async def health_beside(port: int, count: int, lines: Sequence[str], slow: int = 200) -> list[float]:
    """Return how long `/health` took, again and again, beside clients and connections that never finish a request.

    The clients are in another process, so that nothing but the server is waited for.
    """
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(slow)]
    for _, writer in idle:
        writer.write(b"POST /transl")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took: list[float] = []
    work = multiprocessing.Process(target=be_clients, args=(port, count, lines, LANGUAGES))
    work.start()
    while work.is_alive():
        begun = time.perf_counter()
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"}")
        took.append(time.perf_counter() - begun)
        await asyncio.sleep(0.02)
    for _, one in [*idle, (reader, writer)]:
        one.close()
    return took


def soak(arguments: Sequence[str], count: int, requests: int, lines: Sequence[str]) -> None:
    """Print the memory of a server after each tenth of very many requests."""
    draw = random.Random(1)
    with Server([*arguments, "--cache", "500"], joins=True) as server:
        for tenth in range(1, 11):
            asyncio.run(clients(server.port, count, draw.choices(lines, k=requests // 10)))
            pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
            print(f"  {tenth * requests // 10:,} requests: {pages * os.sysconf('SC_PAGE_SIZE') / 2**20:.1f} MiB")


def start_against_torch(arguments: Sequence[str]) -> float:
    """Return how long a server takes until it answers, as a multiple of `import torch`; of three tries each."""
    ours, torch = [], []
    for _ in range(3):
        begun = time.perf_counter()
        with Server(arguments, joins=True):
            ours.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        torch.append(time.perf_counter() - begun)
    return statistics.median(ours) / statistics.median(torch)


async def whole_list(port: int, lines: list[str]) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    begun = time.perf_counter()
    await ask(reader, writer, lines)
    seconds = time.perf_counter() - begun
    writer.close()
    return seconds


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--compute-type", default="int8")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument(
        "--beside", type=int, help="the port of another server of the same model, such as LibreTranslate"
    )
    parser.add_argument("--soak", type=int, help="only this many requests, and the server's memory")
    given = parser.parse_args()
    lines = given.text.read_text(encoding="utf-8").splitlines()[: given.lines]
    found = FoundModel.at(given.model)
    LANGUAGES.update(source=found.config.data.source_language, target=found.config.data.target_language)
    arguments = [given.model, "--compute-type", given.compute_type]
    if given.soak:
        soak(arguments, given.clients, given.soak, lines)
        return

    options = TranslationOptions(found, compute_type=given.compute_type, search={"method": "greedy"})
    translator = options.load_translator()
    list(translator.translate_lines(lines[:64], options.search_options))
    alone = []
    for line in lines[:100]:
        begun = time.perf_counter()
        list(translator.translate_lines([line], options.search_options, 1))
        alone.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    list(translator.translate_lines(lines, options.search_options))
    batches = time.perf_counter() - begun
    print(f"engine alone: one line {1000 * statistics.median(alone):.1f} ms, {len(lines) / batches:,.0f} lines/s")

    rates = []
    lists = []
    for joins in (True, False):
        with Server(arguments, joins=joins) as server:
            asyncio.run(clients(server.port, 1, lines[:64]))  # warm
            print("joining requests" if joins else "without joining")
            _, median, _ = rate(server.port, 1, lines[:100])
            print(f"  1 client: median {median:.1f} ms, {median / 1000 / statistics.median(alone):.2f} × the engine's")
            found_rate, median, slowest = rate(server.port, given.clients, lines * 2)
            rates.append(found_rate)
            print(f"  {given.clients} clients: {found_rate:,.0f} lines/s, median {median:.0f} ms, p99 {slowest:.0f} ms")
            if joins:
                lists.append(asyncio.run(whole_list(server.port, lines)))
                print(f"  a list of {len(lines):,}: {batches / lists[0]:.2f} × the engine's rate")
                took = asyncio.run(health_beside(server.port, given.clients, lines))
                print(f"  /health beside all that and 200 slow connections: {in_milliseconds(took)}")
    print(f"joining: {rates[0] / rates[1]:.2f} × the rate")
    if given.beside:
        asyncio.run(clients(given.beside, 1, lines[:64]))
        found_rate, median, slowest = rate(given.beside, given.clients, lines)
        print(f"the other server, {given.clients} clients: {found_rate:,.0f} lines/s, median {median:.0f} ms", end="")
        print(f", p99 {slowest:.0f} ms; tfm's rate is {rates[0] / found_rate:.1f} × as high")
        share = asyncio.run(whole_list(given.beside, lines)) / lists[0]
        print(f"  a list of {len(lines):,}: tfm's rate is {share:.1f} × as high")
    print(f"until it answers: {start_against_torch(arguments):.2f} × import torch")


if __name__ == "__main__":
    main()
