"""Every request has an id, which is in its answer, in its log line and in the errors that have a
place for it."""

from __future__ import annotations

import logging
import time
from typing import Final

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock_gateway.envelopes.errors import refused_for
from penstock_gateway.envelopes.shapes import answer_to
from penstock_gateway.ids import new_id
from penstock_gateway.metrics import metrics_of, route_of

__all__ = ["RequestIds", "request_id_of"]

log = logging.getLogger("penstock.gateway")

_STATE: Final = "penstock_request_id"


# Of answers that say nothing else: no browser guesses a type, keeps an answer, shows a page in a
# frame, or passes its address on.
SAFE_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
_PATH_SHOWN: Final = 200  # characters of a path in a log line


class RequestIds:
    """The outermost step: it gives the id, writes the log line, and answers what no one else has
    answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, started, status = new_id("req"), time.perf_counter(), 0
        metrics = metrics_of(HTTPConnection(scope))
        metrics.in_flight.inc()
        scope.setdefault("state", {})[_STATE] = request_id

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given, headers = request_id.encode(), list(message["headers"])
                present = {name for name, _ in headers}
                headers += [(name, value) for name, value in SAFE_HEADERS if name not in present]
                message = {
                    **message,
                    "headers": [*headers, (b"x-request-id", given), (b"request-id", given)],
                }
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            # half of an answer is there: the connection ends, so that it is not taken for all of it
            if status:
                raise
            refused = refused_for(error)
            if refused.status == 500:
                log.exception(
                    "%s %s has failed (%s)", scope["method"], shown_path(scope), request_id
                )
            metrics.refused(refused.code)
            answer = answer_to(refused, scope["path"], request_id)
            await answer(scope, receive, send_with_id)
            # which knows this frame by its traceback, and all others with what they hold, as a body
            del refused
        finally:
            took_s, route = time.perf_counter() - started, route_of(HTTPConnection(scope))
            metrics.in_flight.dec()
            metrics.requests.labels(route, scope["method"], str(status)).inc()
            metrics.seconds.labels(route).observe(took_s)
            log.info(
                "%s %s %d %.0f ms (%s)",
                scope["method"],
                shown_path(scope),
                status,
                took_s * 1000,
                request_id,
            )


def shown_path(scope: Scope) -> str:
    """Without the query, which may hold what a log must not."""
    path: str = scope["path"]
    return path if len(path) <= _PATH_SHOWN else f"{path[:_PATH_SHOWN]}…"


def request_id_of(request: Request | HTTPConnection) -> str:
    return str(request.scope.get("state", {}).get(_STATE, ""))
