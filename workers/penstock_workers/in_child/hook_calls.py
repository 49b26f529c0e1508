"""Runs in a child: calls a job's hooks, and turns their results and failures into answers for the worker."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from penstock_workers.children.protocol import (
    CallFault,
    ChildReply,
    Fine,
    ImportHook,
    Missing,
    Postprocess,
    Preprocess,
    Refused,
)
from penstock_workers.children.running_calls import RunningCalls
from penstock_workers.errors import HookMissing
from penstock_workers.hooks.contract import Invalid, Item
from penstock_workers.in_child.hook_imports import HookImports
from penstock_workers.in_child.hook_threads import HookThreads

HOOK_RESULT_BYTES = (
    32 * 1024 * 1024
)  # as an answer of a provider: what is larger would burden SQL and the memory of every reader
WORDS_CHARS = 2_000  # of a hook's error text; a dead letter keeps fewer
TRACE_CHARS = 20_000


class HookFault(Exception):
    """A call of a hook that failed. Its text is for the dead letter."""

    def __init__(self, words: str, *, overtime: bool = False, hangs: bool = False, trace: str = "") -> None:
        super().__init__(words)
        self.overtime, self.hangs, self.trace = overtime, hangs, trace


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a call raised, as a value: some exceptions would end the event loop."""

    error: BaseException


class HookCalls:
    """Calls the hooks of all jobs. ``allowed`` names the modules they may come from; None allows all."""

    def __init__(self, running_calls: RunningCalls, allowed: Sequence[str] | None, timeout_s: float) -> None:
        self._imports = HookImports(running_calls, allowed)
        self._threads = HookThreads(running_calls)
        self._timeout_s = timeout_s
        self._logged: set[str] = set()  # hooks whose traceback was sent; as many as were ever imported

    async def answer(self, number: int, call: ImportHook | Preprocess | Postprocess) -> ChildReply:
        try:
            function = await self._imports.get(number, call.path)
            if isinstance(call, ImportHook):
                return Fine()
            return await (self._before if isinstance(call, Preprocess) else self._after)(number, function, call)
        except HookMissing as error:
            return Missing(str(error))
        except HookFault as fault:
            trace = self._trace_once(call.path, fault.trace)
            return CallFault(str(fault)[:WORDS_CHARS], trace, fault.overtime, fault.hangs)

    async def _before(self, number: int, function: Callable[..., Any], call: Preprocess | Postprocess) -> ChildReply:
        changed = await self._call(number, function, _item(call))
        if not isinstance(changed, Item) or not isinstance(changed.body, dict):
            raise HookFault(f"it returned {_kind(changed)}, not the item with a dict as its body")
        return Fine(_json(changed.body))

    async def _after(self, number: int, function: Callable[..., Any], call: Preprocess | Postprocess) -> ChildReply:
        assert isinstance(call, Postprocess)
        said = await self._call(number, function, _item(call), orjson.loads(call.answer))
        if isinstance(said, Invalid):
            return Refused(str(said.reason)[:WORDS_CHARS], bool(said.retry))
        if not isinstance(said, dict):
            raise HookFault(f"it returned {_kind(said)}, not the response (a dict) or Invalid")
        return Fine(_json(said))

    async def _call(self, number: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """The hook's result. Raises HookFault for everything that the hook raises."""
        in_thread = not inspect.iscoroutinefunction(function)
        try:
            if in_thread:
                said = await self._threads.run(number, _quietly(function, *arguments), self._timeout_s)
                if inspect.isawaitable(said):  # a plain function around an async one
                    in_thread = False
                    said = await self._wait_for(lambda: said)
            else:
                said = await self._wait_for(lambda: function(*arguments))
        except TimeoutError:
            raise HookFault(f"it took longer than {self._timeout_s:g} s", overtime=True, hangs=in_thread) from None
        if isinstance(said, _Raised):
            raise HookFault(_in_words(said.error), trace=_trace(said.error))
        return said

    async def _wait_for(self, begin: Callable[[], Awaitable[Any]]) -> Any:
        """Its result or what it raised, as a value. Raises TimeoutError, and CancelledError when the item is cancelled."""
        task = asyncio.current_task()
        async with asyncio.timeout(self._timeout_s):
            try:
                return await begin()
            except asyncio.CancelledError as error:
                if task is None or task.cancelling():
                    raise
                return _Raised(error)  # a timeout of the hook's own
            except BaseException as error:
                return _Raised(error)

    def _trace_once(self, path: str, trace: str) -> str:
        """The traceback, for the first failure of a hook only: more would fill the disk."""
        if not trace or path in self._logged:
            return ""
        self._logged.add(path)
        return trace


def _quietly(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    def call() -> Any:
        try:
            return function(*arguments)
        except BaseException as error:  # SystemExit and StopIteration, too: neither may reach a thread or a future
            return _Raised(error)

    return call


def _item(call: Preprocess | Postprocess) -> Item:
    return Item(call.job_id, call.generation, call.doc_id, call.endpoint, orjson.loads(call.body))


def _json(value: dict[str, Any]) -> bytes:
    try:
        dumped = orjson.dumps(value)
    except (TypeError, RecursionError) as error:
        raise HookFault(f"its result is not JSON: {error}") from error
    if len(dumped) > HOOK_RESULT_BYTES:
        raise HookFault(f"its result has {len(dumped)} bytes; {HOOK_RESULT_BYTES} are allowed")
    return dumped


def _kind(value: object) -> str:
    if isinstance(value, Item):
        return f"an item whose body is {type(value.body).__name__}"
    return "nothing" if value is None else type(value).__name__


def _in_words(error: BaseException) -> str:
    """The last line of the traceback, and where it points."""
    words = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{words} (line {frames[-1].lineno} of {frames[-1].filename})" if frames else words


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-TRACE_CHARS:]
