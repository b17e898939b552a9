"""What the routes take and give, as OpenAPI 3 says it: `GET /spec`."""

from collections.abc import Sequence
from typing import Any

from transformer_cli import __version__
from transformer_cli.serve.limits import MOST_ALTERNATIVES, Limits

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
FLAG: Schema = {"type": "boolean"}
DETECTED: Schema = {
    "type": "object",
    "properties": {"confidence": {"type": "number", "minimum": 0, "maximum": 100}, "language": TEXT},
    "required": ["confidence", "language"],
}
ERROR: Schema = {"type": "object", "properties": {"error": TEXT, "message": TEXT}, "required": ["error"]}


def _some(*fields: str, **properties: Schema) -> Schema:
    """Return the schema of an object, of which `fields` are always there."""
    return {"type": "object", "properties": properties, **({"required": list(fields)} if fields else {})}


def _one_or_many(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "array", "items": schema}]}


FORMS = ("application/json", "application/x-www-form-urlencoded")


def openapi(limits: Limits, languages: Sequence[str], glossaries: Sequence[str], *, keys: bool) -> dict[str, Any]:
    """Return the description of a server with these limits, languages and glossaries; keys: whether it needs any."""
    glossary = {"enum": ["", *glossaries], "description": "the name of a glossary that the server knows"}
    language = {"enum": list(languages), "description": "in any case; _ is as good as -, and en-US finds en"}
    texts = {"oneOf": [{**TEXT, "minLength": 1}, {**TEXTS, "maxItems": limits.max_texts}]}
    source = {**language, "enum": [*languages, "auto"]}
    common = {"source": source, "target": language, "api_key": TEXT}
    as_deepl = _some(
        *("text", "target_lang"),
        text={"oneOf": [TEXT, TEXTS]},
        source_lang=language,
        target_lang=language,
        tag_handling={"enum": ["", "html", "xml"]},
        glossary_id=glossary,
    )
    codes = _some("code", "name", "targets", code=TEXT, name=TEXT, targets=TEXTS)
    file = _some("file", "source", "target", file={**TEXT, "format": "binary"}, **common)
    suggestion = _some("q", "s", "source", "target", q=TEXT, s=TEXT, **common)
    found = _some("translations", translations={"type": "array", "items": _some("text", text=TEXT)})
    any_object: Schema = {"type": "object"}
    name: Schema = {"name": "name", "in": "path", "required": True, "schema": TEXT}
    return {
        "openapi": "3.0.3",
        "info": {"title": "tfm serve", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {
            "/": {"get": _operation("A web page to translate with", None)},
            "/web/{name}": {"get": {**_operation("What the page is made of", None), "parameters": [name]}},
            "/translate": {"post": _translate(texts, glossary, common)},
            "/detect": {
                "post": _operation(
                    "Detect a text's language", {"type": "array", "items": DETECTED}, _some("q", q=TEXT), FORMS
                )
            },
            "/languages": {"get": _operation("List the languages", {"type": "array", "items": codes})},
            "/translate_file": {
                "post": _operation(
                    "Translate a file",
                    _some("translatedFileUrl", translatedFileUrl=TEXT),
                    file,
                    ("multipart/form-data",),
                )
            },
            "/download_file/{name}": {
                "get": {
                    **_operation("Fetch a translated file", None),
                    "parameters": [name],
                }
            },
            "/suggest": {
                "post": _operation("Suggest a better translation", _some("success", success=FLAG), suggestion, FORMS)
            },
            "/v2/translate": {"post": _operation("Translate as DeepL's API does", found, as_deepl, FORMS)},
            "/frontend/settings": {"get": _operation("What this server offers", any_object)},
            "/health": {"get": _operation("Whether it serves", _some("status", status=TEXT))},
            "/spec": {"get": _operation("This description", any_object)},
            "/metrics": {"get": _operation("Counts for Prometheus", None)},
        },
        **({"security": [{}]} if not keys else {}),
    }


def _translate(texts: Schema, glossary: Schema, common: dict[str, Schema]) -> Schema:
    """Return the operation that most clients use."""
    translation = _some(
        *("q", "source", "target"),
        q=texts,
        format={"enum": ["text", "html"], "default": "text"},
        alternatives={"type": "integer", "minimum": 0, "maximum": MOST_ALTERNATIVES},
        details={**FLAG, "description": "scores, confidence, tokens and alignments of each line too"},
        glossary=glossary,
        stream={**FLAG, "description": "one text's sentences, one JSON object a line, as they are done"},
        **common,
    )
    translated = _some(
        "translatedText",
        translatedText=_one_or_many(TEXT),
        alternatives={"anyOf": [TEXTS, {"type": "array", "items": TEXTS}]},
        detectedLanguage=_one_or_many(DETECTED),
        details={"type": "array"},
    )
    operation = _operation("Translate texts", translated, translation, FORMS)
    operation["responses"]["200"]["content"]["application/x-ndjson"] = {"schema": TEXT}  # a stream
    return operation


def _operation(
    summary: str, answer: Schema | None, request: Schema | None = None, kinds: tuple[str, ...] = ()
) -> Schema:
    """Return an operation; answer: of JSON, None: of anything else."""
    content = (
        {"*/*": {"schema": {**TEXT, "format": "binary"}}}
        if answer is None
        else {"application/json": {"schema": answer}}
    )
    operation: Schema = {
        "summary": summary,
        "responses": {
            "200": {"description": "done", "content": content},
            "default": {"description": "an error", "content": {"application/json": {"schema": ERROR}}},
        },
    }
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": request} for kind in kinds}}
    return operation
