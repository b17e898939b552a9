"""The web page of `tfm serve`: `GET /` and the files in `web/`, read once. No torch.

What it shows are texts of others, so its policy allows its own files alone, and no text to become markup.
"""

import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from transformer_cli.serve.limits import Refused

PAGE = "index.html"
KINDS = {PAGE: "text/html", "page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'none';"
    " base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # ask whether the ETag is still the same
}


@cache
def _read(name: str) -> tuple[bytes, str]:
    """Return a file and its ETag."""
    content = (files("transformer_cli.serve") / "web" / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


async def page(request: Request) -> Response:
    """Answer `GET /` and `GET /web/NAME`."""
    name = request.path_params.get("name", PAGE)
    if name not in KINDS:
        raise Refused(404, "Not Found")
    content, tag = _read(name)
    headers = {**HEADERS, "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=KINDS[name])
