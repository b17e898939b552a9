"""Lines of many requests are searched together, by turns, each once; what fails or is not wanted hurts no other."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from transformer_cli.decoding.constraints import Line
from transformer_cli.decoding.translation import Candidate, Translation
from transformer_cli.serve import batching
from transformer_cli.serve.batching import LONG_LINE, MOST_LINES, Batcher, QueueFull, Wish

T = TypeVar("T")
PLAIN = Wish()
LONG = "x" * LONG_LINE


def translation(text: str) -> Translation:
    return Translation(Line(text), [], [Candidate(text.upper(), 0.0, 0.0, [], None, True)])


class Engine:
    """Notes what is searched together; takes `seconds` a batch, and waits at texts that begin with x for `go`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.batches: list[list[str]] = []
        self.go = threading.Event()

    def search(self, texts: list[str], wish: Wish) -> list[Translation]:
        self.batches.append(texts)
        time.sleep(self.seconds)
        if texts[0].startswith("x"):
            assert self.go.wait(10)
        for text in texts:
            if text.startswith("bad"):
                raise ValueError(text)
        return [translation(text) for text in texts]


def run(engine: Engine, work: Callable[[Batcher], Awaitable[T]], **options: Any) -> T:
    async def main() -> T:
        batcher = Batcher(engine.search, **{"most_waiting": 10_000, **options})
        batcher.start()
        try:
            async with asyncio.timeout(20):
                return await work(batcher)
        finally:
            engine.go.set()
            await batcher.close()

    return asyncio.run(main())


async def ask(batcher: Batcher, *texts: str, wish: Wish = PLAIN) -> list[str]:
    return [one.text for one in await batcher.translate(texts, wish)]


async def keep_busy(batcher: Batcher) -> "list[asyncio.Task[list[str]]]":
    busy = []
    for number in range(batching.THREADS):
        busy.append(asyncio.create_task(ask(batcher, f"x{number}")))
        await asyncio.sleep(0.05)
    return busy


def test_requests_that_wait_are_joined() -> None:
    engine = Engine(0.01)

    async def work(batcher: Batcher) -> list[list[str]]:
        return await asyncio.gather(*(ask(batcher, f"text {number}") for number in range(200)))

    assert run(engine, work) == [[f"TEXT {number}"] for number in range(200)]
    assert len(engine.batches) < 10
    assert max(map(len, engine.batches)) <= MOST_LINES


def test_a_line_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "WINDOW", 100.0)
    run(Engine(), lambda batcher: ask(batcher, "a"))


def test_a_window_gathers_what_comes_while_there_is_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "WINDOW", 1.0)
    engine = Engine()

    async def work(batcher: Batcher) -> None:
        await ask(batcher, "a", "b")
        first = asyncio.create_task(ask(batcher, "c"))
        await asyncio.sleep(0.02)
        await asyncio.gather(first, ask(batcher, "d"))

    run(engine, work)
    assert [sorted(batch) for batch in engine.batches] == [["a", "b"], ["c", "d"]]


def test_the_same_line_in_flight_is_searched_once() -> None:
    engine = Engine()

    async def work(batcher: Batcher) -> list[list[str]]:
        asked = [asyncio.create_task(ask(batcher, "x same", "x same")) for _ in range(50)]
        await asyncio.sleep(0.05)
        asked += [asyncio.create_task(ask(batcher, "x same"))]
        await asyncio.sleep(0.05)
        engine.go.set()
        return await asyncio.gather(*asked)

    assert {text for texts in run(engine, work) for text in texts} == {"X SAME"}
    assert engine.batches == [["x same"]]


def test_wishes_are_not_mixed() -> None:
    engine = Engine()
    found: list[Wish] = []

    def search(texts: list[str], wish: Wish) -> list[Translation]:
        found.append(wish)
        return [translation(text) for text in texts]

    engine.search = search  # type: ignore[method-assign]

    async def work(batcher: Batcher) -> None:
        await asyncio.gather(ask(batcher, "a"), ask(batcher, "a", wish=Wish(n_best=3)))

    run(engine, work)
    assert sorted(found, key=lambda wish: wish.n_best) == [PLAIN, Wish(n_best=3)]


def test_one_line_is_not_behind_a_whole_list() -> None:
    engine = Engine(0.01)

    async def work(batcher: Batcher) -> int:
        everything = asyncio.create_task(ask(batcher, *(f"line {number}" for number in range(3000))))
        await asyncio.sleep(0.02)
        before = len(engine.batches)
        await ask(batcher, "alone")
        took = len(engine.batches) - before
        assert not everything.done()
        await everything
        return took

    assert run(engine, work) <= 4  # those under way, its own, and one that began beside it


