"""The imports of hooks in a child, and the texts of objects that they made.

`package.module:function` is imported when a job first needs it. Whatever an object does when it is
asked, a text comes of it.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_producer.accepting.hook_paths import is_allowed
from penstock_workers.children.protocol import RunningCalls
from penstock_workers.errors import HookMissing

WORDS_CHARS: Final = 2_000  # of a hook's error text; a dead letter keeps fewer
TRACE_CHARS: Final = 20_000


def in_words(error: BaseException) -> str:
    """Return the last line of its traceback."""
    return _text(lambda: "".join(traceback.format_exception_only(error)).strip(), type(error))[
        :WORDS_CHARS
    ]


def place_of(error: BaseException) -> str:
    """Return where its traceback points, to be put behind its words; "" where it points nowhere."""

    def read() -> str:
        frames = traceback.extract_tb(error.__traceback__)
        return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""

    return _text(read, type(error))


def trace_of(error: BaseException) -> str:
    """Return the end of its traceback."""
    return _text(lambda: "".join(traceback.format_exception(error)), type(error))[-TRACE_CHARS:]


def reason_text(reason: object) -> str:
    """Return why a hook refused an answer."""
    return _text(lambda: str(reason)[:WORDS_CHARS], type(reason))


def _text(read: Callable[[], str], kind: type) -> str:
    try:
        return replace_surrogates(read())
    except BaseException as error:  # such as SystemExit, in a method of the hook's own
        return replace_surrogates(
            f"{kind.__name__}, whose text cannot be read ({type(error).__name__})"
        )


HOOKS_KEPT = 100  # functions; two per job that has them
# libraries of a hook may be gigabytes on a cold disk; a longer import is taken to have no end
IMPORT_S = 300.0

Hook = Callable[..., Any]


class ImportHangs(HookMissing):
    """The import of a hook has not come to an end, and its thread ends only with this process."""


class HookImports:
    """``allowed`` names modules, with all inside them; None allows whatever can be imported."""

    def __init__(self, running_calls: RunningCalls, allowed: Sequence[str] | None) -> None:
        self._running_calls, self._allowed = running_calls, allowed
        self._found: OrderedDict[str, Hook] = OrderedDict()
        self._importing = asyncio.Lock()
        # why, and then nothing more is imported here: the worker takes another process
        self._hung: str | None = None

    async def get(self, number: int, path: str) -> Hook:
        """Return the hook for the call of this number.

        Raises HookMissing, again at each call, so that a corrected hook is found."""
        hook = self._found.get(path)
        if hook is not None:
            self._found.move_to_end(path)
            return hook
        # hundreds of items may ask at once; and a module may take seconds to load
        async with self._importing:
            hook = self._found.get(path)
            if hook is None:
                self._check(path)
                hook = self._found[path] = await self._import_in_time(number, path)
                if len(self._found) > HOOKS_KEPT:
                    self._found.popitem(last=False)
            return hook

    async def _import_in_time(self, number: int, path: str) -> Hook:
        if self._hung is not None:
            raise ImportHangs(self._hung)
        try:
            # wait_for of Python 3.11 loses a cancel that comes with the result
            async with asyncio.timeout(IMPORT_S):
                return await asyncio.to_thread(self._import, number, path)
        except TimeoutError:
            words = f"its import took longer than {IMPORT_S:g} s"
            self._hung = f"hook_missing: {path} cannot be imported here: {words}"
            raise ImportHangs(self._hung) from None

    def _import(self, number: int, path: str) -> Hook:
        with self._running_calls.in_thread(number):
            return _import(path)

    def _check(self, path: str) -> None:
        if self._allowed is None or is_allowed(path, self._allowed):
            return
        listed = ", ".join(self._allowed) or "none"
        variable = f"""PENSTOCK_HOOK_MODULES='["{path.partition(":")[0]}"]'"""
        raise HookMissing(
            f"hook_missing: {path}: this worker's setting hook_modules allows {listed}; name the "
            f"module there ({variable}), restart the workers, then resume"
        )


def _import(path: str) -> Hook:
    name, _, attribute = path.partition(":")
    # as Celery does for its own imports; last, so that it hides no installed package
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()  # the file may be new
    try:
        module = importlib.import_module(name)
    # whatever it is, it must not pass for a cancel of this call, or end this process
    except BaseException as error:
        raise HookMissing(
            f"hook_missing: {path} cannot be imported here: {in_words(error)}"
        ) from None
    hook = getattr(module, attribute, None)
    if not callable(hook):
        seen = "is not there" if hook is None else f"is {type(hook).__name__}, not a function"
        raise HookMissing(
            f"hook_missing: {path}: {attribute} {seen}; correct {name} and restart the workers, "
            "then resume"
        )
    found: Hook = hook
    return found
