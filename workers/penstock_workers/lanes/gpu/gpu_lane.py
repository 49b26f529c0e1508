"""The `gpu` lane: the worker hosts the model and keeps it full.

Read ``GpuLane.infer`` first. When an engine dies, each item in it ends as `engine_died` and
goes back to its queue, and the lane builds a new engine meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from penstock_producer.served import Served
from penstock_workers.errors import BadEngineSettings
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.gpu.calls import CallBuilder, ContextOverflow, ModelFacts, UnknownModel
from penstock_workers.lanes.gpu.engine_queue import EngineQueue
from penstock_workers.lanes.gpu.engines import (
    Call,
    Engine,
    EngineBusy,
    EngineDied,
    EngineFault,
    RequestRefused,
    make_engine,
)
from penstock_workers.lanes.gpu.figures import EngineFigures
from penstock_workers.lanes.gpu.replies import reply, was_aborted
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

REBUILD_SPAN_S = 3600.0  # ``rebuilds_max`` engines in this time; one that dies more often needs another machine
REBUILD_PAUSE_S = 1.0  # the same cause may be about to end the worker: load nothing if it drains by then
WATCH_S = 5.0  # an engine that dies while nothing is in it is noticed this late


class GpuLane:
    """Implements ``item.lane.Lane`` over one engine. ``give_up`` ends the worker, for its orchestrator to replace."""

    def __init__(self, settings: WorkerSettings, give_up: Callable[[], None] | None = None) -> None:
        if settings.gpu.model is None:
            raise BadEngineSettings("the gpu lane needs a model: give --model, or set gpu.model (a folder or a name)")
        self.queue = EngineQueue()
        self.served = Served(())  # known once an engine is up
        self._settings = settings.gpu
        self._drain_seconds = settings.drain_seconds
        self._give_up = give_up or end_this_worker
        self._figures = EngineFigures(self.queue.heard)
        self._engine: Engine | None = None
        self._calls: CallBuilder | None = None
        self._max_seqs = 0
        self._draining = False
        self._threads = ThreadPoolExecutor(settings.gpu.prepare_threads, thread_name_prefix="prepare")
        self._built: deque[float] = deque()  # when engines were built anew; bounded by rebuilds_max
        self._rebuilding: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        started = time.monotonic()
        await self._build()
        log.info("gpu.model %s is up after %.0f s", self._settings.model, time.monotonic() - started)
        self._watching = asyncio.create_task(self._watch(), name="engine watch")

    async def prepare(self, request: Request) -> Prepared:
        """Template, tokens and sampling parameters, in a thread: the loop feeds the engine meanwhile."""
        assert self._calls is not None, "start() comes first"
        try:
            call, tokens = await asyncio.get_running_loop().run_in_executor(self._threads, self._calls.build, request)
        except RequestRefused as error:
            return Prepared(request, refused=refusal(error))
        return Prepared(request, tokens, input=call)

    async def infer(self, prepared: Prepared) -> Tried:
        started = time.monotonic()
        call: Call = prepared.input
        engine = self._engine
        if engine is None:
            return NoAnswer("engine_busy", "the engine is being built", 0, sent=False)
        try:
            async with asyncio.timeout(prepared.request.timeout_s):
                output = await engine.run(call)
        except TimeoutError:
            return NoAnswer("timeout", f"no complete answer within {prepared.request.timeout_s:g} s", _since(started))
        except RequestRefused as error:
            return refusal(error)
        except EngineBusy as error:
            return NoAnswer("engine_busy", str(error), _since(started), sent=False)
        except EngineFault as error:
            return NoAnswer("engine_failed", str(error), _since(started))
        except EngineDied as error:
            self._note_death(engine, str(error))
            return NoAnswer("engine_died", str(error), _since(started))
        if was_aborted(output):
            return NoAnswer("engine_aborted", "the engine ended the request before its end", _since(started))
        return Answer(200, _HEADERS, reply(call, output), _since(started))

    def gauges(self) -> Mapping[str, float | str]:
        max_seqs = self._max_seqs if self._engine is not None else 0
        return self._figures.gauges(max_seqs=max_seqs, lined_up=self.queue.waiting)

    def drain(self) -> None:
        self._draining = True

    async def close(self) -> None:
        self._draining = True
        self.queue.close()
        for task in (self._watching, self._rebuilding):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- the engine's life -----------------------------------------------------------------------------------------

    async def _build(self) -> None:
        engine = make_engine(self._settings, self._figures, drain_seconds=self._drain_seconds)
        await engine.start()
        config = engine.config
        self._max_seqs = config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size
        if self._calls is None:
            self._calls = CallBuilder(self._settings, engine.tokenizer(), _facts(self._settings, config))
        self.served = _served(self._settings, config)
        self._engine = engine
        self.queue.open(self._max_seqs, _kv_tokens(config))

    def _note_death(self, engine: Engine, why: str) -> None:
        """Called by each item that was in it; the first one has the new engine built."""
        if engine is not self._engine:
            return
        self._engine = None
        self.queue.close()
        self._figures.forget()
        log.error("the engine died (%s); what was in it goes back to the queue", why)
        self._rebuilding = asyncio.create_task(self._rebuild(engine), name="engine rebuild")

    async def _rebuild(self, dead: Engine) -> None:
        try:
            await dead.stop()
        except Exception:
            log.exception("the dead engine did not end cleanly")
        await asyncio.sleep(REBUILD_PAUSE_S)
        if self._draining:
            return
        now = time.monotonic()
        while self._built and now - self._built[0] > REBUILD_SPAN_S:
            self._built.popleft()
        if len(self._built) >= self._settings.rebuilds_max:
            log.error(
                "%d engines have died within an hour: this worker ends, for another to take over", len(self._built) + 1
            )
            self._give_up()
            return
        self._built.append(now)
        try:
            await self._build()
        except Exception:  # whatever it is, a worker without an engine must not go on holding items
            log.exception("no new engine could be built; this worker ends, for another to take over")
            self._give_up()
            return
        log.warning("a new engine is up after %.0f s", time.monotonic() - now)

    async def _watch(self) -> None:
        """An engine can die between two items, too."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self._engine is not None and not self._engine.is_alive():
                self._note_death(self._engine, "it was found dead")


