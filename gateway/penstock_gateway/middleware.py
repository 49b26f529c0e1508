"""Every request passes these before its route: its id, its path, and room on the disk.

The ids that the doors give are a prefix that says of what, and 27 random letters and digits. One
from a caller is matched whole before anything is looked up by it, so that no path, pattern or
statement is made of another text.
"""

from __future__ import annotations

import logging
import re
import secrets
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, unquote_to_bytes

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock_gateway.errors import answer_to, refused_for
from penstock_gateway.metrics import metrics_of, route_of
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings
from penstock_producer.storage import free_bytes

__all__ = [
    "ACCEPT_BYTES",
    "Kind",
    "Paths",
    "RequestIds",
    "Room",
    "is_id",
    "is_shown",
    "new_id",
    "request_id_of",
]


Kind = Literal[
    "file", "batch", "msgbatch", "batch_req", "req", "key", "chatcmpl", "cmpl", "msg", "we", "evt"
]

_LETTERS: Final = string.digits + string.ascii_letters
_LENGTH: Final = 27  # 160 bits, although some letters are a little likelier than others:
# one random byte makes one
_LETTER_OF: Final = bytes(ord(_LETTERS[byte % len(_LETTERS)]) for byte in range(256))
_TAIL: Final = "[A-Za-z0-9]{24,64}"
SHOWN_CHARS: Final = 80  # more than any id has, here or at OpenAI
_PREFIX: Final[dict[Kind, str]] = {
    "file": "file-",
    "batch": "batch_",
    "msgbatch": "msgbatch_",
    "batch_req": "batch_req_",
    "req": "req_",
    "key": "key_",
    "chatcmpl": "chatcmpl-",
    "cmpl": "cmpl-",
    "msg": "msg_",
    "we": "we_",
    "evt": "evt_",
}
_SHAPE: Final = {kind: re.compile(re.escape(prefix) + _TAIL) for kind, prefix in _PREFIX.items()}


def new_id(kind: Kind) -> str:
    """Return a new id from one read of the system's random numbers.

    Each request needs two ids.
    """
    return _PREFIX[kind] + secrets.token_bytes(_LENGTH).translate(_LETTER_OF).decode()


def is_id(kind: Kind, text: str) -> bool:
    return _SHAPE[kind].fullmatch(text) is not None


def is_shown(text: str) -> bool:
    """Return whether a text that names nothing here may be repeated to its caller.

    Such an id is looked up like any other and found nowhere; it may be no longer than one that is.
    """
    return 0 < len(text) <= SHOWN_CHARS and text.isascii() and text.isprintable()


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
    """Gives the id, writes the log line, and answers what no other step has answered.

    It is the outermost step."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, started, status = new_id("req"), time.perf_counter(), 0
        metrics = metrics_of(HTTPConnection(scope)).requests
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
            metrics.answered.labels(route, scope["method"], str(status)).inc()
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
    """Return the path without the query, which may hold what a log must not."""
    path: str = scope["path"]
    return path if len(path) <= _PATH_SHOWN else f"{path[:_PATH_SHOWN]}…"


def request_id_of(request: Request | HTTPConnection) -> str:
    return str(request.scope.get("state", {}).get(_STATE, ""))


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


ACCEPT_BYTES: Final = 64 * 1024 * 1024
"""What has to be free for anything new. Jobs go on until half of that is left, so that what was
accepted comes first."""
_ENDS: Final = ("/cancel", "/pause", "/seal", "/resume", "/move")  # they accept nothing


class Room:
    """A step of the app. Raises Refused (507)."""

    def __init__(
        self,
        app: ASGIApp,
        settings: GatewaySettings,
        free: Callable[[Path], int | None] = free_bytes,
    ) -> None:
        self._app, self._free = app, free
        self._folder = _folder_of(settings.database_url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and self._folder is not None:
            path: str = scope["path"]
            if path.startswith("/v1/") and not path.endswith(_ENDS):
                _refuse_without(self._free(self._folder))
        await self._app(scope, receive, send)


def _refuse_without(free: int | None) -> None:
    if free is not None and free < ACCEPT_BYTES:
        raise Refused(
            507,
            f"the disk of the server has {free / 1e6:.1f} MB left: nothing new is accepted below "
            f"{ACCEPT_BYTES / 1e6:.0f} MB; what was accepted is kept. Remove files that are not "
            "needed any more, or tell its operator",
            code="insufficient_storage",
            kind="server_error",
            headers={"retry-after": "60"},
        )


def _folder_of(database_url: str) -> Path | None:
    kind, _, path = database_url.partition(":///")
    return Path(unquote(path)).parent if kind.startswith("sqlite") and path else None
