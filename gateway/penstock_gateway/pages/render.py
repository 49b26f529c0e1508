"""Templates, filled in, with headers that let a browser run and load nothing but the dashboard's
own files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from penstock_gateway.pages.assets import asset_path
from penstock_producer.reporting.text import count, duration, one_line, percent, usd

__all__ = ["HEADERS", "error_page", "plain_page", "rendered"]

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
    """For those who are not signed in."""
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
