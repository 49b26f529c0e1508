"""One connection to a server: one request at a time, its answer, and its deadline."""

from __future__ import annotations

import asyncio
import select
import ssl
from typing import cast

from penstock_workers.http.client import (
    ConnectionLost,
    HttpAnswer,
    HttpError,
    Limits,
    PartReader,
    TimedOut,
)
from penstock_workers.http.reader import AnswerReader

WHOLE_BYTES = 64 * 1024  # a body up to here is written at once, with its head
CLOCK_STEP_S = 0.001  # uvloop counts in milliseconds: a timer may ring so much early
# of a larger body: the next piece is written when the socket has taken the one before
PIECE_BYTES = 256 * 1024


class Connection(asyncio.Protocol):
    """Made by the pool. It is ``idle`` between requests; once it is not usable it stays so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        self._loop = loop
        self._reader = AnswerReader(limits)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None  # of the request that is under way
        self._deadline = 0.0  # of the request that is under way: of its next byte, where it streams
        self._whole_by = 0.0  # of its last byte
        self._stream: PartReader | None = None
        # rings no later than the deadline; see _expect
        self._alarm: asyncio.TimerHandle | None = None
        self._room_to_write: asyncio.Future[None] | None = None  # while the socket takes no more
        self._is_uploading = False
        self._broke_by: Exception | None = None
        self.usable = True
        self.idle_since = self.idle_until = 0.0  # set by the pool

    # -- one request -------------------------------------------------------------------------------

    async def exchange(
        self,
        head: bytes,
        body: bytes,
        deadline: float,
        *,
        reserves: bool,
        stream: PartReader | None = None,
    ) -> int:
        """Send a request and wait for its answer.

        Returns 0 when that is whole, or how many bytes it wants reserved.

        Raises HttpError. Whatever is raised, and where it is cancelled, the connection is closed.
        """
        assert self._transport is not None, "the pool hands out connected ones"
        self._reader.begin(reserves=reserves, stream=stream)
        self._stream = stream
        waiter = self._expect(deadline)
        if stream is not None:
            self._await_until(min(deadline, self._loop.time() + stream.first_s))
        try:
            if len(body) <= WHOLE_BYTES:
                self._transport.write(head + body)
            else:
                await self._upload(self._transport, waiter, head, body)
            await waiter
        except BaseException:
            self.close()
            raise
        finally:
            # an exception's traceback reaches this frame, and the waiter holds the exception
            del waiter
            self._waiter = None
        return self._reader.wants

    async def go_on(self, deadline: float) -> None:
        """Go on after the memory was reserved: read the rest of the answer. Raises HttpError."""
        try:
            self._reader.grant()
        except HttpError:
            self.close()
            raise
        if self._reader.complete:
            return
        waiter = self._expect(deadline)
        try:
            if self._transport is None:
                self._ended()
            else:
                self._transport.resume_reading()
            await waiter
        except BaseException:
            self.close()
            raise
        finally:
            del waiter
            self._waiter = None

    def finish(self) -> HttpAnswer:
        """Return the whole answer; raise ConnectionLost where its body is cut short."""
        try:
            answer = self._reader.answer()
        except HttpError:
            self.close()
            raise
        self.usable = self.usable and self._reader.keeps and not self._is_uploading
        return answer

    def _expect(self, deadline: float) -> asyncio.Future[None]:
        """Return a future that fails at the deadline.

        The timer stays from request to request: to set and clear one for each takes a microsecond
        or two.

        So it may have been set for an earlier request. Then it rings too early for this one, and is
        set again."""
        self._waiter = waiter = self._loop.create_future()
        self._whole_by = deadline
        self._await_until(deadline)
        return waiter

    def _await_until(self, deadline: float) -> None:
        self._deadline = deadline
        if self._alarm is None or deadline < self._alarm.when():
            self._silence()
            self._alarm = self._loop.call_at(deadline, self._ring)

    async def _upload(
        self, transport: asyncio.Transport, waiter: asyncio.Future[None], head: bytes, body: bytes
    ) -> None:
        """Send the body, unless an answer, mostly a refusal, comes before all is sent."""
        self._is_uploading = True
        transport.write(head)
        view = memoryview(body)
        for start in range(0, len(view), PIECE_BYTES):
            if self._room_to_write is not None:
                await self._room_to_write
            if waiter.done():
                return
            transport.write(view[start : start + PIECE_BYTES])
        self._is_uploading = False

    # -- ends --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection, where it is open."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def tls_session(self) -> ssl.SSLSession | None:
        """Return what a later connection to this server may begin with; None once ended."""
        if self._transport is None:
            return None
        encrypted: ssl.SSLObject = self._transport.get_extra_info("ssl_object")
        return encrypted.session

    def is_stale(self) -> bool:
        """Return whether an idle connection has ended, or has bytes that the loop has not seen yet.

        Costs a system call."""
        if self._transport is None or self._transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None:
            return
        if self._deadline - self._loop.time() > CLOCK_STEP_S:
            self._alarm = self._loop.call_at(self._deadline, self._ring)
            return
        self._end(TimedOut("the answer was not whole in time"))
        self.close()

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _end(self, error: HttpError | None = None) -> None:
        """Wake the request that waits: its answer is whole, wants memory, or has failed."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        self._let_write()

    def _let_write(self) -> None:
        writing, self._room_to_write = self._room_to_write, None
        if writing is not None and not writing.done():
            writing.set_result(None)

    # -- called by the loop ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # bytes that no request asked for: they could be taken for the next answer
        if self._waiter is None:
            self.close()
            return
        reader = self._reader
        try:
            reader.feed(data)
        except HttpError as error:
            self._end(error)
            self.close()
            return
        if reader.complete:
            self._end()
        elif reader.wants:
            assert self._transport is not None, "it has just brought data"
            self._transport.pause_reading()
            self._end()
        elif self._stream is not None and reader.has_head:
            next_by = self._loop.time() + self._stream.next_s
            self._await_until(min(self._whole_by, next_by) if reader.streams else self._whole_by)

    def pause_writing(self) -> None:
        self._room_to_write = self._loop.create_future()

    def resume_writing(self) -> None:
        self._let_write()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._broke_by = None, exc
        self.usable = False
        self._silence()
        self._ended()
        self._reader.close()

    def _ended(self) -> None:
        if self._waiter is None:
            return
        if self._broke_by is not None:
            self._end(ConnectionLost(f"the connection broke: {self._broke_by}"))
            return
        try:
            self._reader.end()
        except ConnectionLost as error:
            self._end(error)
        else:
            self._end()
