"""One try of inference came back with this, before it has a name.

What large answers may occupy in a process, all together.

Before one is read its room is taken, or waited for.

Room is taken once, for all that an answer may become, and never added to: two half-read answers
cannot wait for each other. It is given back when the item is settled, for until then the answer is
in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from penstock_ledger.redaction import redact_bytes, redact_excerpt
from penstock_ledger.vectors import MAGIC


class Room:
    """The part of the memory that one answer has.

    Given back by ``release``, or when nothing holds it any more."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: AnswerMemory, size: int) -> None:
        self._memory = memory
        self.size = size

    def shrink(self, size: int) -> None:
        """Keep room for the complete answer, of this many bytes."""
        spare, self.size = self.size - size, size
        self._memory.give_back(spare)

    def release(self) -> None:
        """Give the room back; any thread may do so, and doing it again does nothing."""
        size, self.size = self.size, 0
        self._memory.give_back(size)

    def __del__(self) -> None:
        if self.size:
            self.release()


class AnswerMemory:
    """``limit`` bytes, handed out in the order of asking.

    All but ``give_back`` belongs to the item loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        # bounded by the runner's slots
        self._waiting: deque[tuple[int, asyncio.Future[Room]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def taken(self) -> int:
        return self._taken

    async def room(self, size: int) -> Room:
        """Wait until the others leave room for ``size`` bytes, which are at most the limit."""
        assert 0 <= size <= self._limit, (
            "the settings see to it: one answer is never larger than all may be together"
        )
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if not self._waiting and self._taken + size <= self._limit:
            self._taken += size
            return Room(self, size)
        future: asyncio.Future[Room] = self._loop.create_future()
        self._waiting.append((size, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().release()
            self._hand_out()
            raise

    def give_back(self, size: int) -> None:
        """Give room back; any thread may let go of what is settled or forgotten."""
        if size and self._loop is not None:
            # the loop is closed, and the process about to end
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_back, size)

    def _take_back(self, size: int) -> None:
        self._taken -= size
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if future.done():  # its item was given up meanwhile
                self._waiting.popleft()
                continue
            if self._taken + size > self._limit:
                return
            self._waiting.popleft()
            self._taken += size
            future.set_result(Room(self, size))


class ReservedRoom:
    """The memory that one answer holds: none, until it is found to be large."""

    __slots__ = ("_memory", "room")

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self.room: Room | None = None

    async def reserve(self, size: int) -> None:
        self.room = await self._memory.room(size)

    def release(self) -> None:
        """Give the room back: the answer came to nothing."""
        if self.room is not None:
            self.room.release()


class Answer(Struct, frozen=True):
    """A complete HTTP answer (or its in-process equal).

    ``body`` is raw; nothing has looked inside yet."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    latency_ms: int
    room: Room | None = None  # that a large body takes; None for small ones
    # the body is vectors that the lane itself has packed (penstock_ledger.vectors), and no JSON
    packed: bool = False


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The try ended without a complete answer.

    ``failure`` is one of the names in item/run/fates.py: `timeout`, `connect_failed`,
    `connection_lost`, `answer_too_large`, … ``sent`` tells whether the provider may have seen, and
    billed, the request.
    """

    failure: str
    detail: str
    latency_ms: int
    sent: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)
    # what a streamed answer that was cut has cost so far: its `model` and its `usage`, estimated
    cut: Mapping[str, Any] | None = None


Tried = Answer | NoAnswer


def kept(status: int, body: bytes) -> bytes:
    """Return what is kept of a body: an answer as it came, a refusal without secrets."""
    return body if status == 200 else redact_bytes(body)


def excerpt(body: bytes | None, size: int) -> bytes | None:
    """Return the beginning of an answer that came to nothing, for a person, without secrets."""
    if body is not None and body.startswith(MAGIC):
        return b"(vectors, %d bytes)" % len(body)
    return redact_excerpt(body, size) if body else None
