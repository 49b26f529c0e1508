"""Paths and queries that no client of the doors sends: refused before anything is looked up by
them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock_gateway.refused import Refused

__all__ = ["Paths"]

# An empty segment, dots, and separators or control characters in disguise: what one server reads
# otherwise than the next.
_ODD: Final = re.compile(rb"//|/\.{1,2}(?:/|$)|%2f|%5c|%2e|\\|%[01][0-9a-f]|%7f", re.IGNORECASE)
# An id of a document may have any of these in it, and a model's name a slash. Either is the last
# part of such a path.
_NAMED: Final = re.compile(rb"(/v1/jobs/[^/]+/[^/]+/|/v1/models/)(.+)")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]|%[01][0-9a-f]|%7f", re.IGNORECASE)
_SECRET_NAMES: Final = re.compile(
    rb"(?:^|&)(?:x-)?(?:api[_-]?key|access_token|token|authorization|secret)=", re.IGNORECASE
)
_SECRET_VALUE: Final = re.compile(rb"(?:sk-|bearer\+|bearer )", re.IGNORECASE)


class Paths:
    """A step of the app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if _is_odd(scope.get("raw_path") or scope["path"].encode()):
                raise Refused(404, "Not Found", code="not_found")
            query = scope["query_string"]
            if _SECRET_NAMES.search(query) or _SECRET_VALUE.search(unquote_to_bytes(query)):
                raise Refused(
                    400,
                    "Keys are not taken from URLs, which logs keep: send `Authorization: Bearer "
                    "KEY`, and make a new key.",
                    code="key_in_url",
                )
        await self._app(scope, receive, send)


def _is_odd(path: bytes) -> bool:
    named = _NAMED.fullmatch(path)
    if named is None:
        return _ODD.search(path) is not None
    return _ODD.search(named[1]) is not None or _CONTROL.search(named[2]) is not None
