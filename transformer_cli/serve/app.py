"""The routes of `tfm serve`: what is asked is checked, translated, and answered in LibreTranslate's or DeepL's shape.

`create_app` makes it of a `Service`; `server` runs it. No torch.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from transformer_cli.serve.files import FILES, TAGGED
from transformer_cli.serve.guard import Guard, error_response
from transformer_cli.serve.languages import Detected, name_of
from transformer_cli.serve.limits import MOST_ALTERNATIVES, Refused
from transformer_cli.serve.parameters import Parameters
from transformer_cli.serve.spec import openapi
from transformer_cli.serve.suggestions import Suggestion
from transformer_cli.serve.translating import Answer, Call, Service, beside, stream_sentences, translate_texts
from transformer_cli.serve.web import page

NO_KEY = "Please contact the server operator to get an API key"


async def translate(call: Call) -> Response:
    """Answer `POST /translate`."""
    values = call.parameters
    texts, many = values.texts("q", call.service.limits)
    source, target = call.languages("source", "target")
    if source is not None:
        call.model(source, target)
    form = values.text("format", "text").lower()
    if form not in ("text", "html"):
        raise Refused(400, f"{form[:60]} format is not supported")
    alternatives, details = values.number("alternatives", MOST_ALTERNATIVES), values.flag("details")

    def response(answers: list[Answer], *, many: bool) -> JSONResponse:
        columns: dict[str, list[Any]] = {"translatedText": [one.text for one in answers]}
        if alternatives:
            columns["alternatives"] = [one.alternatives for one in answers]
        if source is None:
            columns["detectedLanguage"] = [one.detected._asdict() for one in answers]
        if details:
            columns["details"] = [one.details for one in answers]
        return JSONResponse({name: column if many else column[0] for name, column in columns.items()})

    async def stream() -> AsyncIterator[bytes]:
        try:
            async for answer in stream_sentences(call, texts[0], source, target, alternatives + 1):
                yield bytes(response([answer], many=False).body) + b"\n"
        except Refused as error:  # the status has been sent
            yield bytes(error_response(error.status, error.message).body) + b"\n"

    if values.flag("stream"):
        if many or form == "html":
            raise Refused(400, "Invalid request: stream is for one text, not for a list or html")
        return StreamingResponse(stream(), media_type="application/x-ndjson")
    answers = await translate_texts(call, texts, source, target, form, alternatives + 1)
    return await beside(texts, lambda: response(answers, many=many))


# --- the other routes ----------------------------------------------------------------------------------------------


async def translate_as_deepl(call: Call) -> Response:
    """Answer `POST /v2/translate` as DeepL's clients expect it."""
    values = call.parameters
    texts, _ = values.texts("text", call.service.limits)
    source, target = call.languages("source_lang", "target_lang", default="auto")
    handling, details = values.text("tag_handling", "text"), values.flag("details")
    if handling not in ("text", *TAGGED):
        raise Refused(400, f"tag_handling {handling[:60]} is not supported")
    answers = await translate_texts(call, texts, source, target, handling)
    found = [
        {
            "detected_source_language": one.detected.language.upper(),
            "text": one.text,
            "billed_characters": len(text),
            **({"details": one.details} if details else {}),
        }
        for text, one in zip(texts, answers, strict=True)
    ]
    return await beside(texts, lambda: JSONResponse({"translations": found}))


async def detect(call: Call) -> Response:
    """Answer `POST /detect`."""
    found = [one for one in call.models.detect(call.parameters.text("q")) if one.confidence >= 0.1]
    return JSONResponse([one._asdict() for one in found or [Detected(0.0, call.models.languages[0])]])


async def translate_file(call: Call) -> Response:
    """Answer `POST /translate_file`: the translated file waits in memory, under a name of its own."""
    values = call.parameters
    if values.file is None:
        raise Refused(400, "Invalid request: missing file parameter")
    name, content = values.file
    suffix = PurePosixPath(name.lower()).suffix
    if suffix not in FILES:
        raise Refused(400, "Invalid request: file format not supported")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(400, "Invalid request: the file is not valid UTF-8") from None
    (answer,) = await translate_texts(call, [text], *call.languages("source", "target"), FILES[suffix])
    url = call.request.url_for("download_file", name=call.service.results.keep(answer.text.encode(), suffix))
    return JSONResponse({"translatedFileUrl": str(url)})


async def suggest(call: Call) -> Response:
    """Answer `POST /suggest`: a better translation is kept for later training, or set aside where it cannot be one."""
    suggestions = call.service.suggestions
    if suggestions is None:
        raise Refused(403, "Suggestions are disabled on this server.")
    given, better = call.parameters.text("q"), call.parameters.text("s")
    source, target = call.languages("source", "target")
    (own,) = await translate_texts(call, [given], source, target)
    source = own.detected.language
    model = call.model(source, target)
    if model is None:
        raise Refused(400, f"{target} is not available as a target language from {source}")
    suggestion = Suggestion(given, better, source, target, model.name, own.text)
    suggestions.keep(suggestion, suggestion.faults(model.identifier))
    return JSONResponse({"success": True})


