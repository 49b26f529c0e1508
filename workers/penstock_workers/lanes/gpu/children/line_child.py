"""A process beside the worker that answers lines of JSON.

It is for what can hang, grow without end or end its own process."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import resource
import sys
from asyncio.subprocess import PIPE, Process
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

START_S: Final = 120.0  # it imports vLLM: seconds, on a machine that does nothing else
LINE_BYTES: Final = 256 << 20  # of one answer
MEMORY_BYTES: Final = 4 << 30  # beyond what the process holds once it is ready
DETAIL_CHARS: Final = 400


class NoChild(Exception):
    """The process does not start."""


class LineChild:
    """The worker's end: a line for each question, and a line for each answer.

    One question at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, program: str, facts: bytes) -> LineChild:
        """Start ``program``, whose ``serve`` gets the pickled ``facts``.

        Raises NoChild."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            program,
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            limit=LINE_BYTES,
        )
        child = cls(process)
        try:
            said = await child.ask(b64encode(facts), START_S)
        except (EOFError, OSError, TimeoutError) as error:
            child.kill()
            raise NoChild(
                f"their process does not start ({type(error).__name__} {error})"
            ) from error
        except asyncio.CancelledError:
            child.kill()
            raise
        if said is not None:
            child.kill()
            raise NoChild(said)
        return child

    async def ask(self, line: bytes, within_s: float) -> Any:
        """Ask the process and return its answer.

        Raises EOFError and OSError where the process has ended, and TimeoutError: then it is to be
        killed.
        """
        assert self._process.stdin is not None, "it was started with pipes"
        assert self._process.stdout is not None, "it was started with pipes"
        if self._process.stdin.is_closing():
            raise EOFError  # uvloop raises RuntimeError for a write to a pipe that it has closed
        async with asyncio.timeout(within_s):
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()
            answer = await self._process.stdout.readline()
        if not answer:
            raise EOFError
        return orjson.loads(answer)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def gone(self) -> None:
        await self._process.wait()


def serve(make: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Serve the worker from inside the process.

    Say null once ``make`` is done with the facts, or why it is not; then answer until the worker is
    gone.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print goes to the log
    logging.disable(logging.CRITICAL)  # vLLM logs each one that fails, with its traceback
    try:
        # From the worker that started this process.
        answer = make(pickle.loads(b64decode(sys.stdin.buffer.readline())))  # noqa: S301
    except Exception as error:
        _say(answers, f"{type(error).__name__}: {error}"[:DETAIL_CHARS])
        return
    _say(answers, None)
    for line in sys.stdin.buffer:
        _say(answers, answer(orjson.loads(line)))


def bound_memory() -> None:
    """Bound the memory of this process, once it is ready.

    What grows without end is to end the process, and not the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _say(answers: BinaryIO, said: Any) -> None:
    answers.write(orjson.dumps(said) + b"\n")
    answers.flush()
