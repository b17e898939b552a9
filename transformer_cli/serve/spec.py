"""What the routes take and give, as OpenAPI 3 says it: `GET /spec`."""

from collections.abc import Sequence
from typing import Any

from transformer_cli import __version__
from transformer_cli.serve.limits import MOST_ALTERNATIVES, Limits

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
DETAILS = {**FLAG, "description": "scores, confidence, tokens and alignments of each line too"}
PROTECT = {**FLAG, "description": "keep URLs, e-mails, placeholders and tags unchanged"}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _some(*fields: str, **properties: Schema) -> Schema:
    """Return the schema of an object, of which `fields` are always there; a text, where nothing is said of one."""
    return {"type": "object", "properties": dict.fromkeys(fields, TEXT) | properties, "required": list(fields)}


def _one_or_many(schema: Schema) -> Schema:
    return {"oneOf": [schema, _list(schema)]}


TEXTS = _list(TEXT)
DETECTED = _some("confidence", "language", confidence={"type": "number", "minimum": 0, "maximum": 100})
LANGUAGE = _some("code", "name", "targets", targets=TEXTS)
ERROR = _some("error", "message")
AS_DEEPL = _some("translations", translations=_list(_some("text", "detected_source_language")))
TRANSLATED = _some(
    "translatedText",
    translatedText=_one_or_many(TEXT),
    alternatives={"anyOf": [TEXTS, _list(TEXTS)]},
    detectedLanguage=_one_or_many(DETECTED),
    details={"type": "array"},
)


def openapi(limits: Limits, languages: Sequence[str], glossaries: Sequence[str], *, keys: bool) -> dict[str, Any]:
    """Return the description of a server with these limits, languages and glossaries; keys: whether it needs any."""
    glossary = {"enum": ["", *glossaries], "description": "the name of a glossary that the server knows"}
    language = {"enum": list(languages), "description": "in any case; _ is as good as -, and en-US finds en"}
    source = {**language, "enum": [*languages, "auto"]}
    texts = {"oneOf": [{**TEXT, "minLength": 1}, {**TEXTS, "maxItems": limits.max_texts}]}
    common = {"source": source, "target": language, "api_key": TEXT}
    found = {"glossary": glossary, "protect": PROTECT, "details": DETAILS}
    translation = _some(
        *("q", "source", "target"),
        q=texts,
        format={"enum": ["text", "html"], "default": "text"},
        alternatives={"type": "integer", "minimum": 0, "maximum": MOST_ALTERNATIVES},
        stream={**FLAG, "description": "one text's sentences, one JSON object a line, as they are done"},
        **found,
        **common,
    )
    as_deepl = _some(
        *("text", "target_lang"),
        text=texts,
        source_lang=language,
        target_lang=language,
        tag_handling={"enum": ["", "html", "xml"]},
        glossary_id=glossary,
        **found,
    )
    file = _some("file", "source", "target", file={**TEXT, "format": "binary"}, **common)
    suggestion = _some("q", "s", "source", "target", q=TEXT, s=TEXT, **common)
    name: Schema = {"name": "name", "in": "path", "required": True, "schema": TEXT}
    return {
        "openapi": "3.0.3",
        "info": {"title": "tfm serve", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {
            "/": {"get": _operation("A web page to translate with")},
            "/web/{name}": {"parameters": [name], "get": _operation("What the page is made of")},
            "/translate": {"post": _operation("Translate texts", TRANSLATED, translation)},
            "/detect": {"post": _operation("Detect a text's language", _list(DETECTED), _some("q", q=TEXT))},
            "/languages": {"get": _operation("List the languages", _list(LANGUAGE))},
            "/translate_file": {"post": _operation("Translate a file", _some("translatedFileUrl"), file)},
            "/download_file/{name}": {"parameters": [name], "get": _operation("Fetch a translated file")},
            "/suggest": {
                "post": _operation("Suggest a better translation", _some("success", success=FLAG), suggestion)
            },
            "/v2/translate": {"post": _operation("Translate as DeepL's API does", AS_DEEPL, as_deepl)},
            "/frontend/settings": {"get": _operation("What this server offers", {"type": "object"})},
            "/health": {"get": _operation("Whether it serves", _some("status"))},
            "/spec": {"get": _operation("This description", {"type": "object"})},
            "/metrics": {"get": _operation("Counts for Prometheus")},
        },
        **({"security": [{}]} if not keys else {}),
    }


def _operation(summary: str, answer: Schema | None = None, request: Schema | None = None) -> Schema:
    """Return an operation; answer: of JSON, None: of anything else; request: of JSON or a form, a file's of a form."""
    content: Schema = {"*/*": {"schema": {**TEXT, "format": "binary"}}}
    if answer is not None:
        content = {"application/json": {"schema": answer}}
        if answer is TRANSLATED:
            content["application/x-ndjson"] = {"schema": TEXT}  # a stream
    error = {"description": "an error", "content": {"application/json": {"schema": ERROR}}}
    operation: Schema = {
        "summary": summary,
        "responses": {"200": {"description": "done", "content": content}, "default": error},
    }
    if request is not None:
        kinds = ["application/json", "application/x-www-form-urlencoded"]
        kinds = ["multipart/form-data"] if "file" in request["properties"] else kinds
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": request} for kind in kinds}}
    return operation
