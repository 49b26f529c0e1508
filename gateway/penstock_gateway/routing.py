"""The routes of all rooms: they take the JSON of a body as it was read before they were found."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from penstock_gateway.refused import Refused

__all__ = ["Router", "json_kept"]

_STATE: Final = "penstock_json"


class _Request(Request):
    """The framework asks it for the JSON of its body, which was read before the route was found."""

    async def json(self) -> Any:
        try:
            return self.scope["state"][_STATE]
        except KeyError:
            if not await self.body():
                raise Refused(
                    400, "The body is not valid JSON: it is empty.", code="invalid_json"
                ) from None
            raise Refused(  # its Content-Type says JSON to the framework and not to us
                415,
                "The body has to be JSON: send the header `Content-Type: application/json`.",
                code="unsupported_content_type",
            ) from None


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_json(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

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
