"""The life of a worker's engine.

It is built with its adapters, watched, ended when it cannot be used any more, and built anew. An
engine is dead when it says so, when it hangs, when its device is lost, and when it fails at
everything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock_producer.feed.queues import Served
from penstock_workers.background import BackgroundTasks
from penstock_workers.lanes import engine_faults
from penstock_workers.lanes.engine_faults import FailureRun
from penstock_workers.lanes.gpu import adapter_watch
from penstock_workers.lanes.gpu.engine.adapters import Adapter, UnusableAdapter
from penstock_workers.lanes.gpu.engine.engine_queue import EngineFigures, EngineQueue, EngineState
from penstock_workers.lanes.gpu.engine.engines import (
    Engine,
    EngineBusy,
    EngineDied,
    EngineFault,
    RequestRefused,
)
from penstock_workers.lanes.gpu.engine_factory import Built, EngineFactory
from penstock_workers.lanes.gpu.requests.calls import CallBuilder
from penstock_workers.lanes.gpu.requests.replies import ENGINES_FAULT, why_unanswered
from penstock_workers.lanes.gpu.settings import GpuSettings

log = logging.getLogger(__name__)

# ``rebuilds_max`` engines in this time; one that dies more often needs another machine
REBUILD_SPAN_S: Final = 3600.0
# Before each try to build a new one: the same cause may be about to end the worker, and memory of
# the old one to be freed.
REBUILD_PAUSES_S: Final = (1.0, 3.0, 10.0, 30.0)
PROBE_S: Final = 60.0  # for one token, where nothing but failures came


class Rebuilds:
    """Builds a new engine where one has died, so often as an hour allows."""

    def __init__(
        self, most: int, build: Callable[[], Awaitable[None]], give_up: Callable[[str], None]
    ) -> None:
        self._most, self._build, self._give_up = most, build, give_up
        self._built: deque[float] = deque()  # when engines were built anew; bounded by ``most``
        self.ended = False

    async def run(self, dead: Engine, why: str) -> None:
        try:
            await dead.stop()
        except Exception:
            log.exception("the dead engine did not end cleanly")
        for pause_s in REBUILD_PAUSES_S:
            await asyncio.sleep(pause_s)
            if self.ended:
                return
            if not self._may_build():
                self._give_up(
                    f"more than {self._most} engines in an hour; the last one died: {why}"
                )
                return
            began = time.monotonic()
            try:
                await self._build()
            # whatever it is: memory that is not free yet, a model that is gone
            except Exception as error:
                why = str(error)
                log.error("no new engine could be built: %s", why)
                continue
            log.warning("a new engine is up after %.0f s", time.monotonic() - began)
            return
        self._give_up(
            f"no engine could be built in {len(REBUILD_PAUSES_S)} tries; the last one: {why}"
        )

    def _may_build(self) -> bool:
        now = time.monotonic()
        while self._built and now - self._built[0] > REBUILD_SPAN_S:
            self._built.popleft()
        if len(self._built) >= self._most:
            return False
        self._built.append(now)
        return True


class Probe:
    """Finds out after many failures whether the documents are at fault, or the engine."""

    def __init__(self, tasks: BackgroundTasks, end: Callable[[Engine, str], None]) -> None:
        self._tasks, self._end = tasks, end
        self._failing = FailureRun()
        self._task: asyncio.Task[None] | None = None

    def answered(self) -> None:
        self._failing.answered()

    def failed(self, engine: Engine, calls: CallBuilder) -> None:
        if self._failing.failed() and (self._task is None or self._task.done()):
            self._task = self._tasks.start(self._ask_one_token(engine, calls), "engine probe")

    async def _ask_one_token(self, engine: Engine, calls: CallBuilder) -> None:
        """Ask for what any engine can give, and end one that cannot."""
        try:
            async with asyncio.timeout(PROBE_S):
                probe = calls.probe()
                output = await engine.run(probe, lambda: None)
        except TimeoutError:
            self._end(engine, f"after a run of failures it gave no token within {PROBE_S:.0f} s")
        except (EngineFault, EngineDied, RequestRefused) as error:
            self._end(engine, f"after a run of failures it cannot give one token: {error}")
        except EngineBusy:
            log.warning("many requests failed in a row; the engine had no room to be asked why")
        else:
            missing = why_unanswered(probe, output)
            if missing is not None and missing.failure in ENGINES_FAULT:
                self._end(
                    engine, f"after a run of failures it cannot give one token: {missing.detail}"
                )
            else:
                log.warning(
                    "many requests failed in a row, and the engine answers: the documents are at "
                    "fault"
                )


class EngineHost:
    """Keeps an engine alive, on one event loop.

    ``on_built`` gets each engine's VllmConfig; ``on_end`` is called as one is ended by force."""

    def __init__(
        self,
        settings: GpuSettings,
        queue: EngineQueue,
        *,
        drain_seconds: float,
        give_up: Callable[[str], None],
        on_built: Callable[[Any], None],
        on_end: Callable[[], None],
        s3_endpoint_url: str | None = None,
    ) -> None:
        self._cards: Mapping[str, str] = {"cards": settings.cards} if settings.cards else {}
        self._queue, self._give_up, self._on_built, self._on_end = queue, give_up, on_built, on_end
        self._figures = EngineFigures(queue.heard, self._note_step)
        self._factory = EngineFactory(
            settings, self._figures, drain_seconds=drain_seconds, s3_endpoint_url=s3_endpoint_url
        )
        self._adapter_watch = self._factory.adapter_watch(self._load_found)
        self.engine: Engine | None = None  # None while there is none that can be used
        self.built: Built | None = None  # the latest; None before there was one
        self._deaths = 0
        self._tasks = BackgroundTasks()
        self._probe = Probe(self._tasks, self.end)
        self._rebuilds = Rebuilds(settings.rebuilds_max, self._build, give_up)

    async def start(self) -> None:
        started = time.monotonic()
        await self._factory.prepare()
        if self._adapter_watch is not None:
            await self._adapter_watch.look()
        await self._build()
        log.info("gpu.model %s is up after %.0f s", self._factory.model, time.monotonic() - started)
        self._tasks.start(self._watch(), "engine watch")
        if self._adapter_watch is not None:
            self._tasks.start(self._adapter_watch.run(), "adapter watch")

    def drain(self) -> None:
        """Build no engine any more."""
        self._rebuilds.ended = True

    async def close(self) -> None:
        self.drain()
        self._queue.close()
        await self._tasks.close()
        if self.engine is not None:
            engine, self.engine = self.engine, None
            await engine.stop()

    @property
    def served(self) -> Served:
        """Return what the engine serves, with the adapters of now; no name before it is up."""
        if self.built is None:
            return Served(())
        return replace(self.built.served, adapters=self._factory.adapters.announced())

    @property
    def calls(self) -> CallBuilder:
        assert self.built is not None, "start() comes first"
        return self.built.calls

    def gauges(self) -> Mapping[str, float | str]:
        max_seqs = self.built.max_seqs if self.built is not None and self.engine is not None else 0
        figures = self._figures.gauges(max_seqs=max_seqs, lined_up=self._queue.waiting)
        loading = self._factory.loading.gauges()
        return {**figures, "deaths": float(self._deaths), **self._cards, **loading}

    # -- what its requests tell of it --------------------------------------------------------------

    def answered(self) -> None:
        self._probe.answered()

    def failed(self, engine: Engine) -> None:
        """Count a request that failed for no known reason of its own.

        After many of them the engine is probed."""
        self._probe.failed(engine, self.calls)

    def device_lost(self, engine: Engine, why: str) -> None:
        self.end(engine, f"its device is lost: {why}")

    # -- its life ----------------------------------------------------------------------------------

    async def _build(self) -> None:
        self.built = built = await self._factory.build()
        self._on_built(built.engine.config)
        self._probe.answered()
        self.engine = built.engine
        self._queue.open(built.max_seqs, built.kv_tokens)

    async def _load_found(self, adapter: Adapter) -> bool:
        """Load an adapter that was found now; a first engine that is yet to come will load it.

        Raises UnusableAdapter."""
        engine = self.engine
        if engine is None:
            return self.built is None
        try:
            await adapter_watch.load(engine, adapter)
        except adapter_watch.EngineEnded as error:
            if engine is not self.engine:  # it was found dead meanwhile, for a reason of its own
                return False
            self.end(engine, str(error))
            raise UnusableAdapter(str(error)) from error
        return True

    def _note_step(self, number: int, state: EngineState) -> None:
        if self.built is not None:
            self.built.steps.stepped(number, busy=bool(state.running or state.waiting))

    def end(self, engine: Engine, why: str) -> None:
        """End an engine that does not end by itself."""
        if engine is not self.engine:
            return
        if not engine.kill():
            self.engine = None
            self._deaths += 1
            self._queue.close()
            self._give_up(f"the engine in this process cannot be used any more: {why}")
        self.note_death(engine, why)
        self._on_end()  # whatever the engine says of what is in it, or does not

    def note_death(self, engine: Engine, why: str) -> None:
        """Note that an engine died, and have a new one built.

        Each item that was in it calls this; only the first call does something."""
        if engine is not self.engine:
            return
        self.engine = None
        self._deaths += 1
        self._queue.close()
        self._figures.forget()
        log.error("the engine died (%s); what was in it goes back to the queue", why)
        self._tasks.start(self._rebuilds.run(engine, why), "engine rebuild")

    async def _watch(self) -> None:
        """Look again and again whether the engine is alive.

        It can die between two items, and it can hang."""
        while True:
            await asyncio.sleep(engine_faults.LOOK_S)
            engine = self.engine
            if engine is None or self.built is None:
                continue
            if not engine.is_alive():
                self.note_death(engine, "it was found dead")
            elif (silence := self.built.steps.hangs()) is not None and not await _compiles(
                self.built
            ):
                self.end(engine, f"it hangs: {silence} (gpu.stall_s)")


async def _compiles(built: Built) -> bool:
    """Return whether an engine compiles.

    Kernels are compiled as they are first needed, and that is one long step."""
    return built.steps.silent_s() < engine_faults.COMPILING_S and await asyncio.to_thread(
        built.engine.compiles
    )
