"""What a request asks for, as JSON or as a form sends it, read within limits and checked. No torch."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from transformer_cli.serve.limits import Limits, Refused

MOST_FIELDS = 1_100  # of a form


class Parameters:
    """The parameters of a request by name; each method raises `Refused` where one is missing or of another kind."""

    def __init__(self, values: Mapping[str, Any], file: tuple[str, bytes] | None = None) -> None:
        """file: the name and content of what was uploaded."""
        self.values, self.file = values, file

    @classmethod
    async def read(cls, request: Request, limits: Limits) -> "Parameters":
        """Read them from a request's body, or where it has none from its query."""
        body = await _body(request, limits.max_body)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            return await cls._from_multipart(request, body)
        try:
            text = body.decode("utf-8")
            if kind == "application/x-www-form-urlencoded" or not text.strip():
                query = text if text.strip() else request.url.query
                fields = parse_qs(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
                return cls({name: values if len(values) > 1 else values[0] for name, values in fields.items()})
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise Refused(400, "Invalid request: the body is neither JSON nor a form in UTF-8") from None
        if not isinstance(values, dict):
            raise Refused(400, "Invalid request: the body is not a JSON object")
        return cls(values)

    @classmethod
    async def _from_multipart(cls, request: Request, body: bytes) -> "Parameters":
        async def stream() -> AsyncIterator[bytes]:
            yield body

        parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=MOST_FIELDS)  # type: ignore[arg-type]
        parser.spool_max_size = len(body) + 1  # nothing of it is ever written to a disk
        parser.max_part_size = len(body)
        values: dict[str, Any] = {}
        file = None
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise Refused(400, f"Invalid request: {error.message}") from None
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                file = value.filename or "", await value.read()
            else:
                values[name] = value
        await form.close()
        return cls(values, file)

    def has(self, name: str) -> bool:
        """Return whether it was given."""
        return self.values.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; without a default it must be there."""
        value = self.values.get(name)
        if value is None or (value == "" and default is None):
            if default is None:
                raise Refused(400, f"Invalid request: missing {name} parameter")
            return default
        if not isinstance(value, str):
            raise Refused(400, f"Invalid request: {name} should be a text")
        return _sound(value)

    def texts(self, name: str, limits: Limits) -> tuple[list[str], bool]:
        """Return some texts, and whether they were given as a list."""
        value = self.values.get(name)
        if value is None or (isinstance(value, str) and not value):
            raise Refused(400, f"Invalid request: missing {name} parameter")
        many = isinstance(value, list)
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise Refused(400, f"Invalid request: {name} should be a text or a list of texts")
        if len(texts) > limits.max_texts:
            raise Refused(400, f"Invalid request: request ({len(texts)}) exceeds batch limit ({limits.max_texts})")
        check_characters(sum(map(len, texts)), limits)
        return [_sound(text) for text in texts], many

    def number(self, name: str, most: int) -> int:
        """Return a whole number from 0 to `most`; 0 where there is none."""
        value = self.values.get(name)
        if value is None or value == "":
            return 0
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise Refused(400, f"Invalid request: {name} should be a number from 0 to {most}")
        if value > most:
            raise Refused(400, f"Invalid request: {name} parameter must be <= {most}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether something is asked for."""
        value = self.values.get(name, False)
        if isinstance(value, str) and value.lower() in ("", "0", "1", "true", "false"):
            return value.lower() in ("1", "true")
        if value is None or isinstance(value, bool):
            return bool(value)
        raise Refused(400, f"Invalid request: {name} should be true or false")


def check_characters(count: int, limits: Limits) -> None:
    """Raise `Refused` where a request has more than it may."""
    if count > limits.max_characters:
        raise Refused(400, f"Invalid request: request ({count}) exceeds text limit ({limits.max_characters})")


async def _body(request: Request, most: int) -> bytes:
    length = request.headers.get("content-length", "")
    body = bytearray()
    if not length.isdigit() or int(length[:20]) <= most:
        try:
            async for part in request.stream():
                body += part
                if len(body) > most:
                    break
            else:
                return bytes(body)
        except ClientDisconnect:
            raise Refused(400, "Invalid request: the body is incomplete") from None
    raise Refused(413, f"Invalid request: the body has more than {most:,} bytes")


def _sound(text: str) -> str:
    """Return a text without halves of characters, which JSON may hold, but no answer can."""
    return text.encode("utf-8", "replace").decode("utf-8")
