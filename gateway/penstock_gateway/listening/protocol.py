"""uvicorn's HTTP protocol with the limits that it does not have: on heads, on silence in either direction, on connections.

uvicorn waits for the head of a request for as long as it takes, takes heads of any size, waits for ever for a client that does
not read its answer, and counts idle connections as work. In front of a proxy that has these limits none of this is needed; the
doors do not rely on one.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final, cast

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from penstock_gateway.envelopes.shapes import openai_error
from penstock_gateway.listening.connections import ConnectionBook
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewayFields

__all__ = ["BoundedHttp", "bounded_http"]

HEADERS_MAX: Final = 200  # fields in one head; clients send about twenty
LINGER_S: Final = 5.0  # for which the rest of a refused body is read and dropped, so that its sender can read why
UNREAD_S: Final = 60.0  # for which an answer may wait for its reader; 48 KiB have to go within that time


class BoundedHttp(HttpToolsProtocol):
    """One connection. Made by ``bounded_http``, which gives the class its limits."""

    limits: ClassVar[GatewayFields]
    book: ClassVar[ConnectionBook]

    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _end_timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0
    _body_there = True  # whether the body of the last request has come whole
    _deaf = False  # what still comes is dropped
    _at_work = False  # a request was begun and is not answered yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.book.opened(self)
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
        super().data_received(data)
        if self._in_head and self._head_bytes > self.limits.max_header_bytes:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._body_there = False

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.max_header_bytes or len(self.headers) > HEADERS_MAX:
            self._refuse_head()
        if self._deaf:
            return
        self._in_head, self._head_bytes = False, 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self.book.busy(self)
        super().on_headers_complete()
        self.cycle.transport = cast(asyncio.Transport, _Answering(self))
        self._at_work = True

    def on_body(self, body: bytes) -> None:
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._body_there = self._in_head = True
        if not self._deaf:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._at_work = bool(self.pipeline)
        super().on_response_complete()
        if not self._at_work:
            self.book.idle(self)
        if not self._body_there and not self.transport.is_closing():
            self._linger()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end_soon()

    def send_400_response(self, msg: str) -> None:
        self._say(400, msg, "invalid_request")

    def _await_head(self) -> None:
        """From the first moment, and again from the first byte after a request, until the head is there whole."""
        if self._head_timer is None and not self._at_work:
            self._head_timer = self.loop.call_later(self.limits.header_timeout_s, self._late_head)

    def _late_head(self) -> None:
        if self._head_bytes:
            self._say(408, "The head of the request did not come in time.", "request_timeout")
        else:
            self.drop()

    def _refuse_head(self) -> None:
        most = self.limits.max_header_bytes
        self._say(431, f"The head of a request has at most {most} bytes and {HEADERS_MAX} fields.", "headers_too_large")

    def _say(self, status: int, message: str, code: str) -> None:
        """An answer to what is no request, or no longer one; the route of a request that was broken off finds its client gone."""
        if self._deaf or self.transport.is_closing():
            return
        if self._at_work:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.drop()
                return
        body = orjson.dumps(openai_error(Refused(status, message, code=code)))
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self._linger()

    def _linger(self) -> None:
        """Stop listening, and end a little later: a connection that is closed on unread data loses the answer, too."""
        self._deaf = True
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._end_soon()

    def _end_soon(self) -> None:
        if self._end_timer is None:
            self._end_timer = self.loop.call_later(LINGER_S, self.drop)

    @property
    def body_is_there(self) -> bool:
        return self._body_there


class _Answering:
    """The connection as the answer to one request has it. uvicorn closes it behind an answer where the client has asked for
    that; while the body still comes, the answer would be lost then, and `BoundedHttp` ends it a little later."""

    def __init__(self, protocol: BoundedHttp) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol.transport, name)

    def close(self) -> None:
        if self._protocol.body_is_there or not self._cycle.response_complete:
            self._protocol.transport.close()


def bounded_http(door: GatewayFields, connections: ConnectionBook) -> type[BoundedHttp]:
    """The protocol of one server."""

    class OfThisServer(BoundedHttp):
        limits = door
        book = connections

    return OfThisServer
