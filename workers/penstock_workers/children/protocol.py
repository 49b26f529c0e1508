"""The protocol between a worker and its children: msgpack messages, each preceded by its length.

A call has a number; its answer carries the same one. Children answer in any order.

Which calls a child is running at this moment, in shared memory that outlives it: they show which
call ended the child.

One slot is for the child's event loop, written around every step of a task; the others are for
threads with plain hooks.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from asyncio import StreamReader
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec

from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_workers.item.answer import Answer, NoAnswer, Tried

LENGTH_BYTES: Final = 4
FRAME_MAX: Final = 2 * 1024**3  # a request and the largest answer that settings allow


class ChildMessage(msgspec.Struct, frozen=True, tag=True):
    """A call or an answer."""


class ImportHook(ChildMessage, frozen=True):
    """Import a hook: answered by Fine or Missing."""

    path: str


class Preprocess(ChildMessage, frozen=True):
    """Call ``preprocess``: answered by Fine with the new body, CallFault or Missing."""

    path: str
    job_id: str
    generation: int
    doc_id: str
    endpoint: str
    body: bytes


class Postprocess(ChildMessage, frozen=True):
    """Call ``postprocess``: answered by Fine with what is stored, Refused, CallFault or Missing."""

    path: str
    job_id: str
    generation: int
    doc_id: str
    endpoint: str
    body: bytes
    answer: bytes


class TrySchema(ChildMessage, frozen=True):
    """Compile a schema and try it: answered by Fine or CallFault."""

    schema: bytes


class Check(ChildMessage, frozen=True):
    """Check an answer by a schema: answered by Fine, Mismatch or CallFault."""

    schema: bytes
    content: str


class Infer(ChildMessage, frozen=True):
    """Make the call of an item that may have crashed a worker: answered by Inferred."""

    doc_id: str
    request: bytes  # ``item.lane.Request`` as msgpack
    timeout_s: float  # of the request: its lane ends it then


class Fine(ChildMessage, frozen=True):
    body: bytes = b""


class Refused(ChildMessage, frozen=True):
    """The hook returned ``Invalid``."""

    reason: str
    retry: bool


class CallFault(ChildMessage, frozen=True):
    """The call failed; ``words`` are for the dead letter."""

    words: str
    trace: str = ""  # the traceback, the first time that this hook raises in this child
    overtime: bool = False  # it exceeded its time limit
    hangs: bool = False  # and its thread still runs


class Mismatch(ChildMessage, frozen=True):
    """The answer does not fulfil the schema.

    ``words`` are for people and may quote it; ``rule`` is for the model."""

    words: str
    rule: str


class Missing(ChildMessage, frozen=True):
    """The hook cannot be imported, or is not allowed."""

    words: str
    hangs: bool = False  # its import still runs, in a thread that only the end of the child ends


class Inferred(ChildMessage, frozen=True):
    """The result of an ``Infer``: an answer, or why there is none (``failure``)."""

    latency_ms: int
    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""
    failure: str = ""
    detail: str = ""
    sent: bool = True
    packed: bool = False

    @classmethod
    def of(cls, tried: Tried) -> Inferred:
        # aiohttp's names are no plain str
        headers = {str(name): value for name, value in tried.headers.items()}
        if isinstance(tried, Answer):
            return cls(tried.latency_ms, tried.status, headers, tried.body, packed=tried.packed)
        return cls(
            tried.latency_ms,
            headers=headers,
            failure=tried.failure,
            detail=tried.detail,
            sent=tried.sent,
        )

    def tried(self) -> Tried:
        if self.failure:
            return NoAnswer(self.failure, self.detail, self.latency_ms, self.sent, self.headers)
        return Answer(self.status, self.headers, self.body, self.latency_ms, packed=self.packed)


class Ping(ChildMessage, frozen=True):
    """-> Fine, unless the child's loop is stuck."""


class Cancel(ChildMessage, frozen=True):
    """The worker no longer waits for the call of this number. No answer."""


ChildCall = ImportHook | Preprocess | Postprocess | TrySchema | Check | Infer
ChildReply = Fine | Refused | CallFault | Mismatch | Missing | Inferred


class CallFrame(msgspec.Struct, frozen=True):
    number: int
    what: ImportHook | Preprocess | Postprocess | TrySchema | Check | Infer | Ping | Cancel


class ReplyFrame(msgspec.Struct, frozen=True):
    number: int
    what: Fine | Refused | CallFault | Mismatch | Missing | Inferred


HELLO: Final = 0  # the number of the first message of a child, sent when it can take calls

read_call: Final = msgspec.msgpack.Decoder(CallFrame).decode
read_reply: Final = msgspec.msgpack.Decoder(ReplyFrame).decode
_encode: Final = msgspec.msgpack.Encoder().encode


def frame(message: CallFrame | ReplyFrame) -> bytes:
    """Return the message as it is sent. A lone surrogate in one of its texts is sent as U+FFFD."""
    try:
        encoded = _encode(message)
    except UnicodeEncodeError:
        what = message.what
        fields = {name: _replaced(getattr(what, name)) for name in what.__struct_fields__}
        replaced = msgspec.structs.replace(what, **fields)
        encoded = _encode(msgspec.structs.replace(message, what=replaced))
    return len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded


def _replaced(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):  # headers
        return {_replaced(name): _replaced(text) for name, text in value.items()}
    return value


async def read_frame(reader: StreamReader) -> bytes:
    """Read one frame.

    Raises IncompleteReadError or ConnectionError when the other end is gone, ValueError for a
    length above ``FRAME_MAX``."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > FRAME_MAX:
        raise ValueError(f"a message of {length} bytes; {FRAME_MAX} are allowed")
    return await reader.readexactly(length)


LOOP: Final = 0
# the loop, four threads at work, and threads that hang until their child is ended
SLOTS: Final = 32
_SLOT: Final = struct.Struct("QQ")  # number of the call (0: none), steps made so far
SIZE: Final = SLOTS * _SLOT.size


def new_file() -> int:
    """Return a file descriptor to share with one child.

    The file has no name and is deleted with its last descriptor."""
    with tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        return os.dup(file.fileno())


class RunningCalls:
    """Written by one child, read by its worker. Takes over ``fd`` and closes it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)
        os.close(fd)
        self._steps = [0] * SLOTS
        self._free = deque(range(1, SLOTS))

    def enter(self, slot: int, number: int) -> None:
        self._steps[slot] += 1
        _SLOT.pack_into(self._map, slot * _SLOT.size, number, self._steps[slot])

    def leave(self, slot: int) -> None:
        _SLOT.pack_into(self._map, slot * _SLOT.size, 0, self._steps[slot])

    @contextmanager
    def in_thread(self, number: int) -> Iterator[None]:
        """Record a call while its thread runs it.

        With more threads than slots the last ones are not recorded."""
        slot = None
        with suppress(IndexError):
            slot = self._free.popleft()
            self.enter(slot, number)
        try:
            yield
        finally:
            if slot is not None:
                self.leave(slot)
                self._free.append(slot)

    # -- the worker --------------------------------------------------------------------------------

    def running(self) -> set[int]:
        """Return the numbers of the calls that run, or ran when the child died."""
        return {number for number, _ in _SLOT.iter_unpack(self._map[:SIZE]) if number}

    def on_loop(self) -> tuple[int, int]:
        """Return the number of the call that has the loop (0: none), and its step."""
        number, step = _SLOT.unpack_from(self._map, LOOP)
        return number, step

    def close(self) -> None:
        self._map.close()
