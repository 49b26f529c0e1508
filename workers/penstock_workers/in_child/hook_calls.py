"""The calls of a job's hooks in a child: their results and failures become answers.

Plain functions run in threads. One that never returns blocks its thread until its child is ended.
It is no ThreadPoolExecutor: there, waiting for a thread would count against a hook's time, a stuck
hook would keep its place for good, and the interpreter would wait for it at its end.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

import orjson

from penstock_ledger.lone_surrogates import dump_json, parse_json
from penstock_workers.children.protocol import (
    CallFault,
    ChildReply,
    Fine,
    ImportHook,
    Missing,
    Postprocess,
    Preprocess,
    Refused,
    RunningCalls,
)
from penstock_workers.errors import HookMissing
from penstock_workers.hooks import Invalid, Item
from penstock_workers.in_child.hook_imports import (
    HookImports,
    ImportHangs,
    in_words,
    place_of,
    reason_text,
    trace_of,
)

HOOK_THREADS = 4  # hooks are small; heavier ones call libraries that use the cores by themselves


class HookThreads:
    """Calls plain functions, at most HOOK_THREADS at once. All of it runs on one event loop."""

    def __init__(self, running_calls: RunningCalls) -> None:
        self._running_calls = running_calls
        self._places = asyncio.Semaphore(HOOK_THREADS)
        self._idle: list[_HookThread] = []

    async def run(self, number: int, call: Callable[[], Any], timeout_s: float) -> Any:
        """Return what ``call``, which never raises, returns.

        Its time counts from when a thread has it.

        Raises TimeoutError: then the thread goes on by itself until the child is ended."""

        def recorded() -> Any:
            with self._running_calls.in_thread(number):
                return call()

        async with self._places:
            thread = self._idle.pop() if self._idle else _HookThread()
            try:
                async with asyncio.timeout(timeout_s):
                    said = await thread.run(recorded)
            except BaseException:  # timed out, or the item was cancelled
                thread.end()
                raise
            self._idle.append(thread)
            return said

    def close(self) -> None:
        while self._idle:
            self._idle.pop().end()


class _HookThread:
    """One thread that makes one call at a time. It does not keep the process from ending."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = (
            SimpleQueue()
        )
        Thread(target=self._work, name="hook", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put((call, future))
        return future

    def end(self) -> None:
        """End after the call that it makes now, if any."""
        self._calls.put(None)

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            call, future = given
            said = call()
            try:
                future.get_loop().call_soon_threadsafe(_tell, future, said)
            except RuntimeError:
                return  # the loop has closed


def _tell(future: asyncio.Future[Any], said: Any) -> None:
    if not future.done():
        future.set_result(said)


# As an answer of a provider: what is larger would burden SQL and the memory of every reader.
HOOK_RESULT_BYTES = 32 * 1024 * 1024
# for an async hook to end once its time is over; one that goes on ends with its child
CANCEL_S = 1.0


class HookFault(Exception):
    """A call of a hook that failed. Its text is for the dead letter."""

    def __init__(
        self, words: str, *, overtime: bool = False, hangs: bool = False, trace: str = ""
    ) -> None:
        super().__init__(words)
        self.overtime, self.hangs, self.trace = overtime, hangs, trace


# from what a hook returned to the answer for the worker. Raises HookFault.
Finish = Callable[[Any], ChildReply]


class HookCalls:
    """Calls the hooks of all jobs.

    ``allowed`` names the modules they may come from; None allows all."""

    def __init__(
        self, running_calls: RunningCalls, allowed: Sequence[str] | None, timeout_s: float
    ) -> None:
        self._imports = HookImports(running_calls, allowed)
        self._threads = HookThreads(running_calls)
        self._timeout_s = timeout_s
        # hooks whose traceback was sent; as many as were ever imported
        self._logged: set[str] = set()

    async def answer(self, number: int, call: ImportHook | Preprocess | Postprocess) -> ChildReply:
        try:
            function = await self._imports.get(number, call.path)
            if isinstance(call, ImportHook):
                return Fine()
            return await (self._before if isinstance(call, Preprocess) else self._after)(
                number, function, call
            )
        except HookMissing as error:
            return Missing(str(error), hangs=isinstance(error, ImportHangs))
        except HookFault as fault:
            trace = self._trace_once(call.path, fault.trace)
            return CallFault(str(fault), trace, fault.overtime, fault.hangs)

    async def _before(
        self, number: int, function: Callable[..., Any], call: Preprocess | Postprocess
    ) -> ChildReply:
        return await self._call(number, function, (_item(call),), _changed)

    async def _after(
        self, number: int, function: Callable[..., Any], call: Preprocess | Postprocess
    ) -> ChildReply:
        assert isinstance(call, Postprocess)
        return await self._call(number, function, (_item(call), parse_json(call.answer)), _judged)

    async def _call(
        self, number: int, function: Callable[..., Any], arguments: tuple[Any, ...], finish: Finish
    ) -> ChildReply:
        """Return what ``finish`` makes of the hook's result, within the hook's own time.

        It runs in the hook's thread, since it reads objects of the hook's making. Raises HookFault
        for everything that the hook raises."""
        in_thread = not inspect.iscoroutinefunction(function)
        came: Any = None
        if in_thread:
            try:
                came = await self._threads.run(
                    number, _quietly(function, arguments, finish), self._timeout_s
                )
            except TimeoutError:
                raise self._overtime(hangs=True) from None
        # the latter: a plain function around an async one
        if not in_thread or isinstance(came, _Later):
            came = await self._wait_for(
                came.begin if in_thread else lambda: function(*arguments), finish
            )
        if isinstance(came, HookFault):
            raise came
        reply: ChildReply = came
        return reply

    async def _wait_for(
        self, begin: Callable[[], Awaitable[Any]], finish: Finish
    ) -> ChildReply | HookFault:
        """Wait for an async hook in a task of its own.

        A hook may cancel the task that it runs in, or shrug off a cancel."""
        task = asyncio.create_task(_finished(begin, finish))
        try:
            await asyncio.wait({task}, timeout=self._timeout_s)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_S)
            raise self._overtime(hangs=not task.done())
        except asyncio.CancelledError:  # its worker no longer waits
            task.cancel()
            raise

    def _overtime(self, *, hangs: bool) -> HookFault:
        return HookFault(f"it took longer than {self._timeout_s:g} s", overtime=True, hangs=hangs)

    def _trace_once(self, path: str, trace: str) -> str:
        """Return the traceback for the first failure of a hook only.

        More would fill the disk."""
        if not trace or path in self._logged:
            return ""
        self._logged.add(path)
        return trace


