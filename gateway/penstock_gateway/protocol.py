"""Extend uvicorn's HTTP protocol with limits on heads, on silence, and on connections.

uvicorn waits for the head of a request for as long as it takes, takes heads of any size, waits for
ever for a client that does not read its answer, and counts idle connections as work. In front of a
proxy that has these limits none of this is needed; the doors do not rely on one.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final, cast

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from penstock_gateway.callers.caller import FORWARDED, KNOWN, Proxies
from penstock_gateway.connections import ConnectionBook, Waiting
from penstock_gateway.errors import openai_error
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewayFields

__all__ = ["bounded_http"]

HEADERS_MAX: Final = 200  # fields in one head; clients send about twenty
# of the frame of a chunk: its size and two line ends are about eight; the rest may be an extension
CHUNK_BYTES: Final = 64
# requests that wait on one connection for the one before them; hardly a client sends any
PIPELINE_MAX: Final = 20
# for which the rest of a refused body is read and dropped, so that its sender can read why
LINGER_S: Final = 5.0
# for which an answer may wait for its reader; 48 KiB have to go within that time
UNREAD_S: Final = 60.0
AGAIN_S: Final = 5  # for which a client waits where there is no place for it
PROBES: Final = (b"/health", b"/livez")
# What is read once must be there once: of two, the next server might take the other one.
SINGLE: Final = frozenset({b"host", b"authorization", b"x-api-key", b"content-type", b"origin"})


class _Stop(Exception):
    """Signals that what was read is refused, and that the parser need not look at the rest."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. Made by ``bounded_http``, which gives the class its limits."""

    limits: ClassVar[GatewayFields]
    book: ClassVar[ConnectionBook]
    proxies: ClassVar[Proxies]

    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _end_timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0
    _fields = 0  # of the head that comes, or of the trailers behind a body
    _field_bytes = 0
    # that came since the head and are no body: sizes and extensions of chunks, trailers
    _frame_bytes = 0
    _queued_fields = 0  # of heads that wait for their turn
    _queued_bytes = 0
    _body_there = True  # whether the body of the last request has come whole
    _deaf = False  # what still comes is dropped
    _at_work = False  # a request was begun and is not answered yet
    _is_known = False  # whether the caller of that request is known
    _is_proxied = False  # whether a trusted balancer is at the other end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        self._is_proxied = self.proxies.is_trusted(peer)
        self.book.opened(self, None if self._is_proxied else self.proxies.asked_by(peer, ()))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.book.closed(self)
        for timer in (self._head_timer, self._unread_timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def drop(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        if self._in_head:
            self._await_head()
            self._head_bytes += len(data)
        else:
            self._frame_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self.limits.max_header_bytes:
            self._refuse_head()
        elif not self._in_head and self._frame_bytes > self.limits.max_header_bytes:
            self._refuse_frames()
        elif self._is_known and not self._body_there:
            self._note_wait(again=True)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._body_there = False
        self._fields = self._field_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._field_bytes += len(name) + len(value) + 4
        if self._fields > HEADERS_MAX or self._field_bytes > self.limits.max_header_bytes:
            (self._refuse_head if self._in_head else self._refuse_frames)()
            raise _Stop
        # what comes behind a body is no header: it was not there when the request was let in
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        self.scope.setdefault("state", {})[KNOWN] = self._caller_is_known
        super().on_headers_complete()
        self.cycle.transport = cast(asyncio.Transport, _Answering(self))
        self._in_head, self._head_bytes = False, 0
        self._fields = self._field_bytes = self._frame_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._at_work = True
        self._is_known = False
        self._note_wait()

    def on_chunk_header(self) -> None:
        self._frame_bytes = max(0, self._frame_bytes - CHUNK_BYTES)

    def on_body(self, body: bytes) -> None:
        self._frame_bytes = max(0, self._frame_bytes - len(body))
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_there = self._in_head = True
        if not self._deaf:
            super().on_message_complete()
            self._note_wait()

    def on_response_complete(self) -> None:
        self._at_work = bool(self.pipeline)
        super().on_response_complete()
        if not self._at_work:
            self.book.requests.end(self)
            self._note_wait()
        if not self._body_there and not self.transport.is_closing():
            self._linger()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.drop)
        self._note_wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
            self._note_wait()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end_soon()

    def send_400_response(self, msg: str) -> None:
        self._say(400, msg, "invalid_request")

    def _await_head(self) -> None:
        """Limit the time until the head is there whole.

        It counts from the first moment, and again from the first byte after a request."""
        if self._head_timer is None and not self._at_work:
            self._head_timer = self.loop.call_later(self.limits.header_timeout_s, self._late_head)

    def _late_head(self) -> None:
        if self._head_bytes:
            self._say(408, "The head of the request did not come in time.", "request_timeout")
        else:
            self.drop()

    def _check_head(self) -> None:
        """Check the head. Raises _Stop for one that is answered here, or not at all."""
        if self._deaf:
            raise _Stop
        size = len(self.url) + self._field_bytes
        if size > self.limits.max_header_bytes:
            self._refuse_head()
            raise _Stop
        names = [name for name, _ in self.headers if name in SINGLE]
        if len(names) > len(set(names)):
            self._say(
                400, "A header that may be there once only was sent twice.", "duplicate_header"
            )
            raise _Stop
        if self._at_work:
            self._check_queue(size)
        elif not self._has_place():
            raise _Stop

    def _check_queue(self, size: int) -> None:
        """Take a request that has not waited for the answer before it, or end then.

        Those that were taken are answered, as HTTP allows: the client asks again for what has no
        answer."""
        if not self.pipeline:
            self._queued_fields = self._queued_bytes = 0
        self._queued_fields += len(self.headers)
        self._queued_bytes += size
        if (
            len(self.pipeline) >= PIPELINE_MAX
            or self._queued_fields > HEADERS_MAX
            or self._queued_bytes > self.limits.max_header_bytes
        ):
            raise _Stop  # without an answer, see _say

    def _has_place(self) -> bool:
        """Return whether this request has one; it was answered where it has not."""
        if self.book.is_spare(self) and self.url.partition(b"?")[0] not in PROBES:
            self._say(
                503, "The server has as many connections as it may have; try again.", "overloaded"
            )
            return False
        if not self._is_proxied or self.client is None:
            return True
        named = [
            value.decode("latin-1") for name, value in self.headers if name == FORWARDED.encode()
        ]
        if self.book.requests.begin(self, self.proxies.asked_by(self.client[0], named)):
            return True
        most = self.limits.connections_of_address
        told = (
            f"{most} requests of this address are under way, as many as one may have "
            "(gateway.address_connections)."
        )
        self._say(429, told, "too_many_at_once")
        return False

    def _caller_is_known(self) -> None:
        self._is_known = True
        self._note_wait()

    def _note_wait(self, *, again: bool = False) -> None:
        """Tell the book what this connection waits for."""
        if not self._at_work or self._deaf:
            kind = Waiting.FOR_A_REQUEST
        elif self._body_there and self._unread_timer is None:
            kind = None
        else:
            kind = Waiting.FOR_A_CALLER if self._is_known else Waiting.FOR_A_STRANGER
        self.book.waits(self, kind, again=again)

    def _refuse_head(self) -> None:
        most = self.limits.max_header_bytes
        self._say(
            431,
            f"The head of a request has at most {most} bytes and {HEADERS_MAX} fields.",
            "headers_too_large",
        )

    def _refuse_frames(self) -> None:
        most = self.limits.max_header_bytes
        told = (
            f"Behind its head a chunked request has at most {most} bytes and {HEADERS_MAX} fields "
            "that are no body."
        )
        self._say(431, told, "headers_too_large")

    def _say(self, status: int, message: str, code: str) -> None:
        """Answer what is no request, or no longer one.

        The route of a request that was broken off finds its client gone."""
        if self._deaf or self.transport.is_closing():
            return
        if self._at_work and self._in_head:
            # It is about a request behind those that are under way: they are answered, and it is
            # not, for an answer out of turn would be read as that of another.
            self._deaf = True
            self.cycle.keep_alive = False
            return
        if self._at_work:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.drop()
                return
        body = orjson.dumps(openai_error(Refused(status, message, code=code)))
        again = b"retry-after: %d\r\n" % AGAIN_S if status in (429, 503) else b""
        head = (
            b"content-type: application/json\r\nconnection: close\r\n%bcontent-length: %d\r\n\r\n"
            % (
                again,
                len(body),
            )
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        self._linger()

    def _linger(self) -> None:
        """Stop listening, and end a little later.

        A connection that is closed on unread data loses the answer, too."""
        self._deaf = True
        self._note_wait()
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._end_soon()

    def _end_soon(self, within_s: float = LINGER_S) -> None:
        if self._end_timer is None:
            self._end_timer = self.loop.call_later(within_s, self.drop)

    def close_when_read(self) -> None:
        """End it behind its answer.

        A client that does not read it has no longer than for any other."""
        self.transport.close()
        self._end_soon(UNREAD_S)

    @property
    def body_is_there(self) -> bool:
        return self._body_there


class _Answering:
    """The connection as the answer to one request has it.

    uvicorn closes it behind an answer where the client has asked for that; while the body still
    comes, the answer would be lost then, and `BoundedHttp` ends it a little later."""

    def __init__(self, protocol: BoundedHttp) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle
        self._head: bytes | None = None  # of the answer, until its body comes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol.transport, name)

    def write(self, data: bytes) -> None:
        """Write the head of an answer with the first of its body, which follows at once.

        Each write wakes its reader. A body of unknown length may come much later, and a HEAD has
        none."""
        transport, cycle = self._protocol.transport, self._cycle
        if self._head is None and cycle.response_started:
            has_body = cycle.chunked_encoding is False and cycle.expected_content_length
            self._head = data if has_body and cycle.scope["method"] != "HEAD" else b""
            if self._head:
                return
        if self._head:
            transport.writelines((self._head, data))
            self._head = b""
        else:
            transport.write(data)

    def close(self) -> None:
        if self._protocol.body_is_there or not self._cycle.response_complete:
            self._protocol.close_when_read()


def bounded_http(door: GatewayFields, connections: ConnectionBook) -> type[BoundedHttp]:
    """Return the protocol of one server."""

    class OfThisServer(BoundedHttp):
        limits = door
        book = connections
        proxies = Proxies(door.trusted_proxies)

    return OfThisServer
