"""The gate before all routes: who asks is known before a body is read, and every request of a
tenant is counted.

A route that named no scope would still be closed to those without a key.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock_gateway.callers.admission import Admissions
from penstock_gateway.callers.caller import KNOWN, STATE
from penstock_gateway.callers.known_keys import keys_of
from penstock_gateway.refused import Refused
from penstock_gateway.request_ids import request_id_of

__all__ = ["Gate"]

_OPEN: Final = ("/health", "/livez", "/openapi.json", "/login", "/ui/login", "/ui/static")


class Gate:
    """A step of the app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or any(
            path == place or path.startswith(f"{place}/") for place in _OPEN
        ):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        is_page = not path.startswith("/v1/")
        try:
            found = await keys_of(connection).found(connection, by_session=is_page)
        except Refused as refused:
            if not (is_page and refused.status == 401):
                raise
            await self._app(
                scope, receive, send
            )  # the page itself says where to log in, or that there is none
            return
        state = scope.setdefault("state", {})
        state[STATE] = found.caller
        if KNOWN in state:
            state[KNOWN]()
        admissions: Admissions = connection.app.state.admissions
        async with admissions.admitted(found, scope["method"], path, request_id_of(connection)):
            await self._app(scope, receive, send)