_HEADERS: Mapping[str, str] = {}


def _facts(settings: GpuSettings, config: Any) -> ModelFacts:
    model = settings.model or ""
    model_config = config.model_config
    defaults: Mapping[str, Any] = getattr(model_config, "get_diff_sampling_param", dict)()
    return ModelFacts(
        names=frozenset({model, Path(model).name, *settings.names}),
        context=model_config.max_model_len,
        defaults={name: value for name, value in defaults.items() if name != "max_tokens"},
        pools=model_config.runner_type == "pooling",
    )


def _served(settings: GpuSettings, config: Any) -> Served:
    model = settings.model or ""
    names = tuple(dict.fromkeys((model, Path(model).name, *settings.names)))
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    return Served(names, tuple(settings.lora), config.model_config.max_model_len, dtype)


def _kv_tokens(config: Any) -> int:
    """Tokens that the engine's KV cache holds; 0 where it does not say."""
    cache = config.cache_config
    tokens = getattr(cache, "kv_cache_size_tokens", None)  # counts groups of layers right; older versions lack it
    return int(tokens or (cache.num_gpu_blocks or 0) * (cache.block_size or 0))


def refusal(error: RequestRefused) -> Answer:
    """As vLLM's server would answer, so that both have the same table of failures."""
    match error:
        case UnknownModel():
            status, code = 404, "model_not_found"
        case ContextOverflow():
            status, code = 400, "context_length_exceeded"
        case _:
            status, code = 400, "invalid_request_error"
    body = {"error": {"message": str(error), "type": "invalid_request_error", "code": code}}
    return Answer(status, _HEADERS, orjson.dumps(body), 0)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)


def end_this_worker() -> None:
    """A drain like any other: what is here goes back to the queue."""
    os.kill(os.getpid(), signal.SIGTERM)
