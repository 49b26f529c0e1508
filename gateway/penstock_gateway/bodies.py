"""Bodies: how large, how slow and in what form they may come. JSON is read once, here."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import orjson
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock_gateway.backend import backend_of
from penstock_gateway.callers.caller import STATE, Caller
from penstock_gateway.metrics import metrics_of, route_of
from penstock_gateway.refused import Refused, not_json
from penstock_gateway.routing import json_kept
from penstock_gateway.settings import GatewayFields
from penstock_producer.json_bounds import fits, huge_integer, overfull

__all__ = [
    "MAX_DEPTH",
    "MAX_KEYS",
    "Bodies",
    "checked_metadata",
    "is_json",
    "object_of",
    "parsed",
    "refuse_huge_integer",
    "refused_metadata",
]

METADATA_PAIRS: Final = 16
MAX_KEY, MAX_VALUE = 64, 512  # characters


def checked_metadata(given: Any) -> dict[str, str] | None:
    """Return metadata as it was given. Raises Refused (400), which names the pair."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise refused_metadata(
            "metadata", f"expected an object, but got {type(given).__name__}", "invalid_type"
        )
    if len(given) > METADATA_PAIRS:
        raise refused_metadata(
            "metadata", f"at most {METADATA_PAIRS} pairs are kept, and there are {len(given)}"
        )
    for key, value in given.items():
        param = f"metadata.{key[:MAX_KEY]}"
        if not key or len(key) > MAX_KEY:
            raise refused_metadata(
                param, f"a key has 1 to {MAX_KEY} characters, and this one has {len(key)}"
            )
        if not isinstance(value, str):
            raise refused_metadata(
                param, f"expected a string, but got {type(value).__name__}", "invalid_type"
            )
        if len(value) > MAX_VALUE:
            why = f"a value has at most {MAX_VALUE} characters, and this one has {len(value)}"
            raise refused_metadata(param, why)
    return dict(given)


def refused_metadata(param: str, why: str, code: str = "invalid_value") -> Refused:
    return Refused(
        400,
        f"Invalid {code.removeprefix('invalid_')} for '{param}': {why}.",
        code=code,
        param=param,
    )


