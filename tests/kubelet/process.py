"""The process of a container, and the machine that starts it: this one, or a stand-in whose time is
virtual."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

EXIT_BY_SIGNAL = 128  # added to a signal's number, as container runtimes do


class Process(Protocol):
    """What a container needs of its process."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Its exit code; nothing that it has started is left then."""
        ...

    def terminate(self) -> None:
        """SIGTERM, as the container's first process gets it."""

    def kill(self) -> None:
        """SIGKILL to all of it."""


class Machine(Protocol):
    """Starts processes. Both methods raise OSError where there is no such program."""

    async def start(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> Process: ...

    async def output_of(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> tuple[int, str]:
        """Exit code and output of a short command, which dies when this is cancelled."""
        ...


class LocalProcess:
    """In a session of its own: what it leaves behind ends with it, as with a container."""

    def __init__(self, inner: asyncio.subprocess.Process) -> None:
        self._inner = inner

    @classmethod
    async def start(
        cls, argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> Self:
        """Raises OSError."""
        with log.open("ab") as out:
            inner = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
            )
        return cls(inner)

    @property
    def pid(self) -> int:
        return self._inner.pid

    async def wait(self) -> int:
        """Its exit code, after which nothing of its session is left."""
        status = await self._inner.wait()
        self.kill()
        return status if status >= 0 else EXIT_BY_SIGNAL - status

    def terminate(self) -> None:
        """SIGTERM to the first process alone: tini passes it to its child, and not to the child's
        children."""
        if self._inner.returncode is None:
            self._inner.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class LocalMachine:
    """This machine."""

    async def start(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> LocalProcess:
        return await LocalProcess.start(argv, environment, folder, log)

    async def output_of(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> tuple[int, str]:
        inner = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            out, _ = await inner.communicate()
        finally:
            if inner.returncode is None:
                os.killpg(inner.pid, signal.SIGKILL)
                await inner.wait()
        assert inner.returncode is not None
        return inner.returncode, out.decode(errors="replace").strip()
