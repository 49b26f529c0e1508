"""What Google's APIs have in common: keys, pages, times and operations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from aiohttp import web

from penstock_simulate.answers import refusals
from penstock_simulate.batches.refused import Refused


def key_of(request: web.Request) -> str | None:
    """The key as an Authorization header would have it, which is taken in its place."""
    key = request.headers.get("x-goog-api-key") or request.query.get("key")
    return request.headers.get("Authorization") if key is None else f"Bearer {key}"


def timestamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


def page(
    names: Sequence[str], request: web.Request, default: int, most: int
) -> tuple[Sequence[str], str | None]:
    """The page that the query asks for, and the token of the next.

    Raises Refused for a token that is none."""
    size, token = request.query.get("pageSize", str(default)), request.query.get("pageToken", "0")
    for name, given in (("pageSize", size), ("pageToken", token)):
        if not given.isascii() or not given.isdecimal():
            raise Refused(refusals.invalid(f"Invalid value at '{name}': {given!r}", name))
    start, length = int(token), min(int(size) or default, most)
    end = start + length
    return names[start:end], str(end) if end < len(names) else None
