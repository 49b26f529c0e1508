"""The dashboard's templates, filled in, and its style, script and icon.

Files are read once and named by their content; headers let a browser run and load nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from penstock_gateway.refused import not_found
from penstock_gateway.routing import Router
from penstock_producer.reporting.text import count, duration, one_line, percent, usd

__all__ = ["HEADERS", "asset_path", "error_page", "plain_page", "rendered", "router"]

router = Router(include_in_schema=False)

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PLACE: Final = "/ui/static"


class Asset(NamedTuple):
    content: bytes
    media_type: str


@router.get(_PLACE + "/{name}")
async def asset(name: str) -> Response:
    """Return a static file.

    Nothing in them is secret: the page that asks for a key needs them, too.
    """
    found = _by_name().get(name)
    if found is None:
        raise not_found("file", name)
    headers = {
        "cache-control": "public, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
    }
    return Response(found.content, media_type=found.media_type, headers=headers)


def asset_path(file: str) -> str:
    """Return where browsers find a file.

    ``dashboard.css`` is at ``/ui/static/dashboard-1f2e3d4c.css``.
    """
    return f"{_PLACE}/{_names()[file]}"


@cache
def _by_name() -> Mapping[str, Asset]:
    folder = files("penstock_gateway.pages") / "static"
    return {
        _names()[file]: Asset((folder / file).read_bytes(), _TYPES[file.rpartition(".")[2]])
        for file in _names()
    }


@cache
def _names() -> Mapping[str, str]:
    folder = files("penstock_gateway.pages") / "static"
    found = {}
    for file in sorted(entry.name for entry in folder.iterdir()):
        stem, _, ending = file.rpartition(".")
        if ending in _TYPES:
            found[file] = (
                f"{stem}-{hashlib.sha256((folder / file).read_bytes()).hexdigest()[:12]}.{ending}"
            )
    return found


HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), interest-cohort=()",
}


def plain_page(
    template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> Response:
    """Return a page for those who are not signed in."""
    text = rendered(
        template,
        theme="auto",
        token="",
        nav=(),
        here="",
        signed_in=False,
        who="",
        can_write=False,
        **values,
    )
    return HTMLResponse(text, status, HEADERS | dict(headers or {}))


def error_page(
    status: int, message: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"
    return plain_page(
        "error.html.jinja",
        status=status,
        headers=headers,
        title=phrase,
        number=status,
        message=message,
        request_id=request_id,
    )


def rendered(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("penstock_gateway.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals["asset"] = asset_path
    made.filters |= {
        "count": count,
        "duration": duration,
        "line": one_line,
        "percent": percent,
        "usd": usd,
    }
    return made
