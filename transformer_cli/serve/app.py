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

from transformer_cli.serve.files import FORMATS, parts_of_file
from transformer_cli.serve.guard import Guard, error_response
from transformer_cli.serve.languages import Detected
from transformer_cli.serve.limits import MOST_ALTERNATIVES, Refused
from transformer_cli.serve.parameters import Parameters, check_characters
from transformer_cli.serve.spec import openapi
from transformer_cli.serve.suggestions import Suggestion
from transformer_cli.serve.translating import Call, Service, described, stream_sentences, translate_texts
from transformer_cli.serve.web import page

NO_KEY = "Please contact the server operator to get an API key"


async def translate(call: Call) -> Response:
    """Answer `POST /translate`."""
    values, limits = call.parameters, call.service.limits
    texts, many = values.texts("q", limits)
    source = None if values.text("source").strip().lower() == "auto" else call.language("source")
    target = call.language("target")
    form = values.text("format", "text").lower() or "text"
    if form not in ("text", "html"):
        raise Refused(400, f"{form[:60]} format is not supported")
    alternatives = values.number("alternatives", MOST_ALTERNATIVES)
    if source is not None:
        call.model(source, target)
    if values.flag("stream"):
        if many or form == "html":
            raise Refused(400, "Invalid request: stream is for one text, not for a list or html")
        return StreamingResponse(stream_sentences(call, texts[0], source, target), media_type="application/x-ndjson")
    markup = "html" if form == "html" else ""
    answers = await translate_texts(call, texts, source, target, markup=markup, n_best=alternatives + 1)
    columns: dict[str, list[Any]] = {"translatedText": [one.text for one in answers]}
    if alternatives:
        columns["alternatives"] = [one.alternatives for one in answers]
    if source is None:
        columns["detectedLanguage"] = [described(one.detected) for one in answers]
    if values.flag("details"):
        columns["details"] = [one.details for one in answers]
    return JSONResponse({name: values if many else values[0] for name, values in columns.items()})


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
    answers = await translate_texts(call, texts, source, target, markup=handling)
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
    return JSONResponse([described(one) for one in found or [Detected(call.models.languages[0], 0.0)]])


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
    parts = parts_of_file(suffix, text)
    model = call.model(call.source_of(" ".join(parts.lines[:100]), source, target).language, target)
    if model is not None:
        wish = call.wish(html=suffix == ".html", model=model)
        text = parts.write([one.text for one in await call.lines(model, parts.lines, wish)])
    url = call.request.url_for("download_file", name=service.results.keep(text.encode(), suffix))
    return JSONResponse({"translatedFileUrl": str(url)})


async def suggest(call: Call) -> Response:
    """Answer `POST /suggest`: a better translation is kept for later training, or set aside where it cannot be one."""
    service = call.service
    if service.suggestions is None:
        raise Refused(403, "Suggestions are disabled on this server.")
    given, better = call.parameters.text("q"), call.parameters.text("s")
    source, target = call.language("source"), call.language("target")
    check_characters(len(given) + len(better), service.limits)
    model = call.model(source, target)
    if model is None:
        raise Refused(400, f"{target} is not available as a target language from {source}")
    (own,) = await translate_texts(call, [given], source, target)
    suggestion = Suggestion(given, better, source, target, model.name, own.text)
    service.suggestions.keep(suggestion, suggestion.faults(model.identifier))
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


def asking(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler of what is asked: who asks is checked and metered, and the models stay as they are."""

    async def endpoint(request: Request) -> Response:
        service: Service = request.app.state.service
        parameters = await Parameters.read(request, service.limits)
        client = _check_key(service, request, parameters)
        characters = _characters(parameters)
        service.meter.charge(client, 1, characters)
        service.metrics.characters.inc(characters)
        models = service.models
        models.users += 1
        try:
            return await handler(Call(service, models, parameters, request))
        finally:
            models.users -= 1

    return endpoint


async def languages(request: Request) -> Response:
    """Answer `GET /languages`."""
    service: Service = request.app.state.service
    return JSONResponse(service.models.describe())


async def health(request: Request) -> Response:
    """Answer `GET /health`."""
    return JSONResponse({"status": "ok"})


async def spec(request: Request) -> Response:
    """Answer `GET /spec`."""
    service: Service = request.app.state.service
    models = service.models
    return JSONResponse(openapi(service.limits, models.languages, models.glossaries, keys=service.keys is not None))


async def metrics(request: Request) -> Response:
    """Answer `GET /metrics`."""
    service: Service = request.app.state.service
    _check_key(service, request, Parameters(dict(request.query_params)))
    service.count_waiting()
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def settings(request: Request) -> Response:
    """Answer `GET /frontend/settings`."""
    service: Service = request.app.state.service
    described = {one["code"]: one for one in service.models.describe()}
    first = service.models.models[0]
    return JSONResponse(
        {
            "apiKeys": service.keys is not None,
            "keyRequired": service.keys is not None,
            "charLimit": service.limits.max_characters,
            "batchLimit": service.limits.max_texts,
            "frontendTimeout": 300,  # milliseconds after typing
            "suggestions": service.suggestions is not None,
            "glossaries": list(service.models.glossaries),
            "filesTranslation": True,
            "supportedFilesFormat": list(FORMATS),
            "language": {
                side: {"code": code, "name": described[code]["name"]}
                for side, code in (("source", first.source), ("target", first.target))
            },
        }
    )


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
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guard, metrics=service.metrics, seconds=service.limits.max_seconds),
            *([shared] if service.cors else []),
        ],
        exception_handlers={HTTPException: refused, Refused: refused},
        lifespan=_lifespan,
    )
    app.state.service = service
    return app
