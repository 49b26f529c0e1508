"""The program of a child: `python -m penstock_workers.in_child.serve SOCKET MARKS OPTIONS`.

``Child.start`` alone starts it.

It answers calls until its worker ends. It leads a process group of its own, so that signals to the
worker's group do not reach it, and processes that hooks start end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock_producer.job.lanes import DEFAULT_LANE
from penstock_workers.children.protocol import (
    HELLO,
    LOOP,
    CallFault,
    CallFrame,
    Cancel,
    Check,
    ChildReply,
    Fine,
    ImportHook,
    Infer,
    Inferred,
    Ping,
    Postprocess,
    Preprocess,
    ReplyFrame,
    RunningCalls,
    TrySchema,
    frame,
    read_call,
    read_frame,
)
from penstock_workers.in_child.hook_calls import HookCalls
from penstock_workers.in_child.hook_imports import in_words

if TYPE_CHECKING:
    from penstock_workers.failpoints import Failpoints
    from penstock_workers.in_child.schema import SchemaChecks
    from penstock_workers.item.lane import Lane

PR_SET_PDEATHSIG = 1


class Options(msgspec.Struct, frozen=True):
    """The options that a child is started with."""

    worker: int  # pid
    path: list[str]  # the worker's sys.path
    allowed: list[str] | None = None  # the setting hook_modules
    hook_s: float = 60.0
    lane: str = DEFAULT_LANE  # whose items are inferred here, should any be under suspicion


_number: ContextVar[int] = ContextVar("number of the call")


class ChildServer:
    """One connection to the worker."""

    def __init__(
        self, writer: asyncio.StreamWriter, running_calls: RunningCalls, options: Options
    ) -> None:
        self._writer, self._running_calls, self._options = writer, running_calls, options
        self._hooks = HookCalls(running_calls, options.allowed, options.hook_s)
        self._tasks: dict[int, asyncio.Task[None]] = {}  # bounded by the worker
        self._schemas: SchemaChecks | None = None
        self._lane: asyncio.Future[tuple[Lane, Failpoints]] | None = None

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Serve until the worker is gone."""
        self._say(HELLO, Fine())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self._take(read_call(await read_frame(reader)))

    def _say(self, number: int, what: ChildReply) -> None:
        """Answer the call.

        What cannot be sent is answered by its failure, since nothing else would end the call."""
        try:
            message = frame(ReplyFrame(number, what))
        except Exception as error:
            message = frame(
                ReplyFrame(number, CallFault(f"its answer cannot be sent: {in_words(error)}"))
            )
        self._writer.write(message)

    def _take(self, asked: CallFrame) -> None:
        number, what = asked.number, asked.what
        match what:
            case Check() | TrySchema():
                self._running_calls.enter(LOOP, number)
                self._say(number, self._check(what))
                self._running_calls.leave(LOOP)
            case Ping():
                self._say(number, Fine())
            case Cancel():
                if number in self._tasks:
                    self._tasks[number].cancel()
            case _:
                token = _number.set(number)
                self._tasks[number] = asyncio.get_running_loop().create_task(
                    self._run(number, what)
                )
                _number.reset(token)

    def _check(self, what: Check | TrySchema) -> ChildReply:
        try:
            if self._schemas is None:
                from penstock_workers.in_child.schema import SchemaChecks

                self._schemas = SchemaChecks()
            if isinstance(what, Check):
                return self._schemas.check(what.schema, what.content)
            words = self._schemas.unusable(what.schema)
            return Fine() if words is None else CallFault(words)
        except Exception as error:
            return CallFault(f"the schema cannot be used: {in_words(error)}")

    async def _run(self, number: int, what: ImportHook | Preprocess | Postprocess | Infer) -> None:
        try:
            answer = await (
                self._infer(what) if isinstance(what, Infer) else self._hooks.answer(number, what)
            )
        # an error in Penstock, or a cancel: a hook's exceptions come back as values
        except BaseException as error:
            answer = CallFault(in_words(error))
        self._tasks.pop(number, None)
        # also of a call that its worker has cancelled, which knows its number no more
        self._say(number, answer)

    async def _infer(self, what: Infer) -> Inferred:
        """Make the call; an exception does not count against the item.

        Only a call that ends the process does."""
        from penstock_workers.item.answer import NoAnswer
        from penstock_workers.item.lane import Request

        try:
            if self._lane is None:
                self._lane = asyncio.ensure_future(_open_lane(self._options.lane))
            lane, failpoints = await asyncio.shield(self._lane)
            failpoints.hit("infer", what.doc_id)
            prepared = await lane.prepare(msgspec.msgpack.decode(what.request, type=Request))
            return Inferred.of(prepared.refused or await lane.infer(prepared))
        except Exception as error:
            return Inferred.of(NoAnswer("unexpected_error", in_words(error), 0))


