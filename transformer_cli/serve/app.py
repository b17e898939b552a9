"""The routes of `tfm serve`: what is asked is checked, translated, and answered in LibreTranslate's or DeepL's shape.

`create_app` makes it of a `Service`; `server` runs it. No torch.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from transformer_cli.decoding.chunks import parts_of
from transformer_cli.decoding.translation import Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.layout import Format, Layout
from transformer_cli.serve.batching import QueueFull, Wish
from transformer_cli.serve.files import FORMATS, Parts, Results, html_parts, parts_of_file, text_parts
from transformer_cli.serve.guard import Guard, Metrics, error_response
from transformer_cli.serve.languages import Detected
from transformer_cli.serve.limits import Keys, Limits, Meter, Refused
from transformer_cli.serve.models import Models, ServedModel, Serving
from transformer_cli.serve.parameters import Parameters, check_characters
from transformer_cli.serve.spec import openapi

NO_KEY = "Please contact the server operator to get an API key"
MUCH_TEXT = 10_000  # characters, from which a request's text is looked at beside the event loop
RETRY_AFTER = 1  # seconds, where the queue is full


@dataclass
class Service:
    """What the routes share."""

    serving: Serving
    models: Models
    limits: Limits = field(default_factory=Limits)
    keys: Keys | None = None
    cors: Sequence[str] = ()
    suggestions: Path | None = None  # where suggestions are kept; None: none are taken
    results: Results = field(default_factory=Results)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.meter = Meter(self.limits)
        self._leaving: set[asyncio.Task[None]] = set()
        self._watch()

    def _watch(self) -> None:
        for one in self.models.models:
            one.batcher.sizes = self.metrics.batch

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
        glossary = next((values.text(one) for one in ("glossary", "glossary_id") if values.has(one)), None)
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


# --- /translate ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What became of one text."""

    text: str
    alternatives: list[str]
    details: list[Any]
    detected: Detected


