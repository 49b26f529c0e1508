"""A job's own functions around inference, named in its spec by import path: `package.module:function`.

``preprocess(item) -> item`` sees each request before it is sent; ``postprocess(item, response) -> response | Invalid`` each
answer before it is stored. Either may be ``async``. Plain functions run in threads, off the loop that keeps the engine busy.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import orjson

from penstock_workers.errors import HookMissing
from penstock_workers.flight import Flight
from penstock_workers.judge import DETAIL_CHARS, Failure, Reply

HOOK_TIMEOUT_S = 60.0  # a hook that takes longer is stuck; its thread cannot be ended, but its item can
HOOK_THREADS = 4  # hooks are small; heavier ones call libraries that use the cores by themselves
HOOKS_KEPT = 100  # imported functions; two per job that has them


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


class Hooks:
    """Imports hooks when a job first needs them, and calls them. ``allowed`` names modules; None allows all."""

    def __init__(self, allowed: Sequence[str] | None = None) -> None:
        self._allowed = allowed
        self._threads: ThreadPoolExecutor | None = None
        self._functions: OrderedDict[str, Callable[..., Any]] = OrderedDict()

    async def preprocess(self, flight: Flight) -> Failure | None:
        """Let the job's hook change the body of the request. Raises HookMissing."""
        path = flight.job.spec.preprocess
        if path is None:
            return None
        try:
            changed = await self._call(path, _item(flight))
            if not isinstance(changed, Item):
                raise TypeError(f"it returned {type(changed).__name__}, not an Item")
            flight.body = orjson.dumps(changed.body)
        except HookMissing:
            raise
        except Exception as error:
            return _failed(path, error)
        return None

    async def postprocess(self, flight: Flight, reply: Reply) -> Reply | Failure:
        """Let the job's hook change or refuse an answer. Raises HookMissing."""
        path = flight.job.spec.postprocess
        if path is None:
            return reply
        try:
            said = await self._call(path, _item(flight), orjson.loads(reply.body))
            if isinstance(said, Invalid):
                return Failure("invalid_result", f"{path}: {said.reason}"[:DETAIL_CHARS], None, final=not said.retry)
            if not isinstance(said, dict):
                raise TypeError(f"it returned {type(said).__name__}, not the response or Invalid")
            return replace(reply, body=orjson.dumps(said))
        except HookMissing:
            raise
        except Exception as error:
            return _failed(path, error)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, path: str, *arguments: Any) -> Any:
        function = self._functions.get(path) or self._import(path)
        async with asyncio.timeout(HOOK_TIMEOUT_S):
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(HOOK_THREADS, thread_name_prefix="hook")
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _import(self, path: str) -> Callable[..., Any]:
        module, _, name = path.partition(":")
        if self._allowed is not None and not any(
            module == one or module.startswith(one + ".") for one in self._allowed
        ):
            listed = ", ".join(self._allowed) or "none"
            raise HookMissing(f"hook_missing: {path}: this worker's setting hook_modules allows {listed}")
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except Exception as error:
            raise HookMissing(
                f"hook_missing: {path} cannot be imported here: {type(error).__name__}: {error}"
            ) from error
        if not callable(function):
            raise HookMissing(f"hook_missing: {path} is {type(function).__name__}, not a function")
        self._functions[path] = function
        if len(self._functions) > HOOKS_KEPT:
            self._functions.popitem(last=False)
        return function


def _item(flight: Flight) -> Item:
    key = flight.key
    return Item(key.job_id, key.generation, key.doc_id, flight.job.spec.endpoint, orjson.loads(flight.body))


def _failed(path: str, error: Exception) -> Failure:
    said = "it took too long" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
    return Failure("hook_failed", f"{path}: {said}"[:DETAIL_CHARS], None)
