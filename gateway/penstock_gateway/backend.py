"""Routes share settings, producer, database, Redis, and threads for blocking work."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import redis.asyncio
from starlette.requests import HTTPConnection

from penstock_gateway.metrics import DoorMetrics
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import (
    REDIS_CONNECT_TIMEOUT_S,
    REDIS_TIMEOUT_S,
    Database,
    Meta,
    RedisAddress,
    RedisLedger,
    open_database,
)
from penstock_producer import Producer
from penstock_producer.accepting.remote_limits import RemoteLimits
from penstock_producer.operations import JobOperations

__all__ = ["Backend", "backend_of"]


P = ParamSpec("P")
T = TypeVar("T")

# pieces of work that wait for a thread: some seconds of it; the next one is refused
WAITING_MAX: Final = 1_000

# of a body: what the event loop may work on itself, for some milliseconds
SMALL_BYTES: Final = 64 * 1024


class _Piece(NamedTuple):
    """A piece of work, and who waits for it."""

    work: Callable[[], Any]
    done: asyncio.Future[Any]


class _WorkThread:
    """A thread that does one piece after the other, for the event loop that made it."""

    def __init__(self, number: int, ended: Callable[[_WorkThread, _Piece, Any, Any], None]) -> None:
        """Take ``ended``, which the event loop calls with a piece, what it gave, and its error."""
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()
        # a daemon: where the server ends without having closed its backend, nothing waits for it
        self._thread = threading.Thread(target=self._run, name=f"gateway_{number}", daemon=True)
        self._thread.start()

    def give(self, piece: _Piece) -> None:
        self._pieces.put(piece)

    def close(self) -> None:
        self._pieces.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            given: Any = None
            error: BaseException | None = None
            try:
                given = piece.work()
            except BaseException as raised:
                error = raised
            # the loop of a server that did not wait is closed
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended, self, piece, given, error)
            del piece, given, error  # a body may be among them, and the next piece may be far


class WorkThreads:
    """Threads for blocking work, and how much of it may wait for one. Used on the event loop.

    The thread that was idle last takes the next piece: what it needs is still at hand, and no other
    is woken. Python's own pool wakes two, in turns."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._most = number + WAITING_MAX
        self._at_work = 0
        self._threads: list[_WorkThread] = []
        self._idle: list[_WorkThread] = []
        self._waiting: deque[_Piece] = deque()
        self._is_over = asyncio.Event()  # nothing is at work, since ``close`` has asked

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in one of the threads. Raises Refused (503) where too much waits already."""
        if self._at_work >= self._most:
            raise Refused(
                503,
                "the server has too much to do now; try again in a few seconds",
                code="overloaded",
                kind="server_error",
                headers={"retry-after": "5"},
            )
        self._at_work += 1
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        piece = _Piece(partial(contextvars.copy_context().run, work), done)
        if self._idle:
            self._idle.pop().give(piece)
        elif len(self._threads) < self._number:
            self._threads.append(_WorkThread(len(self._threads), self._ended))
            self._threads[-1].give(piece)
        else:
            self._waiting.append(piece)
        try:
            return await done
        finally:
            # with an error in it, it would keep this frame, and so the error, and a body in one of
            # its frames
            del done, piece

    async def close(self) -> None:
        """Wait for the work under way, and take no more."""
        self._most = 0
        self._is_over.clear()
        if self._at_work:
            await self._is_over.wait()
        for thread in self._threads:
            thread.close()

    def _ended(
        self, thread: _WorkThread, piece: _Piece, given: Any, error: BaseException | None
    ) -> None:
        self._at_work -= 1
        following = self._following()
        if following is None:
            self._idle.append(thread)
        else:
            thread.give(following)
        if not self._at_work:
            self._is_over.set()
        if piece.done.done():  # who asked for it has gone
            return
        if error is None:
            piece.done.set_result(given)
        else:
            piece.done.set_exception(error)

    def _following(self) -> _Piece | None:
        """Return the piece that has waited longest, of those that are still asked for."""
        while self._waiting:
            piece = self._waiting.popleft()
            if not piece.done.cancelled():
                return piece
            self._at_work -= 1
        return None


class Backend:
    """One of them serves an app, from the start of its lifespan to the end."""

    def __init__(self, settings: GatewaySettings, metrics: DoorMetrics | None = None) -> None:
        self.settings = settings
        self.metrics = metrics or DoorMetrics()
        threads = settings.gateway.threads
        self.database: Database = open_database(
            settings.database_url,
            pool_size=settings.database_pool or threads,
            waits=settings.database_waits,
            role="gateway",
        )
        if self.database.is_sqlite:
            # an embedded file; the schema of a server is changed by its operator
            self.database.migrate()
            for made_once in (Meta(self.database).epoch, Meta(self.database).session_secret):
                made_once()  # now, so that pages and lists can be read while nothing can be written
        # For what the doors submit themselves, out of files that they wrote.
        self.producer = Producer(settings, database=self.database)
        # For what a caller names: sources inside source_roots only, and no more than `doors.*`
        # allows. The key says whose it is.
        self.remote_limits = RemoteLimits(settings.doors, names_tenants=False)
        self.remote = Producer(settings, database=self.database, remote_limits=self.remote_limits)
        address = RedisAddress.parse(settings.redis_url)
        self.redis: redis.asyncio.Redis = address.connect_async(
            socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_CONNECT_TIMEOUT_S
        )
        # The same for work in threads. Doors look and tell workers what SQL says; they publish
        # nothing, so no epoch is asked for.
        self.blocking_redis = address.connect(
            socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_CONNECT_TIMEOUT_S
        )
        self.fleet = RedisLedger(self.blocking_redis, "")
        self.operations = JobOperations(self.database, settings, self.fleet)
        self._threads = WorkThreads(threads)
        self._parts: dict[Any, Any] = {}
        self.closing = False  # no more work is accepted

    def part(self, kind: Callable[[Backend], T]) -> T:
        """Return what a room keeps for the whole server, made when it is first asked for.

        Of the event loop."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        found: T = self._parts[kind]
        return found

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do blocking work in a thread. Raises Refused (503) where too much of it waits already."""
        return await self._threads.run(partial(work, *args, **kwargs))

    async def run_sized(
        self, size: int, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do work that grows with ``size`` bytes of a caller's: in a thread, unless they are few.

        So the event loop goes on. Raises Refused (503), as ``run`` does."""
        return (
            work(*args, **kwargs) if size <= SMALL_BYTES else await self.run(work, *args, **kwargs)
        )

    def round_done(self, task: object) -> None:
        """Note that a piece of background work has ended a round without an error."""
        self.metrics.tasks.round.labels(type(task).__name__).set_to_current_time()

    async def close(self) -> None:
        """End what is open; work in threads is waited for."""
        self.closing = True
        await self._threads.close()
        self.producer.close()
        self.remote.close()
        self.database.close()
        self.blocking_redis.close()
        await self.redis.aclose()


def backend_of(request: HTTPConnection) -> Backend:
    backend: Backend = request.app.state.backend
    return backend
