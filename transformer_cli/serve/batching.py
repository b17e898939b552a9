"""Lines of many requests, joined into batches: one `Batcher` stands before each model.

Handlers of requests await `translate`; threads search. A batch takes lines by turns of the requests that wait, so that
one line is never behind a whole list, and long lines have batches of their own, of which one is searched at a time.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from transformer_cli.decoding.translation import Translation

WINDOW = 0.005  # seconds, at most, that a batch waits for more lines
STEPS = 5  # in which it looks whether any more have come
MOST_LINES = 128  # of a batch
MOST_CHARACTERS = 16_000
LONG_LINE = 400  # characters, from which a line counts as long
SHARE = 32  # lines that a request has in one turn
AT_ONCE = 8  # lines handed out before others, such as /health, have a turn of the event loop
THREADS = 2  # one prepares its batch while the other one's is searched


class QueueFull(Exception):
    """More lines wait than there is room for."""


@dataclass(frozen=True)
class Wish:
    """What is asked of a line's translation; only lines with the same wish are searched together."""

    n_best: int = 1
    alignments: bool = False
    glossary: str | None = None
    protect: bool = True


Search = Callable[[list[str], Wish], list[Translation]]
Kind = tuple[Wish, bool]  # and whether the line is long


@dataclass(eq=False)
class _Job:
    """A line that waits, or is being searched for."""

    text: str
    wish: Wish
    future: "asyncio.Future[Translation]"
    wanted: int = 0  # by how many requests
    queued: bool = False

    def __post_init__(self) -> None:
        self.future.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever looks at it

    @property
    def kind(self) -> Kind:
        return self.wish, len(self.text) >= LONG_LINE


class Batcher:
    """The queue before one model. All but `search` runs in one event loop."""

    def __init__(self, search: Search, *, most_waiting: int, cached: int = 0) -> None:
        """search: called by threads; most_waiting: lines; cached: how many translations are kept."""
        self.search = search
        self.most_waiting = most_waiting
        self.cached = cached
        self.begins: Callable[[int], None] = lambda lines: None  # called before each batch with its size
        self._queues: dict[Kind, list[tuple[int, int, _Job]]] = {}  # heaps, by turn and age
        self._in_flight: dict[tuple[str, Wish], _Job] = {}
        self._cache: OrderedDict[tuple[str, Wish], Translation] = OrderedDict()
        self._turn = self._age = 0
        self.waiting = 0  # lines
        self._joins = False  # whether the last batch had several lines
        self._long_under_way = False
        self._arrived = asyncio.Event()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="search")
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._workers = [asyncio.create_task(self._work()) for _ in range(THREADS)]

    async def close(self) -> None:
        """Stop; what is not done yet is left."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def translate(self, texts: Sequence[str], wish: Wish) -> list[Translation]:
        """Return the translation of each line; raises `QueueFull`, and what `search` raises for a line of its own."""
        if self.waiting and self.waiting + len(texts) > self.most_waiting:
            raise QueueFull
        found: list[Translation | _Job] = [self._known(text, wish) for text in texts]
        jobs = [job for job in found if isinstance(job, _Job)]
        new = [job for job in dict.fromkeys(jobs) if not job.queued]
        for place, job in enumerate(sorted(new, key=lambda job: len(job.text))):
            self._age += 1
            job.queued = True
            heap = self._queues.setdefault(job.kind, [])
            heapq.heappush(heap, (self._turn + place // SHARE, self._age, job))
        self.waiting += len(new)
        for job in jobs:
            job.wanted += 1
        self._arrived.set()
        try:
            return [await asyncio.shield(one.future) if isinstance(one, _Job) else one for one in found]
        finally:
            for job in jobs:
                job.wanted -= 1

    def _known(self, text: str, wish: Wish) -> Translation | _Job:
        """Return the translation from the cache, the job that is in flight for it, or a new one."""
        key = text, wish
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        if key not in self._in_flight:
            self._in_flight[key] = _Job(text, wish, asyncio.get_running_loop().create_future())
        return self._in_flight[key]

    async def _work(self) -> None:
        while True:
            if not any(self._ready()):
                self._arrived.clear()
                await self._arrived.wait()
            await self._window()
            if batch := self._take():
                long = batch[0].kind[1]
                self._long_under_way |= long
                try:
                    await self._run(batch)
                finally:
                    if long:
                        self._long_under_way = False
                        self._arrived.set()

    def _ready(self) -> Iterator[tuple[int, int, Kind]]:
        """Yield the turn, age and kind of the first line of each queue that may be searched now."""
        for kind, heap in self._queues.items():
            if heap and not (kind[1] and self._long_under_way):
                yield (*heap[0][:2], kind)

    async def _window(self) -> None:
        """Wait until no more lines come, or the window ends; not at all where lines come one by one."""
        for _ in range(STEPS if self._joins else 0):
            before = self._age
            if self.waiting >= MOST_LINES:
                return
            await asyncio.sleep(WINDOW / STEPS)
            if self._age == before:
                return

    def _take(self) -> list[_Job]:
        """Return the lines whose turn it is, of one kind; those that nobody wants any more are dropped."""
        *_, kind = min(self._ready(), default=(0, 0, None))
        if kind is None:
            return []
        batch: list[_Job] = []
        characters = 0
        heap = self._queues[kind]
        while heap and len(batch) < MOST_LINES and (not batch or characters < MOST_CHARACTERS):
            turn, _, job = heapq.heappop(heap)
            self.waiting -= 1
            if not job.wanted:
                self._forget(job)
                continue
            self._turn = max(self._turn, turn)
            characters += len(job.text)
            batch.append(job)
        if not heap:
            del self._queues[kind]
        self._joins = len(batch) > 1
        return batch

    def _forget(self, job: _Job) -> None:
        self._in_flight.pop((job.text, job.wish), None)
        job.future.cancel()

    async def _run(self, batch: Sequence[_Job]) -> None:
        """Search for a batch; where it fails, for each line by itself, so that no line answers for another."""
        self.begins(len(batch))
        loop, wish = asyncio.get_running_loop(), batch[0].wish
        try:
            found = await loop.run_in_executor(self._threads, self.search, [job.text for job in batch], wish)
        except Exception as error:
            if len(batch) > 1:
                for job in batch:
                    await self._run([job])
                return
            self._in_flight.pop((batch[0].text, wish), None)
            if batch[0].wanted:
                batch[0].future.set_exception(error)
            return
        for place, (job, translation) in enumerate(zip(batch, found, strict=True), start=1):
            if place % AT_ONCE == 0:
                await asyncio.sleep(0)
            self._in_flight.pop((job.text, wish), None)
            job.future.set_result(translation)
            if self.cached:
                self._cache[job.text, wish] = translation
                if len(self._cache) > self.cached:
                    self._cache.popitem(last=False)
