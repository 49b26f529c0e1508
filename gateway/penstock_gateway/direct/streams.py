"""The stream of one answer: comments until something comes, what workers pass on, and the rest.

What is passed on is for display. The end is the stored answer, as it is in SQL: of it comes what is
missing, or an event that says why there is none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from penstock_gateway.direct.events import (
    Differs,
    Held,
    data_event,
    named_event,
    writer_for,
)
from penstock_gateway.errors import anthropic_error, openai_error, refused_for
from penstock_gateway.refused import Refused
from penstock_gateway.routing import QUIET_S, STILL_THERE, EventResponse
from penstock_ledger import PenstockError
from penstock_ledger.lone_surrogates import dump_json, parse_json
from penstock_producer.dialects.pieces import Delta, Piece, size_of
from penstock_producer.dialects.translation import Untranslatable, answer_for
from penstock_producer.job.endpoints import MESSAGES, RESPONSES

__all__ = ["AnswerStream", "LiveAnswer", "error_event", "something_of"]

log = logging.getLogger("penstock.gateway")

Coming = asyncio.Task[tuple[bytes, Any]]
"""All events of an answer that are still to be sent, and what else is known of it."""

# that wait for one slow reader; what comes beyond that is sent with the stored answer
WAITING_BYTES: Final = 256 * 1024


class LiveAnswer:
    """One answer that is read as it comes: the pieces that workers pass on, then the rest.

    Belongs to the event loop. Pieces come from Redis, where anyone may write who reaches it: they
    are shown as they come, in their order, until one is missing, and the stored answer must go on
    with them."""

    def __init__(self, endpoint: str, request: Mapping[str, Any], *, with_usage: bool) -> None:
        self._endpoint, self._request = endpoint, request
        self._writer = writer_for(endpoint, with_usage=with_usage)
        self._head: Mapping[str, Any] | None = None
        self._run: str | None = None  # the try whose pieces are shown
        self._next = 0  # number of its next piece
        self._deltas: list[Delta] = []
        self._size = 0  # of them, in bytes
        self._is_over = False
        self.arrived = asyncio.Event()
        self.noted_at = float("-inf")  # monotonic: of the newest piece

    def note(self, piece: Piece) -> None:
        """Take a piece, unless it is of another try than those before it."""
        if self._is_over or (self._run is not None and piece.run != self._run):
            return
        self._run = piece.run
        if piece.number != self._next or (self._next == 0 and piece.head is None):
            self._is_over = True  # one is missing
            return
        self._next += 1
        self.noted_at = time.monotonic()
        self._head = self._head or piece.head
        self._deltas += piece.deltas
        self._size += size_of(piece.deltas)
        self._is_over = self._size > WAITING_BYTES
        self.arrived.set()

    def taken(self) -> bytes:
        """Return the events of what has come since."""
        self.arrived.clear()
        deltas, self._deltas, self._size = self._deltas, [], 0
        written = list[bytes]()
        try:
            if self._head is not None and deltas:
                written.append(self._begun(self._head))
                self._head = None
            written += [self._writer.pass_on(delta) for delta in deltas]
        except (Held, Untranslatable):
            self._is_over = True
        return b"".join(written)

    def end(self) -> None:
        """Take no more: the answer is stored."""
        self._is_over, self._deltas = True, []

    def rest(self, answer: bytes) -> bytes:
        """Return the events of the answer, in its caller's words, that were not sent.

        Raises Refused (502) where it does not go on with what was."""
        try:
            return self._writer.rest(parse_json(answer))
        except Differs:
            raise Refused(
                502,
                "the answer was made twice, and the second does not go on with what was sent; it "
                "is kept in its job",
                code="answer_differs",
                kind="server_error",
            ) from None

    def _begun(self, head: Mapping[str, Any]) -> bytes:
        given = dump_json(dict(head))
        told = answer_for(self._endpoint, given, time.time(), self._request)
        return self._writer.begin(parse_json(told), is_own=told == given)


class AnswerStream(EventResponse):
    """Sends what comes of an answer, or comments; then the rest, or why there is none."""

    def __init__(
        self,
        coming: Coming,
        live: LiveAnswer,
        endpoint: str,
        request_id: str,
        leave: Callable[[], None],
    ) -> None:
        """Wait for what comes; ``leave`` is called when the last event was sent."""
        super().__init__()
        self._coming, self._live = coming, live
        self._endpoint, self._leave = endpoint, leave
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.begin(send)
            while not self._coming.done():
                await self.send_piece(send, self._live.taken() or STILL_THERE)
                await something_of(self._coming, self._live, QUIET_S)
            await self.send_piece(send, self._events())
            await self.end(send)
        except TimeoutError:
            log.warning("a reader of an answer took nothing and is dropped (%s)", self._request_id)
        except OSError:
            pass  # it has gone while something was sent
        finally:
            if not self._coming.cancel() and not self._coming.cancelled():
                self._coming.exception()  # of which a reader that has gone heard nothing
            self._leave()

    def _events(self) -> bytes:
        try:
            return self._coming.result()[0]
        except (Refused, PenstockError) as error:
            return error_event(self._endpoint, refused_for(error), self._request_id)
        except Exception as error:
            log.exception("an answer could not be sent (%s)", self._request_id)
            return error_event(self._endpoint, refused_for(error), self._request_id)


async def something_of(coming: Coming, live: LiveAnswer, longest_s: float) -> None:
    """Wait until the answer is there, or a piece of it."""
    arrived = asyncio.ensure_future(live.arrived.wait())
    try:
        await asyncio.wait(
            {coming, arrived}, timeout=longest_s, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        arrived.cancel()


def error_event(endpoint: str, refused: Refused, request_id: str) -> bytes:
    """Return the event that ends a stream which has failed."""
    if endpoint == MESSAGES:
        return named_event(anthropic_error(refused, request_id))
    error = openai_error(refused)["error"]
    if endpoint == RESPONSES:
        return named_event({**error, "type": "error", "sequence_number": 0})
    return data_event({"error": error})