class _Later:
    """An awaitable that a plain function returned."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable

    def begin(self) -> Awaitable[Any]:
        return self._awaitable


def _quietly(
    function: Callable[..., Any], arguments: tuple[Any, ...], finish: Finish
) -> Callable[[], Any]:
    """Return a call that never raises.

    Some exceptions would end a thread, a future or the event loop."""

    def call() -> ChildReply | HookFault | _Later:
        try:
            said = function(*arguments)
            return _Later(said) if inspect.isawaitable(said) else finish(said)
        except HookFault as fault:
            return fault
        except BaseException as error:  # SystemExit and StopIteration, too
            return _fault_of(error)

    return call


async def _finished(begin: Callable[[], Awaitable[Any]], finish: Finish) -> ChildReply | HookFault:
    try:
        return finish(await begin())
    except HookFault as fault:
        return fault
    except BaseException as error:  # a cancel, too: the hook's own, or one after its time
        return _fault_of(error)


def _fault_of(error: BaseException) -> HookFault:
    return HookFault(in_words(error) + place_of(error), trace=trace_of(error))


def _changed(item: Any) -> Fine:
    """Read what ``preprocess`` returned. Raises HookFault."""
    if not isinstance(item, Item) or not isinstance(item.body, dict):
        raise HookFault(f"it returned {_kind(item)}, not the item with a dict as its body")
    return Fine(_json(item.body))


def _judged(said: Any) -> Fine | Refused:
    """Read what ``postprocess`` returned. Raises HookFault."""
    if isinstance(said, Invalid):
        return Refused(reason_text(said.reason), bool(said.retry))
    if not isinstance(said, dict):
        raise HookFault(f"it returned {_kind(said)}, not the response (a dict) or Invalid")
    return Fine(_json(said))


def _item(call: Preprocess | Postprocess) -> Item:
    return Item(call.job_id, call.generation, call.doc_id, call.endpoint, orjson.loads(call.body))


def _json(value: dict[str, Any]) -> bytes:
    try:
        dumped = dump_json(value)
    except (TypeError, RecursionError) as error:
        raise HookFault(f"its result is not JSON: {error}") from error
    if len(dumped) > HOOK_RESULT_BYTES:
        raise HookFault(f"its result has {len(dumped)} bytes; {HOOK_RESULT_BYTES} are allowed")
    return dumped


def _kind(value: object) -> str:
    if isinstance(value, Item):
        return f"an item whose body is {type(value.body).__name__}"
    return "nothing" if value is None else type(value).__name__
