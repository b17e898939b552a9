"""What a request asks for, as JSON or as a form sends it, read within limits and checked. No torch."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

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
            found = await cls._of_multipart(request, body)
        else:
            found = cls(_values(body, request.url.query, is_form=kind == "application/x-www-form-urlencoded"))
        if found.characters > limits.max_characters:
            count = f"request ({found.characters}) exceeds text limit ({limits.max_characters})"
            raise Refused(400, f"Invalid request: {count}")
        return found

    @classmethod
    async def _of_multipart(cls, request: Request, body: bytes) -> "Parameters":
        async def stream() -> AsyncIterator[bytes]:
            yield body

        parser = MultiPartParser(request.headers, stream(), max_files=1, max_fields=MOST_FIELDS)  # type: ignore[arg-type]
        parser.spool_max_size = len(body) + 1  # nothing of it is ever written to a disk
        parser.max_part_size = len(body)
        try:
            form = await parser.parse()
        except MultiPartException as error:
            raise Refused(400, f"Invalid request: {error.message}") from None
        files = [(one.filename or "", await one.read()) for one in form.values() if isinstance(one, UploadFile)]
        values = _by_name((name, value) for name, value in form.multi_items() if isinstance(value, str))
        await form.close()
        return cls(values, *files)

    @property
    def characters(self) -> int:
        """How many characters are to be looked at."""
        texts = [self.file[1].decode("utf-8", "ignore")] if self.file else []
        for value in map(self.values.get, ("q", "text", "s")):
            texts += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
        return sum(map(len, texts))

    def _value(self, name: str) -> Any:
        """Return what was given; None: nothing."""
        value = self.values.get(name)
        return None if value == "" else value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; without a default it must be there."""
        value = self._value(name)
        if value is None:
            if default is None:
                raise Refused(400, f"Invalid request: missing {name} parameter")
            return default
        if not isinstance(value, str):
            raise Refused(400, f"Invalid request: {name} should be a text")
        return _sound(value)

    def texts(self, name: str, limits: Limits) -> tuple[list[str], bool]:
        """Return some texts, and whether they were given as a list."""
        value = self._value(name)
        if not isinstance(value, list):
            return [self.text(name)], False
        if not all(isinstance(text, str) for text in value):
            raise Refused(400, f"Invalid request: {name} should be a text or a list of texts")
        if len(value) > limits.max_texts:
            raise Refused(400, f"Invalid request: request ({len(value)}) exceeds batch limit ({limits.max_texts})")
        return [_sound(text) for text in value], True

    def number(self, name: str, most: int) -> int:
        """Return a whole number from 0 to `most`; 0 where there is none."""
        value = self._value(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise Refused(400, f"Invalid request: {name} should be a number from 0 to {most}")
        if value > most:
            raise Refused(400, f"Invalid request: {name} parameter must be <= {most}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return whether something is asked for."""
        value = self._value(name)
        if isinstance(value, str):
            value = {"0": False, "1": True, "false": False, "true": True}.get(value.lower(), value)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        raise Refused(400, f"Invalid request: {name} should be true or false")


def _values(body: bytes, query: str, *, is_form: bool) -> dict[str, Any]:
    """Return what a body holds that is JSON or a form; a query's values where it is empty."""
    try:
        text = body.decode("utf-8-sig")
        if is_form or not text.strip():
            form = text if text.strip() else query
            return _by_name(parse_qsl(form, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused(400, "Invalid request: the body is neither JSON nor a form in UTF-8") from None
    if not isinstance(found, dict):
        raise Refused(400, "Invalid request: the body is not a JSON object")
    return found


def _by_name(fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of a form; of what is given more than once a list."""
    found: dict[str, list[str]] = {}
    for name, value in fields:
        found.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


async def _body(request: Request, most: int) -> bytes:
    """Read a body; one that is too large is not read to its end."""
    length = request.headers.get("content-length", "0")  # digits, as h11 has seen to
    body = bytearray()
    try:
        if int(length) <= most:
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
