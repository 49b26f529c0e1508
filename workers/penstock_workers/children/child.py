"""The worker's end of one child process: it sends calls and receives answers.

When the child dies, every pending call fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from penstock_workers.children.protocol import (
    HELLO,
    CallFault,
    CallFrame,
    Cancel,
    Check,
    ChildCall,
    ChildReply,
    Infer,
    Missing,
    Ping,
    Postprocess,
    Preprocess,
    RunningCalls,
    TrySchema,
    frame,
    new_file,
    read_frame,
    read_reply,
)
from penstock_workers.errors import ChildBroken

log = logging.getLogger(__name__)

START_S = 60.0  # until a child can take calls: most of a second on an idle core
WATCH_S = 0.5  # between checks of its running calls and its memory
# a check that comes later than this was held up itself, perhaps with its whole machine
LATE_S = 2.0
PING_S = 5.0
SILENT_S = 65.0  # without an answer although it has calls: longer than a hook may take
HOOK_TIMEOUT_S = 60.0  # a hook that takes longer is stuck
CHECK_S = 5.0  # one check of an answer against a schema; a usual one takes well under a millisecond
# For a call to be answered, in which its child is alive and answers pings. All that a call may wait
# for has a limit of its own, so that only a call which its child has forgotten meets this one.
IMPORT_S = 600.0  # twice what one import may take: a second job's may stand before it
TURNS = 17  # of calls: a full child has 64, and plain hooks share four threads
LANE_S = 900.0  # beside the time limit of a request: its lane is opened for it
IDLE_S = 60.0  # a child that has had no call for so long is ended: to free its memory
PROGRAM = "penstock_workers.in_child.serve"


class LossCause(Enum):
    """The cause of a child's loss."""

    DIED = "died"
    STUCK = "stuck"  # killed: a call blocked it for longer than it may
    MEMORY = "memory"  # killed: it held more than it may


class Involvement(Enum):
    """The part of a pending call in its child's end."""

    THIS = "this"
    MAYBE = "maybe"  # one of several
    OTHER = "other"


class ChildLost(Exception):
    """The child ended before it answered this call."""

    def __init__(self, cause: LossCause, involvement: Involvement) -> None:
        super().__init__(cause, involvement)
        self.cause, self.involvement = cause, involvement


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The limits of one child."""

    memory_bytes: int
    hook_s: float  # one call of a hook
    check_s: float = CHECK_S

    def of(self, call: ChildCall | None) -> float:
        """Return for how many seconds a call may keep the child's event loop for itself."""
        if isinstance(call, (Check, TrySchema)):
            return self.check_s
        return self.hook_s if isinstance(call, (Preprocess, Postprocess)) else SILENT_S

    def answer_s(self, call: ChildCall) -> float:
        """Return after how many seconds a call that its child has not answered counts as stuck."""
        if isinstance(call, Infer):
            return call.timeout_s + LANE_S
        return IMPORT_S + TURNS * max(self.hook_s, self.check_s)


class _Pending(NamedTuple):
    """A call that its child has not answered."""

    call: ChildCall
    future: asyncio.Future[ChildReply]
    asked_at: float


class Signs:
    """The latest signs of life of a child, without the time in which this process did not run.

    What calls did in that time is not known."""

    def __init__(self) -> None:
        self._stood_still_s = 0.0
        self._heard_at = self._pinged_at = monotonic()
        # the call on the child's loop and its step, and since when
        self._on_loop: tuple[tuple[int, int], float] = ((0, 0), 0.0)

    def ran_s(self, now: float) -> float:
        """Return how long this process has run until ``now``, from any time on."""
        return now - self._stood_still_s

    def heard(self) -> None:
        self._heard_at = monotonic()

    def spare(self, stood_still_s: float) -> None:
        """Leave out a time in which this process did not run."""
        if stood_still_s > 0.0:
            mark, since = self._on_loop
            self._on_loop = mark, since + stood_still_s
            self._heard_at += stood_still_s
            self._stood_still_s += stood_still_s

    def held_s(self, mark: tuple[int, int], now: float) -> float:
        """Return how long the child's loop has been in the step ``mark``; 0 where in none."""
        if mark != self._on_loop[0]:
            self._on_loop = mark, now
        return now - self._on_loop[1] if mark[0] else 0.0

    def are_missing(self, now: float) -> bool:
        return now - self._heard_at > SILENT_S

    def is_ping_due(self, now: float) -> bool:
        """Return whether the child is to be asked whether it lives; it is then, until the next."""
        if now - self._pinged_at <= PING_S:
            return False
        self._pinged_at = now
        return True


