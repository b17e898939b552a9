"""What a request wants translated: in which languages, with which models, by lines; and what becomes of each text.

`app` calls it for its routes. No torch.
"""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import islice
from typing import Any

from starlette.requests import Request

from transformer_cli.decoding.chunks import parts_of
from transformer_cli.decoding.translation import Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.layout import Format, Layout
from transformer_cli.serve.batching import QueueFull, Wish
from transformer_cli.serve.files import Parts, Results, html_parts, text_parts
from transformer_cli.serve.guard import Metrics
from transformer_cli.serve.languages import Detected
from transformer_cli.serve.limits import Keys, Meter, Refused
from transformer_cli.serve.models import Models, ServedModel, Serving
from transformer_cli.serve.parameters import Parameters
from transformer_cli.serve.suggestions import Suggestions

MUCH_TEXT = 10_000  # characters, from which a request's text is looked at beside the event loop
RETRY_AFTER = 1  # seconds, where the queue is full


@dataclass
class Service:
    """What the routes share."""

    serving: Serving
    models: Models
    keys: Keys | None = None
    cors: Sequence[str] = ()
    suggestions: Suggestions | None = None  # None: none are taken
    results: Results = field(default_factory=Results)
    metrics: Metrics = field(default_factory=Metrics)
    common_meter: InitVar[Meter | None] = None  # of several processes; None: of this one alone

    def __post_init__(self, common_meter: Meter | None) -> None:
        self.limits = self.serving.limits
        self.meter = common_meter or Meter(self.limits)
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

    def language(self, name: str) -> str:
        """Return the language that a parameter names, as the models call it."""
        asked = self.parameters.text(name)
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

    def wish(self, *, n_best: int = 1, alignments: bool = False, html: bool = False, model: ServedModel) -> Wish:
        """Return what is asked of each line."""
        values = self.parameters
        glossary = values.text("glossary", "") or values.text("glossary_id", "") or None
        if glossary is not None and glossary not in self.models.glossaries:
            raise Refused(400, f"glossary {glossary[:60]} is not known")
        return Wish(n_best, alignments, glossary, protect=html or model.loaded.options.protect)

    def source_of(self, text: str, source: str | None, target: str) -> Detected:
        """Return the language that a text is in: the one that was given, or what it looks like."""
        return Detected(source, 100.0) if source is not None else self.models.detect_source(text, target)

    async def lines(self, model: ServedModel, lines: Sequence[str], wish: Wish) -> list[Translation]:
        """Translate some lines."""
        try:
            return await model.batcher.translate(lines, wish)
        except QueueFull:
            raise Refused(503, "The server is busy; try again", RETRY_AFTER) from None
        except UserError as error:
            raise Refused(400, f"Invalid request: {error}") from None


@dataclass(frozen=True)
class Answer:
    """What became of one text."""

    text: str
    alternatives: list[str]
    details: list[Any]
    detected: Detected


async def translate_texts(
    call: Call, texts: Sequence[str], source: str | None, target: str, *, markup: str = "", n_best: int = 1
) -> list[Answer]:
    """Translate some texts, the lines of all together; markup: `html` or `xml` where they have tags."""
    details = call.parameters.flag("details")

    def prepare() -> list[tuple[Detected, ServedModel | None, Parts]]:
        found = []
        for text in texts:
            detected = call.source_of(text, source, target)
            parts = html_parts(text, xml=markup == "xml") if markup else text_parts(text)
            found.append((detected, call.model(detected.language, target), parts))
        return found

    slow = sum(map(len, texts)) > MUCH_TEXT
    prepared = await asyncio.to_thread(prepare) if slow else prepare()
    translated: dict[ServedModel, Iterator[Translation]] = {}
    for asked in dict.fromkeys(model for _, model, _ in prepared if model is not None):
        wish = call.wish(n_best=n_best, alignments=details, html=bool(markup), model=asked)
        lines = [line for _, own, parts in prepared if own is asked for line in parts.lines]
        translated[asked] = iter(await call.lines(asked, lines, wish))
    layout = Layout(n_best, alignments=True, format=Format.JSON)
    answers = []
    for text, (detected, model, parts) in zip(texts, prepared, strict=True):
        found = [] if model is None else list(islice(translated[model], len(parts.lines)))
        best, *others = (
            [text]
            if model is None
            else [
                parts.write([one.hypotheses[min(rank, len(one.hypotheses) - 1)].text for one in found])
                for rank in range(max((len(one.hypotheses) for one in found), default=1))
            ]
        )
        rows = [json.loads(layout.rows(line, one)[0]) for line, one in enumerate(found, start=1)] if details else []
        answers.append(Answer(best, [one for one in dict.fromkeys(others) if one != best], rows, detected))
    return answers


async def stream_sentences(call: Call, text: str, source: str | None, target: str) -> AsyncIterator[bytes]:
    """Yield a JSON object for each sentence of a text, in order, as soon as it is translated; all are asked for now."""
    models = call.models
    models.users += 1
    try:
        detected = call.source_of(text, source, target)
        model = call.model(detected.language, target)
        if model is None:
            yield json_line({"translatedText": text})
            return
        lines = [sentence for line in text.split("\n") for sentence in parts_of(line, model.source, split=True) or [""]]
        wish = call.wish(model=model)
        pending = [asyncio.create_task(call.lines(model, [one] if one.strip() else [], wish)) for one in lines]
        try:
            for task in pending:
                found = await task
                yield json_line({"translatedText": found[0].text if found else ""})
        except Refused as error:  # the status has been sent
            yield json_line({"error": error.message})
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
    finally:
        models.users -= 1


def json_line(content: dict[str, Any]) -> bytes:
    """Return a line of JSON."""
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def described(found: Detected) -> dict[str, Any]:
    """Return a detected language as LibreTranslate's clients read it."""
    return {"confidence": found.confidence, "language": found.language}