# --- the application -----------------------------------------------------------------------------------------------

Handler = Callable[[Call], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def _check_key(service: Service, request: Request, parameters: Parameters) -> str:
    """Return who asks, a key or an address; raise `Refused` where a key is needed."""
    if service.keys is None:
        return request.client.host if request.client else ""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    in_header = credentials if scheme.lower() in ("bearer", "deepl-auth-key") else ""
    key = parameters.text("api_key", in_header)
    if not key:
        raise Refused(403, NO_KEY)
    if not service.keys.knows(key):
        raise Refused(403, "Invalid API key")
    return f"key {key}"


class Asking:
    """A route that asks for something: who asks is checked and metered, and the models stay until all is answered."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        service: Service = request.app.state.service
        parameters = await Parameters.read(request, service.limits)
        client = _check_key(service, request, parameters)
        service.meter.charge(client, 1, parameters.characters)
        service.metrics.characters.inc(parameters.characters)
        models = service.models
        models.users += 1
        try:
            response = await self.handler(Call(service, models, parameters, request))
            await response(scope, receive, send)
        finally:
            models.users -= 1


def giving(describe: Callable[[Service], Any]) -> Endpoint:
    """Return a handler that answers with what a server is."""

    async def endpoint(request: Request) -> Response:
        return JSONResponse(describe(request.app.state.service))

    return endpoint


def spec(service: Service) -> dict[str, Any]:
    """Return what `GET /spec` answers."""
    models = service.models
    return openapi(service.limits, models.languages, models.glossaries, keys=service.keys is not None)


def settings(service: Service) -> dict[str, Any]:
    """Return what `GET /frontend/settings` answers."""
    first = service.models.models[0]
    return {
        "apiKeys": service.keys is not None,
        "keyRequired": service.keys is not None,
        "charLimit": service.limits.max_characters,
        "batchLimit": service.limits.max_texts,
        "frontendTimeout": 300,  # milliseconds after typing
        "suggestions": service.suggestions is not None,
        "glossaries": list(service.models.glossaries),
        "filesTranslation": True,
        "supportedFilesFormat": list(FILES),
        "language": {
            side: {"code": code, "name": name_of(code)}
            for side, code in (("source", first.source), ("target", first.target))
        },
    }


async def metrics(request: Request) -> Response:
    """Answer `GET /metrics`."""
    service: Service = request.app.state.service
    _check_key(service, request, Parameters(dict(request.query_params)))
    service.count_waiting()
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def download_file(request: Request) -> Response:
    """Answer `GET /download_file/NAME`."""
    service: Service = request.app.state.service
    content = service.results.find(name := request.path_params["name"])
    if content is None:
        raise Refused(404, "No such file, or no more")
    disposition = f'attachment; filename="translated{PurePosixPath(name).suffix}"'
    headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
    return Response(content, headers=headers, media_type="application/octet-stream")


async def refused(request: Request, error: Exception) -> Response:
    """Answer a request that is refused, by us or by the router."""
    if isinstance(error, HTTPException):
        return error_response(error.status_code, error.detail, error.headers)
    assert isinstance(error, Refused)
    retry = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return error_response(error.status, error.message, retry)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.models.start()
    yield
    await service.models.close()


def create_app(service: Service) -> Starlette:
    """Return the application, which starts the service's models and stops them."""

    routes = [
        Route("/", page),
        Route("/web/{name}", page),
        Route("/translate", Asking(translate), methods=["POST"]),
        Route("/detect", Asking(detect), methods=["POST"]),
        Route("/languages", giving(lambda service: service.models.describe())),
        Route("/translate_file", Asking(translate_file), methods=["POST"]),
        Route("/download_file/{name}", download_file, name="download_file"),
        Route("/suggest", Asking(suggest), methods=["POST"]),
        Route("/v2/translate", Asking(translate_as_deepl), methods=["POST"]),
        Route("/frontend/settings", giving(settings)),
        Route("/health", giving(lambda _: {"status": "ok"})),
        Route("/spec", giving(spec)),
        Route("/metrics", metrics),
    ]
    shared = Middleware(CORSMiddleware, allow_origins=list(service.cors), allow_methods=["*"], allow_headers=["*"])
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, metrics=service.metrics, seconds=service.limits.max_seconds),
            *([shared] if service.cors else []),
        ],
        exception_handlers={HTTPException: refused, Refused: refused},
        lifespan=_lifespan,
    )
    app.router.redirect_slashes = False  # it is answered in JSON that there is no such path
    app.state.service = service
    return app
