"""A job's own functions around inference, named in its spec by import path: `package.module:function`.

``preprocess(item) -> item`` sees each request before it is sent; ``postprocess(item, response) -> response | Invalid`` each
answer before it is stored. Either may be ``async``. Plain functions run in threads, off the loop that keeps the engine busy.
Whatever a hook does is the fate of its item alone: it raises, returns nonsense, hangs or asks the process to exit.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from penstock_workers.flight import Flight
from penstock_workers.hook_imports import HookImports
from penstock_workers.hook_threads import HookThreads
from penstock_workers.judge import DETAIL_CHARS, Failure, Reply

log = logging.getLogger(__name__)

HOOK_TIMEOUT_S = 60.0  # a hook that takes longer is stuck; its thread cannot be ended, but its item can
HOOK_RESULT_BYTES = (
    32 * 1024 * 1024
)  # as an answer of a provider: what is larger would burden SQL and everybody's memory


@dataclass(slots=True)
class Item:
    """One document as hooks see it. ``body`` is the request body, parsed; change it in place or return a new item."""

    job_id: str
    generation: int
    doc_id: str
    endpoint: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Invalid:
    """Returned by ``postprocess``: the answer is of no use. Tried again as often as the job allows, unless ``retry`` is off."""

    reason: str
    retry: bool = True


class HookFault(Exception):
    """A call of a hook that came to nothing. Its text is for the dead letter."""


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a call raised, as a value: no exception of a hook travels through an event loop, where some would end it."""

    error: BaseException


class Hooks:
    """Calls the hooks of all jobs. ``allowed`` names the modules they may come from; None allows all."""

    def __init__(self, allowed: Sequence[str] | None = None, timeout_s: float = HOOK_TIMEOUT_S) -> None:
        self._imports = HookImports(allowed)
        self._threads = HookThreads()
        self._timeout_s = timeout_s
        self._told: set[str] = set()  # hooks whose traceback is in the log; as many as were ever imported

    async def preprocess(self, flight: Flight) -> Failure | None:
        """Let the job's hook change the body of the request. Raises HookMissing, for its postprocess too: before a call is
        paid for that could not be stored."""
        spec = flight.job.spec
        if spec.postprocess is not None:
            await self._imports.get(spec.postprocess)
        if spec.preprocess is None:
            return None
        try:
            changed = await self._call(spec.preprocess, _item(flight))
            if not isinstance(changed, Item) or not isinstance(changed.body, dict):
                raise HookFault(f"it returned {_kind(changed)}, not the item with a dict as its body")
            flight.body = _json(changed.body)
        except HookFault as fault:
            return _failed(spec.preprocess, fault, None)
        return None

    async def postprocess(self, flight: Flight, reply: Reply) -> Reply | Failure:
        """Let the job's hook change or refuse an answer. Raises HookMissing."""
        path = flight.job.spec.postprocess
        if path is None:
            return reply
        try:
            said = await self._call(path, _item(flight), orjson.loads(reply.body))
            if isinstance(said, Invalid):
                detail = f"{path}: {said.reason}"[:DETAIL_CHARS]
                return Failure("invalid_result", detail, reply.status, final=not said.retry)
            if not isinstance(said, dict):
                raise HookFault(f"it returned {_kind(said)}, not the response (a dict) or Invalid")
            return replace(reply, body=_json(said))
        except HookFault as fault:
            return _failed(path, fault, reply.status)

    def close(self) -> None:
        self._threads.close()

    async def _call(self, path: str, *arguments: Any) -> Any:
        """What the hook says. Raises HookFault for everything that the hook raises, and HookMissing."""
        function = await self._imports.get(path)
        try:
            if inspect.iscoroutinefunction(function):
                said = await self._wait_for(lambda: function(*arguments))
            else:
                said = await self._threads.run(_quietly(function, *arguments), self._timeout_s)
                if inspect.isawaitable(said):  # a plain function around an async one
                    said = await self._wait_for(lambda: said)
        except TimeoutError:
            raise HookFault(f"it took longer than {self._timeout_s:g} s") from None
        if isinstance(said, _Raised):
            self._tell_once(path, said.error)
            raise HookFault(_in_words(said.error))
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
                return _Raised(error)  # of something that the hook itself waited for
            except BaseException as error:
                return _Raised(error)

    def _tell_once(self, path: str, error: BaseException) -> None:
        """The first traceback of a hook is for whoever wrote it; a million more would only fill the disk."""
        if path not in self._told:
            self._told.add(path)
            log.warning("hook %s raised; its item is a dead letter. Later ones are not logged.", path, exc_info=error)


def _quietly(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    def call() -> Any:
        try:
            return function(*arguments)
        except BaseException as error:  # SystemExit and StopIteration, too: neither may reach a thread or a future
            return _Raised(error)

    return call


def _item(flight: Flight) -> Item:
    key = flight.key
    return Item(key.job_id, key.generation, key.doc_id, flight.job.spec.endpoint, orjson.loads(flight.body))


def _json(value: dict[str, Any]) -> bytes:
    try:
        dumped = orjson.dumps(value)
    except TypeError as error:
        raise HookFault(f"its result is no JSON: {error}") from error
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


def _failed(path: str, fault: HookFault, status: int | None) -> Failure:
    return Failure("hook_failed", f"{path}: {fault}"[:DETAIL_CHARS], status)
