"""An event loop in a thread of its own, and what other threads may ask of its limiter."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from penstock_ratelimit.errors import LimiterClosed
from penstock_ratelimit.limiter import Limiter

log = logging.getLogger("penstock.ratelimit")

T = TypeVar("T")

# as redis-py reads it, or what makes an asyncio client, for Sentinel say
RedisUrl = str | Callable[[], Any] | None

CLOSE_S: Final = 5.0
"""Closing makes two calls to Redis, of a second each at most; after that the process ends without
them."""


class LoopThread:
    """One event loop in a daemon thread, with the limiter that lives on it.

    Usable only in the process that started it."""

    def __init__(self, make: Callable[[Any], Limiter], redis_url: RedisUrl) -> None:
        self._make, self._redis_url = make, redis_url
        self._lock = threading.Lock()  # so that nothing is put on the loop after its end
        self.closed = False
        self._up: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="penstock quotas", daemon=True)
        self._thread.start()
        self._up.result()

    def call(self, function: Callable[[Limiter], T], quota_id: str) -> T:
        """Return what ``function`` returns or raises on the loop. Raises ``LimiterClosed``."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function(self._limiter))
            except BaseException as error:
                done.set_exception(error)

        self._put(run, quota_id)
        return done.result()

    def wait(
        self,
        begin: Callable[[Limiter], Coroutine[Any, Any, T]],
        quota_id: str,
        timeout: float | None,
        undo: Callable[[T], object] | None = None,
    ) -> T:
        """Return the result of a coroutine.

        Raises TimeoutError, ``LimiterClosed``, and whatever a signal handler raises here.

        ``undo`` takes back a result that the waiting thread was interrupted before it had.
        """
        waiting = ThreadWait(lambda: begin(self._limiter), quota_id, timeout, undo)
        self._put(waiting.begin, quota_id)
        try:
            return waiting.done.result()
        except BaseException:
            if not self.closed:
                self._put(waiting.abandon, quota_id)
            raise

    def stop(self) -> None:
        with self._lock:
            if not self.closed:
                self.closed = True
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(CLOSE_S)

    def disown(self) -> None:
        """Forget the thread in a forked child, where it is not."""
        self._lock = threading.Lock()
        self.closed = True

    def _put(self, function: Callable[[], None], quota_id: str) -> None:
        with self._lock:
            if self.closed:
                raise LimiterClosed(quota_id)
            self._loop.call_soon_threadsafe(function)

    # --- on the thread
    # ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        # while the interpreter ends, parts of asyncio may be gone already
        except Exception as error:
            log.debug("the loop of the quotas ended with %r", error)

    async def _live(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            client = _connected(self._redis_url)
            self._limiter = self._make(client)
        except Exception as error:
            self.closed = True
            self._up.set_exception(error)
            return
        self._up.set_result(None)
        await self._over.wait()
        await self._limiter.aclose()
        if client is not None:
            await client.aclose()


class ThreadWait(Generic[T]):
    """One thread's wait for one coroutine. Only the loop's thread touches it, but for ``done``."""

    def __init__(
        self,
        coroutine: Callable[[], Coroutine[Any, Any, T]],
        quota_id: str,
        timeout: float | None,
        undo: Callable[[T], object] | None,
    ) -> None:
        self._coroutine, self._quota_id, self._timeout, self._undo = (
            coroutine,
            quota_id,
            timeout,
            undo,
        )
        self._abandoned = False
        self.done: Future[T] = Future()

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._finish)

    def abandon(self) -> None:
        """Give up waiting: what came, or comes at the last moment, is undone."""
        self._abandoned = True
        if self._task.done():
            self._undo_result(self._task)
        else:
            self._task.cancel()

    async def _run(self) -> T:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                return await self._coroutine()
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"quota {self._quota_id!r}: no start within {self._timeout:g} s"
            ) from None

    def _finish(self, task: asyncio.Task[T]) -> None:
        if self._abandoned:
            self._undo_result(task)
        elif task.cancelled():
            # only the end of the loop cancels
            self.done.set_exception(LimiterClosed(self._quota_id))
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())

    def _undo_result(self, task: asyncio.Task[T]) -> None:
        if self._undo is not None and not task.cancelled() and task.exception() is None:
            self._undo(task.result())


def _connected(redis_url: RedisUrl) -> Any:
    if redis_url is None:
        return None
    if not isinstance(redis_url, str):
        return redis_url()
    from redis.asyncio import Redis

    return Redis.from_url(redis_url)
