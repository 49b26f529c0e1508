"""What the routes read of a request: its JSON, its time limit, its key, and that its caller has
gone."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from penstock_gateway.checks.json_bodies import object_of
from penstock_gateway.direct.fields import invalid
from penstock_gateway.refused import Refused
from penstock_gateway.settings import DirectFields

__all__ = ["gone", "key_of", "object_in", "timeout_of"]

TIMEOUT_HEADER: Final = "x-penstock-timeout"
KEY_HEADER: Final = "idempotency-key"
KEY_CHARS: Final = 255


class Read(NamedTuple):
    given: dict[str, Any]
    size: int  # bytes


async def object_in(request: Request, most_bytes: int) -> Read:
    """The body, which may have its own bound below that of all bodies.

    Raises Refused (400, 413)."""
    size = len(await request.body())
    if size > most_bytes:
        raise Refused(413, f"The body has more than {most_bytes} bytes.", code="request_too_large")
    return Read(object_of(await request.json()), size)


def timeout_of(request: Request, limits: DirectFields) -> float:
    """For which the caller waits. Raises Refused."""
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return min(limits.timeout_s, limits.max_timeout_s)
    try:
        seconds = float(text) if len(text) <= 20 else math.nan
    except ValueError:
        seconds = math.nan
    return checked_timeout(seconds, "X-Penstock-Timeout", limits)


def checked_timeout(seconds: object, name: str, limits: DirectFields) -> float:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 < seconds <= limits.max_timeout_s
    ):
        raise invalid(name, f"give seconds, more than 0 and at most {limits.max_timeout_s:g}")
    return float(seconds)


def key_of(request: Request) -> str | None:
    """Raises Refused."""
    key = request.headers.get(KEY_HEADER)
    if key is not None and (
        not 0 < len(key) <= KEY_CHARS or not key.isascii() or not key.isprintable()
    ):
        raise invalid("Idempotency-Key", f"give 1 to {KEY_CHARS} printable ASCII characters")
    return key


async def gone(request: Request) -> None:
    """Returns when the caller has hung up; the body has been read before.

    Never returns where the server does not say."""
    while True:
        try:
            message = await request.receive()
        except Exception:  # the server says no more about this connection
            await asyncio.Event().wait()
            return
        if message["type"] == "http.disconnect":
            return
