"""The routes of all rooms, and answers by server-sent events.

Routes take the JSON of a body as it was read before they were found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope, Send

from penstock_gateway.refused import Refused, not_json

__all__ = [
    "QUIET_S",
    "SLOW_S",
    "STILL_THERE",
    "EventResponse",
    "JsonRequest",
    "Router",
    "json_kept",
]

_STATE: Final = "penstock_json"


class JsonRequest(Request):
    """The framework asks it for the JSON of its body, which was read before the route was found."""

    async def json(self) -> Any:
        try:
            return self.scope["state"][_STATE]
        except KeyError:
            if not await self.body():
                raise Refused(
                    400, "The body is not valid JSON: it is empty.", code="invalid_json"
                ) from None
            # its Content-Type says JSON to the framework and not to us
            raise not_json() from None


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return with_json


class Router(APIRouter):
    """The routes of a room.

    Use it for all of them: FastAPI's own would parse each body again, on the event loop."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=_Route, **options)


@contextmanager
def json_kept(scope: Scope, value: Any) -> Iterator[None]:
    """Keep what was read for the route, and no longer.

    A connection that stays open keeps the scope of its last request."""
    scope.setdefault("state", {})[_STATE] = value
    try:
        yield
    finally:
        del scope["state"][_STATE]


# without an event; then a comment says that the connection lives, also to proxies between
QUIET_S: Final = 15.0
SLOW_S: Final = 30.0  # for which a reader may take nothing of what was sent; then it is dropped
STILL_THERE: Final = b": still there\n\n"


class EventResponse(Response):
    """An answer whose length is not known; what it sends is its own."""

    media_type = "text/event-stream"

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        always = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(headers={**always, **(headers or {})})
        del self.headers["content-length"]

    async def begin(self, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})

    async def send_piece(self, send: Send, data: bytes) -> None:
        """Send a piece. Raises TimeoutError for a reader that takes nothing."""
        async with asyncio.timeout(SLOW_S):
            await send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
