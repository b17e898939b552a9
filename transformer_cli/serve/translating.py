"""What a request wants translated: in which languages, with which models, by lines; and what becomes of each text.

`app` calls it for its routes. No torch.
"""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from starlette.requests import Request

from transformer_cli.decoding.chunks import parts_of
from transformer_cli.decoding.translation import Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.layout import Format, Layout
from transformer_cli.serve.batching import QueueFull, Wish
from transformer_cli.serve.files import FORMS, TAGGED, Parts, Results
from transformer_cli.serve.guard import Metrics
from transformer_cli.serve.languages import Detected, plain
from transformer_cli.serve.limits import Keys, Meter, Refused
from transformer_cli.serve.models import Models, ServedModel, Serving
from transformer_cli.serve.parameters import Parameters
from transformer_cli.serve.suggestions import Suggestions

MUCH_TEXT = 10_000  # characters, from which texts are worked on beside the event loop
EACH_TEXT = 100  # characters that a text takes the time of, however short it is
RETRY_AFTER = 1  # seconds, where the queue is full
T = TypeVar("T")


@dataclass
class Service:
    """What the routes share."""

    serving: Serving
    models: Models
    meter: Meter
    keys: Keys | None = None
    cors: Sequence[str] = ()
    suggestions: Suggestions | None = None  # None: none are taken
    results: Results = field(default_factory=Results)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.limits = self.serving.limits
        self._leaving: set[asyncio.Task[None]] = set()
        self._watch()

    def _watch(self) -> None:
        for one in self.models.models:
            one.batcher.begins = self._count_batch

    def _count_batch(self, lines: int) -> None:
        self.metrics.batches.observe(lines)
        self.count_waiting()

    def count_waiting(self) -> None:
        """Note how many lines wait in this process."""
        self.metrics.waiting.set(sum(one.batcher.waiting for one in self.models.models))

    async def reload(self) -> None:
        """Load the models anew and serve them from now on; requests that have begun end with those before.

        Raises `UserError` where one does not load; then all stays as it is.
        """
        new = await asyncio.to_thread(lambda: self.serving.found_again().load())
        new.start()
        old, self.models = self.models, new
        self._watch()
        task = asyncio.create_task(_close_unused(old))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def _close_unused(models: Models) -> None:
    while models.users:
        await asyncio.sleep(0.05)
    await models.close()
    del models
    gc.unfreeze()  # see `server.run`
    gc.collect()
    gc.freeze()


@dataclass
class Call:
    """One request that wants something translated, with the models that it found when it came."""

    service: Service
    models: Models
    parameters: Parameters
    request: Request

    def languages(self, source: str, target: str, default: str | None = None) -> tuple[str | None, str]:
        """Return the languages that two parameters name, as the models call them; None: it is to be found out.

        default: the source's, where the request names none.
        """
        asked = self.parameters.text(source, default)
        known = None if plain(asked) == "auto" else self._known(asked)
        return known, self._known(self.parameters.text(target))

    def _known(self, asked: str) -> str:
        found = self.models.match(asked)
        if found is None:
            raise Refused(400, f"{asked[:60]} is not supported")
        return found

    def model(self, source: str, target: str) -> ServedModel | None:
        """Return the model for two languages; None where they are the same."""
        model = self.models.find(source, target)
        if model is None and source != target:
            raise Refused(400, f"{target} is not available as a target language from {source}")
        return model

    def detected(self, text: str, source: str | None, target: str) -> Detected:
        """Return the language that a text is in: the one that was given, or what it looks like."""
        return Detected(100.0, source) if source is not None else self.models.detect_source(text, target)

    async def lines(self, model: ServedModel, lines: Sequence[str], wish: Wish) -> list[Translation]:
        """Translate some lines."""
        try:
            return await model.batcher.translate(lines, wish)
        except QueueFull:
            raise Refused(503, "The server is busy; try again", RETRY_AFTER) from None
        except UserError as error:
            raise Refused(400, f"Invalid request: {error}") from None

    def wish(self, model: ServedModel, form: str, n_best: int) -> Wish:
        """Return what is asked of each line."""
        values = self.parameters
        glossary = values.text("glossary", "") or values.text("glossary_id", "") or None
        if glossary is not None and glossary not in self.models.glossaries:
            raise Refused(400, f"glossary {glossary[:60]} is not known")
        protect = form in TAGGED or values.flag("protect", model.loaded.options.protect)
        return Wish(n_best, values.flag("details"), glossary, protect)


@dataclass(frozen=True)
class Answer:
    """What became of one text."""

    text: str
    detected: Detected
    alternatives: Sequence[str] = ()
    details: Sequence[Any] = ()


async def translate_texts(
    call: Call, texts: Sequence[str], source: str | None, target: str, form: str = "text", n_best: int = 1
) -> list[Answer]:
    """Translate some texts, the lines of all together; form: one of `FORMS`."""

    def prepare() -> list[tuple[Detected, ServedModel | None, Parts]]:
        found = []
        for text in texts:
            parts = FORMS[form](text)
            detected = call.detected(" ".join(parts.lines[:100]), source, target)
            found.append((detected, call.model(detected.language, target), parts))
        return found

    prepared = await beside(texts, prepare)
    translated: dict[ServedModel, Iterator[Translation]] = {}
    for asked in dict.fromkeys(model for _, model, _ in prepared if model is not None):
        lines = [line for _, own, parts in prepared if own is asked for line in parts.lines]
        translated[asked] = iter(await call.lines(asked, lines, call.wish(asked, form, n_best)))
    layout = Layout(n_best, alignments=True, format=Format.JSON) if call.parameters.flag("details") else None

    def finish() -> list[Answer]:
        return [
            Answer(text, detected)
            if model is None
            else _answer(detected, parts, list(islice(translated[model], len(parts.lines))), layout)
            for text, (detected, model, parts) in zip(texts, prepared, strict=True)
        ]

    return await beside(texts, finish)


def _answer(detected: Detected, parts: Parts, found: Sequence[Translation], layout: Layout | None) -> Answer:
    """Return what became of a text whose lines were translated; layout: of its details, where they are asked for."""
    best, *others = (
        parts.write([one.hypotheses[min(rank, len(one.hypotheses) - 1)].text for one in found])
        for rank in range(max((len(one.hypotheses) for one in found), default=1))
    )
    alternatives = [one for one in dict.fromkeys(others) if one != best]
    rows = [] if layout is None else [json.loads(layout.rows(line, one)[0]) for line, one in enumerate(found, start=1)]
    return Answer(best, detected, alternatives, rows)


async def stream_sentences(
    call: Call, text: str, source: str | None, target: str, n_best: int
) -> AsyncIterator[Answer]:
    """Yield the answer for each sentence of a text, in order, as soon as it is there; all are asked for now."""
    detected = call.detected(text, source, target)
    model = call.model(detected.language, target)

    def cut() -> list[str]:
        split = [] if model is None else [parts_of(line, model.source, split=True) or [""] for line in text.split("\n")]
        return [sentence for line in split for sentence in line] or [text]

    pending = [
        asyncio.create_task(translate_texts(call, [sentence], detected.language, target, n_best=n_best))
        for sentence in await beside([text], cut)
    ]
    try:
        for task in pending:
            (answer,) = await task
            yield replace(answer, detected=detected)
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def beside(texts: Sequence[str], work: Callable[[], T]) -> T:
    """Do some work on texts; beside the event loop where it would keep other requests waiting."""
    slow = sum(map(len, texts)) + EACH_TEXT * len(texts) > MUCH_TEXT
    return await asyncio.to_thread(work) if slow else work()