async def _answers(
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


async def translate(call: Call) -> Response:
    """Answer `POST /translate`."""
    values, limits = call.parameters, call.service.limits
    texts, many = values.texts("q", limits)
    source = None if values.text("source").strip().lower() == "auto" else call.language("source")
    target = call.language("target")
    form = values.text("format", "text").lower() or "text"
    if form not in ("text", "html"):
        raise Refused(400, f"{form[:60]} format is not supported")
    alternatives = values.number("alternatives", limits.alternatives)
    if source is not None:
        call.model(source, target)
    if values.flag("stream"):
        if many or form == "html":
            raise Refused(400, "Invalid request: stream is for one text, not for a list or html")
        return StreamingResponse(_stream(call, texts[0], source, target), media_type="application/x-ndjson")
    markup = "html" if form == "html" else ""
    answers = await _answers(call, texts, source, target, markup=markup, n_best=alternatives + 1)
    columns: dict[str, list[Any]] = {"translatedText": [one.text for one in answers]}
    if alternatives:
        columns["alternatives"] = [one.alternatives for one in answers]
    if source is None:
        columns["detectedLanguage"] = [_detected(one.detected) for one in answers]
    if values.flag("details"):
        columns["details"] = [one.details for one in answers]
    return JSONResponse({name: values if many else values[0] for name, values in columns.items()})


async def _stream(call: Call, text: str, source: str | None, target: str) -> AsyncIterator[bytes]:
    """Yield a JSON object for each sentence of a text, in order, as soon as it is translated; all are asked for now."""
    models = call.models
    models.users += 1
    try:
        detected = call.source_of(text, source, target)
        model = call.model(detected.language, target)
        if model is None:
            yield _line({"translatedText": text})
            return
        lines = [sentence for line in text.split("\n") for sentence in parts_of(line, model.source, split=True) or [""]]
        wish = call.wish(model=model)
        pending = [asyncio.create_task(call.lines(model, [one] if one.strip() else [], wish)) for one in lines]
        try:
            for task in pending:
                found = await task
                yield _line({"translatedText": found[0].text if found else ""})
        except Refused as error:  # the status has been sent
            yield _line({"error": error.message})
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
    finally:
        models.users -= 1


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def _detected(found: Detected) -> dict[str, Any]:
    return {"confidence": found.confidence, "language": found.language}


# --- the other routes ----------------------------------------------------------------------------------------------


async def translate_as_deepl(call: Call) -> Response:
    """Answer `POST /v2/translate` as DeepL's clients expect it."""
    values = call.parameters
    texts, _ = values.texts("text", call.service.limits)
    source = call.language("source_lang") if values.text("source_lang", "") else None
    target = call.language("target_lang")
    handling = values.text("tag_handling", "")
    if handling not in ("", "html", "xml"):
        raise Refused(400, f"tag_handling {handling[:60]} is not supported")
    answers = await _answers(call, texts, source, target, markup=handling)
    return JSONResponse(
        {
            "translations": [
                {
                    "detected_source_language": one.detected.language.upper(),
                    "text": one.text,
                    "billed_characters": len(text),
                }
                for text, one in zip(texts, answers, strict=True)
            ]
        }
    )


async def detect(call: Call) -> Response:
    """Answer `POST /detect`."""
    text = call.parameters.text("q")
    check_characters(len(text), call.service.limits)
    found = [one for one in call.models.detect(text) if one.confidence >= 0.1]
    return JSONResponse([_detected(one) for one in found or [Detected(call.models.languages[0], 0.0)]])


async def translate_file(call: Call) -> Response:
    """Answer `POST /translate_file`: the translated file waits in memory, under a name of its own."""
    values, service = call.parameters, call.service
    if values.file is None:
        raise Refused(400, "Invalid request: missing file parameter")
    name, content = values.file
    suffix = PurePosixPath(name.lower()).suffix.replace(".htm", ".html").replace(".htmll", ".html")
    if suffix not in FORMATS:
        raise Refused(400, "Invalid request: file format not supported")
    target = call.language("target")
    automatic = values.text("source").strip().lower() == "auto"
    source = None if automatic else call.language("source")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(400, "Invalid request: the file is not valid UTF-8") from None
    check_characters(len(text), service.limits)
    parts: Parts = parts_of_file(suffix, text)
    model = call.model(call.source_of(" ".join(parts.lines[:100]), source, target).language, target)
    if model is not None:
        wish = call.wish(html=suffix == ".html", model=model)
        text = parts.write([one.text for one in await call.lines(model, parts.lines, wish)])
    url = call.request.url_for("download_file", name=service.results.keep(text.encode(), suffix))
    return JSONResponse({"translatedFileUrl": str(url)})


async def suggest(call: Call) -> Response:
    """Answer `POST /suggest`: a better translation is kept for later training."""
    service = call.service
    if service.suggestions is None:
        raise Refused(403, "Suggestions are disabled on this server.")
    given, better = call.parameters.text("q"), call.parameters.text("s")
    source, target = call.language("source"), call.language("target")
    check_characters(len(given) + len(better), service.limits)
    model = call.model(source, target)
    content = {"source": given, "target": better, "source_language": source, "target_language": target}
    content |= {"model": model.name if model else "", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    with open(service.suggestions, "ab") as file:  # one write, so that lines stay whole
        file.write(_line(content))
    return JSONResponse({"success": True})


# --- the application -----------------------------------------------------------------------------------------------

Handler = Callable[[Call], Awaitable[Response]]


def _check_key(service: Service, request: Request, parameters: Parameters) -> str:
    """Return who asks, a key or an address; raise `Refused` where a key is needed."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if parameters.has("api_key"):
        given = parameters.text("api_key", "")
    elif scheme.lower() not in ("bearer", "deepl-auth-key"):
        given = ""
    if service.keys is None:
        return request.client.host if request.client else ""
    if not given:
        raise Refused(403, NO_KEY)
    if not service.keys.knows(given):
        raise Refused(403, "Invalid API key")
    return f"key {given}"


def _characters(parameters: Parameters) -> int:
    values = (parameters.values.get(name) for name in ("q", "text", "s"))
    texts = (text for value in values for text in (value if isinstance(value, list) else [value]))
    return sum(len(text) for text in texts if isinstance(text, str)) + len(
        parameters.file[1] if parameters.file else b""
    )


def create_app(service: Service) -> Starlette:
    """Return the application; whoever runs it has started the models of the service."""

    def asking(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            parameters = await Parameters.read(request, service.limits)
            client = _check_key(service, request, parameters)
            characters = _characters(parameters)
            service.meter.charge(client, 1, characters)
            service.metrics.characters(characters)
            models = service.models
            models.users += 1
            try:
                return await handler(Call(service, models, parameters, request))
            finally:
                models.users -= 1

        return endpoint

    async def languages(request: Request) -> Response:
        return JSONResponse(service.models.describe())

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def spec(request: Request) -> Response:
        return JSONResponse(openapi(service.limits, keys=service.keys is not None))

    async def metrics(request: Request) -> Response:
        _check_key(service, request, Parameters(dict(request.query_params)))
        waiting = sum(one.batcher.waiting for one in service.models.models)
        return Response(service.metrics.text(waiting), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def settings(request: Request) -> Response:
        described = {one["code"]: one for one in service.models.describe()}
        first = service.models.models[0]
        return JSONResponse(
            {
                "apiKeys": service.keys is not None,
                "keyRequired": service.keys is not None,
                "charLimit": service.limits.characters,
                "batchLimit": service.limits.texts,
                "frontendTimeout": 500,
                "suggestions": service.suggestions is not None,
                "filesTranslation": True,
                "supportedFilesFormat": list(FORMATS),
                "language": {
                    side: {"code": code, "name": described[code]["name"]}
                    for side, code in (("source", first.source), ("target", first.target))
                },
            }
        )

    async def download_file(request: Request) -> Response:
        content = service.results.find(name := request.path_params["name"])
        if content is None:
            raise Refused(404, "No such file, or no more")
        headers = {"Content-Disposition": f'attachment; filename="translated{PurePosixPath(name).suffix}"'}
        return Response(content, headers=headers, media_type="application/octet-stream")

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return error_response(error.status_code, error.detail, error.headers)
        assert isinstance(error, Refused)
        retry = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return error_response(error.status, error.message, retry)

    routes = [
        Route("/translate", asking(translate), methods=["POST"]),
        Route("/detect", asking(detect), methods=["POST"]),
        Route("/languages", languages),
        Route("/translate_file", asking(translate_file), methods=["POST"]),
        Route("/download_file/{name}", download_file, name="download_file"),
        Route("/suggest", asking(suggest), methods=["POST"]),
        Route("/v2/translate", asking(translate_as_deepl), methods=["POST"]),
        Route("/frontend/settings", settings),
        Route("/health", health),
        Route("/spec", spec),
        Route("/metrics", metrics),
    ]
    shared = Middleware(CORSMiddleware, allow_origins=list(service.cors), allow_methods=["*"], allow_headers=["*"])
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, metrics=service.metrics, seconds=service.limits.seconds),
            *([shared] if service.cors else []),
        ],
        exception_handlers={HTTPException: refused, Refused: refused},
    )