def test_a_long_line_holds_up_no_short_one() -> None:
    engine = Engine()

    async def work(batcher: Batcher) -> None:
        long = [asyncio.create_task(ask(batcher, LONG + str(number))) for number in range(3)]
        await asyncio.sleep(0.05)
        more = asyncio.create_task(ask(batcher, LONG + "more"))
        assert await ask(batcher, "short") == ["SHORT"]
        assert await ask(batcher, "short again") == ["SHORT AGAIN"]
        engine.go.set()
        await asyncio.gather(*long, more)

    run(engine, work)


def test_more_than_may_wait_is_refused() -> None:
    engine = Engine()

    async def work(batcher: Batcher) -> None:
        busy = await keep_busy(batcher)
        waiting = [asyncio.create_task(ask(batcher, f"{kind}{number}")) for kind in "ab" for number in range(2)]
        await asyncio.sleep(0.05)
        assert batcher.waiting == 4
        with pytest.raises(QueueFull):
            await ask(batcher, "c", "d")
        engine.go.set()
        await asyncio.gather(*busy, *waiting)
        assert batcher.waiting == 0
        assert len(await ask(batcher, *map(str, range(20)))) == 20, "a list that is longer than the queue, alone"

    run(engine, work, most_waiting=5)


def test_a_line_that_fails_fails_alone() -> None:
    async def work(batcher: Batcher) -> list[Any]:
        asked = [ask(batcher, text) for text in ("good", "bad", "fine")]
        both = await asyncio.gather(*asked, ask(batcher, "bad 2", "bad 3"), return_exceptions=True)
        assert await ask(batcher, "later") == ["LATER"]
        return both

    good, bad, fine, both = run(Engine(), work)
    assert (good, fine) == (["GOOD"], ["FINE"])
    assert isinstance(bad, ValueError)
    assert isinstance(both, ValueError)


def test_what_nobody_waits_for_is_not_searched() -> None:
    engine = Engine()

    async def work(batcher: Batcher) -> None:
        busy = await keep_busy(batcher)
        left = asyncio.create_task(ask(batcher, "left"))
        shared = [asyncio.create_task(ask(batcher, "shared")) for _ in range(2)]
        gone_and_back = asyncio.create_task(ask(batcher, "back"))
        await asyncio.sleep(0.05)
        for task in (left, shared[0], gone_and_back):
            task.cancel()
        await asyncio.sleep(0)
        back = asyncio.create_task(ask(batcher, "back"))
        await asyncio.sleep(0.05)
        engine.go.set()
        assert await shared[1] == ["SHARED"]
        assert await back == ["BACK"]
        await asyncio.gather(*busy)

    run(engine, work)
    searched = [text for batch in engine.batches for text in batch]
    assert sorted(searched) == ["back", "shared", "x0", "x1"]


def test_the_cache_is_bounded() -> None:
    engine = Engine()

    async def work(batcher: Batcher) -> None:
        for text in ("a", "b", "a", "c", "a", "b"):
            await ask(batcher, text)

    run(engine, work, cached=2)
    assert engine.batches == [["a"], ["b"], ["c"], ["b"]]


def test_no_line_is_lost_in_a_crowd() -> None:
    """Many requests of all sizes, some of which leave: every other one gets its own lines."""

    async def work(batcher: Batcher) -> None:
        async def one(number: int) -> None:
            texts = [f"{number % 37} {place} {'y' * (number * place % 700)}" for place in range(number % 13)]
            if number % 5 == 0:
                await asyncio.sleep(number % 7 / 1000)
            assert await ask(batcher, *texts) == [text.upper() for text in texts]

        tasks = [asyncio.create_task(one(number)) for number in range(400)]
        await asyncio.sleep(0.002)
        for task in tasks[::11]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in found} <= {type(None), asyncio.CancelledError}
        assert not batcher._in_flight
        assert batcher.waiting == 0

    run(Engine(0.001), work, most_waiting=100_000)


def test_others_have_their_turn_while_a_batch_is_handed_out() -> None:
    engine = Engine()

    async def work(batcher: Batcher) -> set[int]:
        turn = 0

        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        async def done(text: str) -> int:
            await ask(batcher, text)
            return turn

        counting = asyncio.create_task(count())
        found = {*await asyncio.gather(*(done(f"{number}") for number in range(MOST_LINES)))}
        counting.cancel()
        return found

    assert len(run(engine, work)) >= MOST_LINES // batching.AT_ONCE
    assert max(map(len, engine.batches)) > batching.AT_ONCE
