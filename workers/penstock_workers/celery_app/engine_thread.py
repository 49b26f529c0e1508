"""The thread whose asyncio loop runs the engine: its start, its end, and whether it is stuck.

It chooses the event loop, and how often the cycle collector runs on it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from time import monotonic

from celery.exceptions import WorkerShutdown
from celery.worker import state

from penstock_workers.item.deliveries import Bridge, Delivery, ItemEngine
from penstock_workers.metrics.samples import Sample

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# Items are freed with their last reference (test_garbage.py), so the collector
# only frees what libraries leave behind. Python's 700 new objects are what a hundred items hold,
# and each
# of those walks visits all that are in flight. So many new objects are a few tens of MB at most
# before a walk.
NEW_OBJECTS, YOUNG_WALKS, MIDDLE_WALKS = 50_000, 20, 50
# A process with little to do makes so many in hours: its statements of SQL and errors of servers
# that were away would be kept until then, and what lived through a walk for days. So there is a
# walk of everything now and then, too, which takes at most a thousandth of the time.
FREE_EACH_S = 30.0
FREE_REST = 1_000.0  # times what the walk before took


def loop_factory(uvloop: bool) -> LoopFactory | None:
    """Return uvloop's factory where it is wanted and installed; None for asyncio's own."""
    if not uvloop:
        return None
    try:
        import uvloop as fast  # on demand: the extra `worker` brings it where it has a wheel
    except ImportError:
        return None
    return fast.new_event_loop


def spare_the_collector() -> None:
    """Exclude what is in memory by now, code above all, from collections.

    It lives as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG_WALKS, MIDDLE_WALKS)


class Freeing:
    """Frees what only a walk of the cycle collector finds. For the thread of the item loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Free nothing yet: a process that starts has just been walked."""
        self._clock = clock
        self._next_at = clock() + FREE_EACH_S

    def look(self) -> None:
        """Walk everything if it is time to, which blocks for some milliseconds."""
        began = self._clock()
        if began < self._next_at:
            return
        gc.collect()
        ended = self._clock()
        self._next_at = ended + max(FREE_EACH_S, FREE_REST * (ended - began))


log = logging.getLogger(__name__)

START_LOOK_S = 0.5  # how soon a SIGTERM is seen while the engine starts
GIVE_UP_S = 45.0  # for the end of what has been started by then, such as the processes of an engine
LOOP_BEAT_S = 1.0
# An item loop that has not run for so long counts as stuck; a busy one lags by seconds at most.
LOOP_STUCK_S = 60.0


class EngineThread:
    """The thread of the item loop, run from the hub thread but for its coroutines."""

    def __init__(
        self, build: Callable[[], ItemEngine], make_loop: LoopFactory | None = None
    ) -> None:
        """Start nothing yet; ``make_loop`` makes the item loop, None stands for asyncio's own."""
        self._build = build
        self._make_loop = make_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._engine: ItemEngine | None = None
        self._ready: Future[None] = Future()
        # written by the loop while it serves, read by any thread
        self._turned_at: float | None = None

    def start(self, bridge: Bridge, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start the engine and wait until it is up.

        ``meanwhile`` is called twice a second, as long as that lasts. Raises what the engine raises
        when it cannot start, and WorkerShutdown after a signal to stop that came then.
        """
        self._thread = threading.Thread(
            target=self._main, args=(bridge,), name="penstock-items", daemon=True
        )
        self._thread.start()
        while not self._ready.done():
            concurrent.futures.wait([self._ready], START_LOOK_S)
            meanwhile()
            # a signal to stop while a model loads: there is nothing to drain
            if state.should_stop is not None:
                self._give_up()
                raise WorkerShutdown(state.should_stop)
        self._ready.result()
        spare_the_collector()

    def _give_up(self) -> None:
        """Cancel the start of the engine, which ends what it has begun.

        One that is up by then is stopped: it holds nothing yet."""
        serving = self._serving
        if serving is not None:
            log.warning("a signal to stop came while the engine starts; its start is given up")
            self.call(serving.cancel)
            self._thread.join(GIVE_UP_S)

    def abort(self, delivery: Delivery, why: str) -> None:
        self.call(lambda: self.running.abort(delivery, why))

    def resize(self, concurrency: int) -> None:
        self.call(lambda: self.running.resize(concurrency))

    def drain(self, deadline_s: float) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(self.running.drain(deadline_s), self.loop)

    def stop(self, timeout_s: float) -> bool:
        """Stop the engine; return False where it did not in time.

        Its thread is a daemon and dies with the process."""
        self.call(lambda: self._ended.set())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- any thread --------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "start() comes first"
        return self._loop

    @property
    def running(self) -> ItemEngine:
        assert self._engine is not None, "start() comes first"
        return self._engine

    def call(self, step: Callable[[], object]) -> None:
        """Run a step on the item loop."""
        try:
            self.loop.call_soon_threadsafe(step)
        except RuntimeError:
            log.debug("the item loop is closed already")

    def is_turning(self) -> bool:
        """Return False when the item loop serves and has been blocked for ``LOOP_STUCK_S``."""
        turned_at = self._turned_at
        return turned_at is None or monotonic() - turned_at < LOOP_STUCK_S

    def stuck(self) -> str | None:
        if not self.is_turning():
            return f"the item loop has been blocked for {LOOP_STUCK_S:.0f} s"
        return None if self._engine is None else self._engine.stuck()

    def trouble(self) -> str | None:
        return None if self._engine is None else self._engine.trouble()

    def stats(self) -> Mapping[str, int | float | str]:
        if self._engine is None:
            return {}
        return {"loop": type(self._loop).__module__.partition(".")[0], **self._engine.stats()}

    def figures(self) -> Iterable[Sample]:
        return () if self._engine is None else self._engine.figures()

    # -- the item loop -----------------------------------------------------------------------------

    def _main(self, bridge: Bridge) -> None:
        with asyncio.Runner(loop_factory=self._make_loop) as runner:
            runner.run(self._serve(bridge))

    async def _serve(self, bridge: Bridge) -> None:
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.current_task()
        self._ended = asyncio.Event()
        try:
            self._engine = self._build()
            await self._engine.start(bridge)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        beating = asyncio.create_task(self._beat(), name="item loop's beat")
        with contextlib.suppress(asyncio.CancelledError):  # by ``_give_up``
            await self._ended.wait()
        try:
            await self._engine.stop()
        except Exception:
            log.exception("the engine did not stop cleanly; what it held has been given back")
        beating.cancel()

    async def _beat(self) -> None:
        freeing = Freeing()
        while True:
            self._turned_at = monotonic()
            freeing.look()
            await asyncio.sleep(LOOP_BEAT_S)
