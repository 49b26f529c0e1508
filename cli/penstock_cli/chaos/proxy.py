"""A TCP proxy between the processes of a fleet and a server, which can be made to fail.

It lives on a thread of its own and listens on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Self

CHUNK_BYTES = 1 << 16  # that are passed on at once
START_S = 10.0  # for a thread to begin


class Way(StrEnum):
    """The fates of bytes that are sent."""

    OPEN = "it is passed on"
    STALLED = "nothing is passed on, and no connection ends, as behind a broken switch"
    DEAF = "requests are passed on and their answers are lost"
    REFUSED = "connections are broken, and new ones end at once"


class Proxy:
    """Passes connections on to ``target``: a path of a socket, or a host and a port."""

    def __init__(self, target: str | tuple[str, int]) -> None:
        self._target = target
        self._way = Way.OPEN
        self._loop = asyncio.new_event_loop()
        self._opened = asyncio.Event()
        self._opened.set()
        self._writers: set[asyncio.StreamWriter] = set()  # of both sides; on the loop only
        self._ready = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="chaos-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)

    @contextmanager
    def made(self, way: Way) -> Iterator[None]:
        """Treat everything so for the time of the block.

        Connections that lost something are broken at its end."""
        self._tell(way)
        try:
            yield
        finally:
            self._tell(Way.OPEN)

    def _tell(self, way: Way) -> None:
        asyncio.run_coroutine_threadsafe(self._become(way), self._loop).result(START_S)

    async def _become(self, way: Way) -> None:
        before, self._way = self._way, way
        if way is Way.STALLED:
            self._opened.clear()
        else:
            self._opened.set()
        if Way.STALLED not in (before, way) and before is not way and way is not Way.DEAF:
            for writer in list(self._writers):
                writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._take, "127.0.0.1", 0))
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until one side ends it."""
        if self._way is Way.REFUSED:
            writer.transport.abort()
            return
        await self._opened.wait()
        try:
            there, back = await self._reach()
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            ways = [
                asyncio.create_task(self._pass(reader, back, answers=False)),
                asyncio.create_task(self._pass(there, writer, answers=True)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
        finally:
            self._writers -= {writer, back}
            for one in (writer, back):
                one.close()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._opened.wait()
                if answers and self._way is Way.DEAF:
                    continue
                writer.write(data)
                await writer.drain()