class Child:
    """A child process and its calls, on one event loop. Its caller bounds their number."""

    def __init__(self, process: Process, running_calls: RunningCalls, limits: ChildLimits) -> None:
        self.retired = False  # takes no more calls, and is ended when those inside are answered
        self.lost = False
        self._process, self._running_calls, self._limits = process, running_calls, limits
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._numbers = count(HELLO + 1)
        self._calls: dict[int, _Pending] = {}
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._signs = Signs()
        self._has_calls = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, options: Mapping[str, Any], limits: ChildLimits) -> Child:
        """Start a child; ``options`` are those of ``serve.Options``.

        Raises ChildBroken when it does not come up."""
        try:
            process, running_calls, worker_end = await _spawn(options)
        # too little memory, too many files, processes or threads
        except (OSError, RuntimeError) as error:
            raise ChildBroken(
                f"no process could be started for hooks and schemas: {error}"
            ) from error
        child = cls(process, running_calls, limits)
        await child._wait_for_hello(worker_end)
        return child

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    @property
    def open(self) -> bool:
        return not (self.retired or self.lost)

    async def ask(self, call: ChildCall) -> ChildReply:
        """Return the child's answer; raise ChildLost."""
        number = next(self._numbers)
        if not self._send(number, call):
            raise ChildLost(LossCause.DIED, Involvement.OTHER)  # it did not reach the child
        future: asyncio.Future[ChildReply] = asyncio.get_running_loop().create_future()
        if not self._calls:
            self._signs.heard()  # an idle child is silent
        self._calls[number] = _Pending(call, future, self._signs.ran_s(monotonic()))
        self._has_calls.set()
        try:
            answer = await future
        except asyncio.CancelledError:
            if self._calls.pop(number, None):
                self._send(number, Cancel())
            raise
        finally:
            self._end_if_retired()
        if isinstance(answer, CallFault | Missing) and answer.hangs:
            self.retired = True  # one of its threads hangs, and ends only with the process
            self._end_if_retired()
        return answer

    async def end(self) -> None:
        """Kill the child; pending calls fail."""
        self._lose(LossCause.DIED)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        await asyncio.gather(
            *(task for task in self._tasks if task is not current), return_exceptions=True
        )
        await self._process.wait()

    def _send(self, number: int, what: ChildCall | Ping | Cancel) -> bool:
        """Send a call; return False where the child is gone.

        It may be before ``_listen`` hears of it, and a write to a connection that uvloop has closed
        by then raises RuntimeError."""
        if not self._writer.is_closing():
            self._writer.write(frame(CallFrame(number, what)))
            if not self._writer.is_closing():
                return True
        self._lose(LossCause.DIED)
        return False

    async def _wait_for_hello(self, worker_end: socket.socket) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=worker_end)
        self._tasks = [
            asyncio.create_task(self._listen(), name="child"),
            asyncio.create_task(self._watch(), name="child's watch"),
        ]
        try:
            async with asyncio.timeout(START_S):
                await self._hello
        except (TimeoutError, ChildLost):
            await self.end()
            status = self._process.returncode
            raise ChildBroken(
                f"the process for hooks and schemas did not start within {START_S:.0f} s (exit "
                f"status {status}); its output is in the worker's log"
            ) from None
        except asyncio.CancelledError:
            await self.end()
            raise

    async def _listen(self) -> None:
        try:
            while True:
                said = read_reply(await read_frame(self._reader))
                self._signs.heard()
                if said.number == HELLO:
                    if not self._hello.done():
                        self._hello.set_result(None)
                    continue
                pending = self._calls.pop(said.number, None)
                if pending is not None and not pending.future.done():
                    pending.future.set_result(said.what)
        except (asyncio.IncompleteReadError, OSError, ValueError, msgspec.MsgspecError):
            # unreadable data counts as a death: what follows it cannot be read, either
            self._lose(LossCause.DIED)

    async def _watch(self) -> None:
        while not self.lost:
            if not self._calls and self._hello.done():
                self._has_calls.clear()
                try:
                    async with asyncio.timeout(IDLE_S):
                        await self._has_calls.wait()
                except TimeoutError:
                    self._lose(LossCause.DIED)
                    return
            before = monotonic()
            await asyncio.sleep(WATCH_S)
            now = monotonic()
            self._signs.spare(now - before - LATE_S)
            self._look(now)

    def _look(self, now: float) -> None:
        # processes that it started may keep its socket open
        if self._process.returncode is not None:
            self._lose(LossCause.DIED)
            return
        if self.lost or not self._calls:
            return
        mark = self._running_calls.on_loop()
        running = self._calls.get(mark[0])
        if self._signs.held_s(mark, now) > self._limits.of(
            None if running is None else running.call
        ):
            self._lose(LossCause.STUCK, {mark[0]})
        elif overdue := self._overdue(now):
            self._lose(LossCause.STUCK, overdue)
        elif self._signs.are_missing(now):
            self._lose(LossCause.STUCK)
        elif _resident(self._process.pid) > self._limits.memory_bytes:
            self._lose(LossCause.MEMORY)
        elif self._signs.is_ping_due(now):
            self._send(next(self._numbers), Ping())

    def _overdue(self, now: float) -> set[int]:
        """Return the calls that had no answer for longer than any of them may take."""
        ran = self._signs.ran_s(now)
        return {
            number
            for number, each in self._calls.items()
            if ran - each.asked_at > self._limits.answer_s(each.call)
        }

    def _lose(self, cause: LossCause, culprits: set[int] | None = None) -> None:
        """Kill the child and fail its pending calls.

        ``culprits`` None: the calls that were running."""
        if self.lost:
            return
        self.lost = True
        if self._calls:
            log.warning(
                "a process for hooks and schemas is lost (%s); %d calls in it go on",
                cause.value,
                self.in_flight,
            )
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        running = (culprits or self._running_calls.running()) & self._calls.keys()
        self._running_calls.close()
        self._writer.close()
        if not self._hello.done():
            self._hello.set_exception(ChildLost(cause, Involvement.MAYBE))
        calls, self._calls = self._calls, {}
        for number, pending in calls.items():
            if not pending.future.done():
                pending.future.set_exception(
                    ChildLost(cause, _involvement(number, running, len(calls)))
                )

    def _end_if_retired(self) -> None:
        if self.retired and not self._calls:
            self._lose(LossCause.DIED)


async def _spawn(options: Mapping[str, Any]) -> tuple[Process, RunningCalls, socket.socket]:
    """Start a child; return it with the worker's ends of what it shares with it.

    Where this fails a child that is up ends with its socket."""
    with ExitStack() as opened:
        worker_end, child_end = socket.socketpair()
        opened.callback(worker_end.close)
        with child_end:
            fd = new_file()
            opened.callback(os.close, fd)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                PROGRAM,
                str(child_end.fileno()),
                str(fd),
                json.dumps(dict(options)),
                stdin=DEVNULL,
                pass_fds=(child_end.fileno(), fd),
                start_new_session=True,
            )
        running_calls = RunningCalls(fd)
        opened.pop_all()
        return process, running_calls, worker_end


def _involvement(number: int, running: set[int], inside: int) -> Involvement:
    if inside == 1 or running == {number}:
        return Involvement.THIS
    return Involvement.MAYBE if number in running or not running else Involvement.OTHER


def _resident(pid: int) -> int:
    """Return how many bytes of memory the process holds; 0 where /proc does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0