SHOWN_DIGITS: Final = 40  # of an integer that is refused
MAX_DEPTH: Final = 64  # objects and lists inside one another; a request with tools has about ten
MAX_KEYS: Final = 5_000  # of one object: each that is not known there is an error of its own


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def parsed(body: bytes) -> Any:
    """Return the one JSON value that the body is.

    Raises Refused, also for one that is larger or deeper than a request can be, and for an integer
    that would be altered."""
    too_much = overfull(body)
    if too_much is not None:
        raise Refused(400, f"The body has {too_much}.", code="too_many_values")
    refuse_huge_integer(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(
            400, f"The body is not valid JSON: {error.msg} (byte {error.pos}).", code="invalid_json"
        ) from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH or body.count(b":") > MAX_KEYS:
        _check_containers(value)
    return value


def refuse_huge_integer(body: bytes) -> None:
    """Raise Refused for an integer beyond 64 bits, which parsing would alter."""
    number = huge_integer(body)
    if number is None:
        return
    shown = number if len(number) <= SHOWN_DIGITS else f"{number[:SHOWN_DIGITS]}…"
    try:
        place = _place_of_huge(json.loads(body))
    except (ValueError, RecursionError):  # no JSON, or thousands of digits
        place = None
    raise Refused(
        400,
        f"Invalid value for '{place or 'the body'}': 64 bits cannot hold the integer {shown}; send "
        "a smaller one, or a text.",
        code="invalid_number",
        param=place,
    )


def _place_of_huge(value: Any) -> str | None:
    """Return where the first integer beyond 64 bits is, as in `messages.0.seed`."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        place, one = waiting.pop()
        if isinstance(one, dict | list):
            inner = one.items() if isinstance(one, dict) else enumerate(one)
            waiting += [(f"{place}.{str(name)[:MAX_KEY]}", part) for name, part in inner][::-1]
        elif type(one) is int and not fits(str(one)):
            return place[1:] or None
    return None


def object_of(value: Any) -> dict[str, Any]:
    """Return the object that a body has to be. Raises Refused for another value."""
    if not isinstance(value, dict):
        raise Refused(400, "The body must be a JSON object.", code="invalid_type")
    return value


def _check_containers(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if any(len(one) > MAX_KEYS for one in level if isinstance(one, dict)):
            raise Refused(
                400,
                f"An object in the body has more than {MAX_KEYS:,} fields.",
                code="too_many_values",
            )
        inner = (
            one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer)
        )
        level = [one for one in inner if isinstance(one, dict | list)]
    if level:
        raise Refused(
            400, f"The body has more than {MAX_DEPTH} levels of nesting.", code="nesting_too_deep"
        )


FILES: Final = "/v1/files"
PAGE_FILES: Final = "/ui/new/file"  # the same, from the form of a page
MESSAGE_BATCHES: Final = "/v1/messages/batches"
PROMPTS: Final = "/v1/batch/sync"
# Paths whose routes read the body themselves, piece by piece.
STREAMED: Final = (FILES, PAGE_FILES, MESSAGE_BATCHES)
# Paths whose bodies are not JSON only: forms of the dashboard, rows of a job, files.
OTHER_TYPES: Final = (FILES, "/v1/jobs", "/v1/notifications", "/ui", "/login", "/logout")
# what a multipart form has beside its file; a route with a limit of its own says it better
FORM_BYTES: Final = 1024 * 1024
ANONYMOUS_BYTES: Final = 64 * 1024  # where no key is asked for: a login
ANONYMOUS_S: Final = 5.0  # for all of such a body, whatever comes meanwhile: it is a line of a form
# the slowest sender, on average, once it has used up body_timeout_s; being fast earns no more than
# that
BYTES_PER_S: Final = 1024
# Of all bodies that are held at once, and of those of one tenant; the next one is refused, and may
# come again. One body is always taken, however large max_body_bytes is.
MEMORY_BYTES: Final = 256 * 1024 * 1024
TENANT_BYTES: Final = MEMORY_BYTES // 4


class Bodies:
    """A step of the app."""

    def __init__(self, app: ASGIApp, door: GatewayFields) -> None:
        self._app = app
        self._door = door
        self._held = 0
        self._held_of: Counter[str | None] = Counter()  # by tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, headers = scope["path"], Headers(scope=scope)
        _check_coding(headers)
        most = self._most(path)
        _check_length(headers, most)
        incoming = Incoming(
            receive, most, self._door.body_timeout_s, is_known=_caller_of(scope) is not None
        )
        try:
            await self._passed_on(scope, headers, incoming, send)
        finally:
            if incoming.size:
                connection = HTTPConnection(scope)
                metrics_of(connection).requests.received.labels(route_of(connection)).inc(
                    incoming.size
                )

    async def _passed_on(
        self, scope: Scope, headers: Headers, incoming: Incoming, send: Send
    ) -> None:
        path = scope["path"]
        if not _has_body(headers) or _is_below(path, STREAMED):
            await self._app(scope, incoming.next, send)
            return
        read_as_json = is_json(headers.get("content-type", ""))
        if not read_as_json and path.startswith("/v1/") and not _is_below(path, OTHER_TYPES):
            raise not_json()
        await self._whole(scope, incoming, send, read_as_json)

    async def _whole(
        self, scope: Scope, incoming: Incoming, send: Send, read_as_json: bool
    ) -> None:
        # One buffer: a list of pieces would take forty bytes for each byte of a body that comes
        # byte by byte.
        body, held, tenant = bytearray(), 0, _tenant_of(scope)
        try:
            more = True
            while more:
                message = await incoming.next()
                if message["type"] != "http.request":
                    return  # its sender has gone
                piece = message.get("body", b"")
                body += piece
                held += len(piece)
                self._held += len(piece)
                self._held_of[tenant] += len(piece)
                self._check_room(tenant, held)
                more = message.get("more_body", False)
            whole = bytes(body)
            body.clear()
            if read_as_json and whole:
                value = await backend_of(HTTPConnection(scope)).run_sized(len(whole), parsed, whole)
                with json_kept(scope, value):
                    await self._app(scope, Replayed(whole, incoming.next).next, send)
            else:
                await self._app(scope, Replayed(whole, incoming.next).next, send)
        finally:
            self._held -= held
            self._held_of[tenant] -= held
            if not self._held_of[tenant]:
                del self._held_of[tenant]

    def _check_room(self, tenant: str | None, held: int) -> None:
        """Raise Refused where there is no room; ``held`` is what this body has so far."""
        for most, now in ((MEMORY_BYTES, self._held), (TENANT_BYTES, self._held_of[tenant])):
            if now > most and now > held:
                raise Refused(
                    503,
                    "the server holds too many bodies now; try again",
                    code="overloaded",
                    headers={"retry-after": "5"},
                )

    def _most(self, path: str) -> int:
        door = self._door
        if _is_below(path, (FILES, PAGE_FILES)):
            return door.max_upload_bytes + FORM_BYTES
        if _is_below(path, (MESSAGE_BATCHES,)):
            return door.batches.messages_max_bytes + FORM_BYTES
        if path == PROMPTS:
            return max(door.max_body_bytes, door.direct.batch_bytes)
        return door.max_body_bytes if path.startswith("/v1/") else ANONYMOUS_BYTES


class Incoming:
    """A body as it comes, within its limits.

    Only the time that is spent waiting for the sender counts."""

    def __init__(self, receive: Receive, most: int, patience_s: float, *, is_known: bool) -> None:
        self._receive = receive
        self._most = most
        self._is_known = is_known
        self._patience_s = self._left_s = patience_s if is_known else min(patience_s, ANONYMOUS_S)
        self.size = 0
        self._whole = False

    async def next(self) -> Message:
        if self._whole:
            return await self._receive()  # that the client goes away, which may take any time
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(0.001, self._left_s)):
                message = await self._receive()
        except TimeoutError:
            raise Refused(
                408, "The body of the request did not come in time.", code="request_timeout"
            ) from None
        came = len(message.get("body", b""))
        self.size += came
        earned_s = came / BYTES_PER_S if self._is_known else 0.0
        self._left_s = min(self._patience_s, self._left_s - (loop.time() - began) + earned_s)
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        if self.size > self._most:
            raise _too_large(self._most)
        return message


class Replayed:
    """A body that was read, for the route that reads it again."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def next(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _caller_of(scope: Scope) -> Caller | None:
    caller = scope.get("state", {}).get(STATE)
    return caller if isinstance(caller, Caller) else None


def _tenant_of(scope: Scope) -> str | None:
    caller = _caller_of(scope)
    return None if caller is None else caller.tenant


def _check_coding(headers: Headers) -> None:
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise Refused(
            415,
            f"Bodies with Content-Encoding {coding[:40]!r} are not read: send the body as it is.",
            code="unsupported_content_encoding",
        )


def _check_length(headers: Headers, most: int) -> None:
    told = headers.get("content-length")
    if told is not None and not (told.isascii() and told.isdigit() and len(told) < 20):
        raise Refused(400, "Content-Length is not a number.", code="invalid_content_length")
    if told is not None and int(told) > most:
        raise _too_large(most)


def _too_large(most: int) -> Refused:
    return Refused(413, f"The body is larger than {most} bytes.", code="body_too_large")


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)
