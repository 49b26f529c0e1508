"""The thread whose asyncio loop runs the engine, and the bridge back to the hub thread.

What crosses over goes through deques with one wake-up each: many items per thread switch when the worker is busy.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic

from celery.exceptions import WorkerShutdown
from celery.worker import state

from penstock_workers.celery_app.bridge import Delivery, GivenBack, ItemEngine, Verdict
from penstock_workers.metrics.samples import Sample

log = logging.getLogger(__name__)

START_LOOK_S = 0.5  # how soon a SIGTERM is heeded while the engine starts
LOOP_BEAT_S = 1.0
LOOP_STUCK_S = (
    60.0  # an item loop that has not turned for so long is taken for dead; a busy one lags by seconds at most
)
STARTS_LINGER_S = 0.02  # how late Celery hears that an item runs: for task-started, and to revoke it in time


class EngineHost:
    """Implements ``engine.Bridge``. Methods say which thread calls them."""

    def __init__(self, build: Callable[[], ItemEngine], wake_hub: Callable[[], None]) -> None:
        self.commits = 0
        self._build = build
        self._wake_hub = wake_hub
        self._inbox: deque[Delivery] = deque()  # hub -> loop; bounded by prefetch
        self._outbox: deque[tuple[Delivery, Verdict | None]] = deque()  # loop -> hub; None = started; bounded likewise
        self._loop_is_called = False
        self._hub_is_called = False
        self._tell_starts: asyncio.TimerHandle | None = None  # touched on the loop thread only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: ItemEngine | None = None
        self._ready: Future[None] = Future()
        self._turned_at: float | None = None  # written by the loop while it serves, read by any thread
        self._thread = threading.Thread(target=self._main, name="penstock-items", daemon=True)

    # -- hub thread --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises what the engine raises when it cannot start, and WorkerShutdown when it need not any more."""
        self._thread.start()
        while not self._ready.done():
            concurrent.futures.wait([self._ready], START_LOOK_S)
            if state.should_stop is not None:  # told to end while a model loads: nothing is here that must be drained
                raise WorkerShutdown(state.should_stop)
        self._ready.result()
        _spare_the_collector()

    def accept(self, delivery: Delivery) -> None:
        self._inbox.append(delivery)
        if not self._loop_is_called:
            self._loop_is_called = True
            self._call(self._take_inbox)

    def abort(self, delivery: Delivery, why: str) -> None:
        self._call(lambda: self._running().abort(delivery, why))

    def resize(self, concurrency: int) -> None:
        self._call(lambda: self._running().resize(concurrency))

    def outcomes(self) -> Iterator[tuple[Delivery, Verdict | None]]:
        """What the engine has said since the last call, in its order; None where an item has started."""
        self._hub_is_called = False
        while self._outbox:
            yield self._outbox.popleft()

    def drain(self, deadline_s: float) -> Future[None]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._running().drain(deadline_s), self._loop)

    def stop(self, timeout_s: float) -> bool:
        """False when the engine did not stop in time; its thread is a daemon and dies with the process."""
        self._call(lambda: self._ended.set())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stats(self) -> Mapping[str, int | float | str]:
        return {} if self._engine is None else self._engine.stats()

    def stuck(self) -> str | None:
        if not self.loop_turns():
            return f"the item loop has not turned for {LOOP_STUCK_S:.0f} s"
        return None if self._engine is None else self._engine.stuck()

    def loop_turns(self) -> bool:
        """False when the item loop serves and has stood still for ``LOOP_STUCK_S`` seconds. Any thread."""
        turned_at = self._turned_at
        return turned_at is None or monotonic() - turned_at < LOOP_STUCK_S

    def trouble(self) -> str | None:
        return None if self._engine is None else self._engine.trouble()

    def figures(self) -> Iterable[Sample]:
        return () if self._engine is None else self._engine.figures()

    # -- loop thread -------------------------------------------------------------------------------------------------

    def started(self, delivery: Delivery) -> None:
        """Told to the hub in groups: one wake-up per item would cost more than the news is worth."""
        self._outbox.append((delivery, None))
        if not self._hub_is_called and self._tell_starts is None and self._loop is not None:
            self._tell_starts = self._loop.call_later(STARTS_LINGER_S, self._call_hub)

    def conclude(self, pairs: Sequence[tuple[Delivery, Verdict]]) -> None:
        self.commits += 1
        self._outbox.extend(pairs)
        self._call_hub()

    def _call_hub(self) -> None:
        if self._tell_starts is not None:
            self._tell_starts.cancel()
            self._tell_starts = None
        if not self._hub_is_called:
            self._hub_is_called = True
            self._wake_hub()

    def _take_inbox(self) -> None:
        self._loop_is_called = False
        engine = self._running()
        while self._inbox:
            delivery = self._inbox.popleft()
            try:
                engine.accept(delivery)
            except Exception:
                log.exception("a bug of ours: item %s was not accepted; it goes back to its queue", delivery.task_id)
                self.conclude([(delivery, GivenBack("not accepted"))])

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        try:
            self._engine = self._build()
            await self._engine.start(self)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        beating = asyncio.create_task(self._beat(), name="item loop's beat")
        await self._ended.wait()
        try:
            await self._engine.stop()
        except Exception:
            log.exception("the engine did not stop cleanly; what it held has been given back")
        beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._turned_at = monotonic()
            await asyncio.sleep(LOOP_BEAT_S)

    # -- both --------------------------------------------------------------------------------------------------------

    def _running(self) -> ItemEngine:
        assert self._engine is not None, "start() comes first"
        return self._engine

    def _call(self, step: Callable[[], object]) -> None:
        assert self._loop is not None, "start() comes first"
        try:
            self._loop.call_soon_threadsafe(step)
        except RuntimeError:
            log.debug("the item loop is closed already")


def _spare_the_collector() -> None:
    """What is in memory by now, code above all, lives as long as the process: no need to walk it again and again."""
    gc.collect()
    gc.freeze()