async def _open_lane(name: str) -> tuple[Lane, Failpoints]:
    from penstock_workers.failpoints import Failpoints
    from penstock_workers.lanes.registry import make_lane
    from penstock_workers.settings import WorkerSettings

    settings = WorkerSettings.load(lane=name)
    lane = make_lane(settings)
    await lane.start()
    return lane, Failpoints.parse(settings.failpoints)


class _Recorded:
    """A coroutine whose number is recorded while it has the loop."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], running_calls: RunningCalls, number: int
    ) -> None:
        self._coroutine, self._running_calls, self._number = coroutine, running_calls, number

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._coroutine.__await__()
        step, argument = steps.send, None
        while True:
            self._running_calls.enter(LOOP, self._number)
            try:
                waits_for = step(argument)
            except StopIteration as end:
                return end.value
            finally:
                self._running_calls.leave(LOOP)
            try:
                argument = yield waits_for
                step = steps.send
            except BaseException as error:
                step, argument = steps.throw, error


def _record_tasks(loop: asyncio.AbstractEventLoop, running_calls: RunningCalls) -> None:
    """Record every task of a call while it runs, those that a hook starts included."""

    async def recorded(coroutine: Coroutine[Any, Any, Any], number: int) -> Any:
        return await _Recorded(coroutine, running_calls, number)

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        number = _number.get(0)
        return asyncio.Task(recorded(coroutine, number) if number else coroutine, loop=loop, **more)

    loop.set_task_factory(make)


async def _main(fd: int, running_calls: RunningCalls, options: Options) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    _record_tasks(asyncio.get_running_loop(), running_calls)
    serving = ChildServer(writer, running_calls, options)
    gc.freeze()
    await serving.serve(reader)


def _end_with_worker(worker: int) -> None:
    """Have the kernel end this process with its worker, and first when memory runs out."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != worker:
        os._exit(0)


def _end_group_with_us() -> subprocess.Popen[bytes] | None:
    """Start a shell that kills what hooks have started once this process ends.

    It would outlive the process.

    It learns of the end by a signal, or else by the end of a pipe, which processes forked by hooks
    may hold open."""
    if os.getpgrp() != os.getpid():
        return None  # started by hand: the process group belongs to a terminal
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    with contextlib.suppress(OSError):  # an image without a shell
        return subprocess.Popen(
            ["/bin/sh", "-c", "trap 'kill -9 0' TERM; read _; kill -9 0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=prctl and partial(prctl, PR_SET_PDEATHSIG, signal.SIGTERM),
        )
    return None


def main() -> None:
    fd, running_calls_fd, options = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        msgspec.json.decode(sys.argv[3], type=Options),
    )
    os.set_inheritable(fd, False)  # processes that hooks start must not hold it open
    os.set_inheritable(running_calls_fd, False)
    _end_with_worker(options.worker)
    _keeper = _end_group_with_us()  # held: its pipe closes with it
    sys.path[:] = options.path
    try:
        asyncio.run(_main(fd, RunningCalls(running_calls_fd), options))
    finally:
        os._exit(0)  # threads of hooks may never end


if __name__ == "__main__":
    main()
