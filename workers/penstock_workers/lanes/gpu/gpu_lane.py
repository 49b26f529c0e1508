"""The `gpu` lane: the worker hosts the model and keeps it full.

Read ``GpuLane.infer`` first. An engine is dead when it says so, when it hangs, when its device is lost, and when it fails
at everything. Then each item in it ends as `engine_died` and goes back to its queue, and the lane builds a new engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from penstock_producer.options import OPTIONS
from penstock_workers.celery_app.ending import end_this_worker
from penstock_workers.errors import BadEngineSettings
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.engine_life import stall
from penstock_workers.lanes.engine_life.device_errors import is_lost
from penstock_workers.lanes.engine_life.failing import FailureRun
from penstock_workers.lanes.engine_life.stall import StepWatch
from penstock_workers.lanes.gpu.adapters import Adapters
from penstock_workers.lanes.gpu.calls import CallBuilder, ContextOverflow, ModelFacts, UnknownModel
from penstock_workers.lanes.gpu.engine_queue import EngineQueue, EngineState
from penstock_workers.lanes.gpu.engines import (
    Call,
    Engine,
    EngineBusy,
    EngineDied,
    EngineFault,
    RequestRefused,
    failpoint_as_fault,
    make_engine,
)
from penstock_workers.lanes.gpu.figures import EngineFigures
from penstock_workers.lanes.gpu.grammars import GrammarCheck
from penstock_workers.lanes.gpu.replies import reply, why_unanswered
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

REBUILD_SPAN_S = 3600.0  # ``rebuilds_max`` engines in this time; one that dies more often needs another machine
# Before each try to build a new one: the same cause may be about to end the worker, and memory of the old one to be freed.
REBUILD_PAUSES_S = (1.0, 3.0, 10.0, 30.0)
ADAPTER_S = 120.0  # to load one adapter
PROBE_S = 60.0  # for one token, where nothing but failures came
SECONDS_PER_TOKEN = 0.25  # of an answer, on a slow engine that is full: what the default of `timeout_s` allows


class GpuLane:
    """Implements ``item.lane.Lane`` over one engine. ``give_up`` ends the worker, for its orchestrator to replace."""

    def __init__(self, settings: WorkerSettings, give_up: Callable[[str], None] = end_this_worker) -> None:
        if settings.gpu.model is None:
            raise BadEngineSettings("the gpu lane needs a model: give --model, or set gpu.model (a folder or a name)")
        self.queue = EngineQueue()
        self._settings = settings.gpu
        self._drain_seconds = settings.drain_seconds
        self._give_up = give_up
        self._failpoints = Failpoints.parse(settings.failpoints)
        self._figures = EngineFigures(self.queue.heard, self._note_step)
        self._adapters = Adapters(settings.gpu.lora, settings.gpu.model)
        self._engine: Engine | None = None
        self._calls: CallBuilder | None = None
        self._grammars = GrammarCheck(settings.gpu)
        self._steps = StepWatch(stall.MOST_S)
        self._failing = FailureRun()
        self._limits: set[asyncio.Timeout] = set()  # of the requests in the engine; bounded by its queue
        self._max_seqs = 0
        self._draining = False
        self._threads = ThreadPoolExecutor(settings.gpu.prepare_threads, thread_name_prefix="prepare")
        self._built: deque[float] = deque()  # when engines were built anew; bounded by rebuilds_max
        self._rebuilding: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None

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
            await self._grammars.check(call.params)
        except RequestRefused as error:
            return Prepared(request, refused=refusal(error))
        return Prepared(request, tokens, input=call)

    async def infer(self, prepared: Prepared) -> Tried:
        started = time.monotonic()
        engine = self._engine
        if engine is None:
            return NoAnswer("engine_busy", "the engine is being built", 0, sent=False)
        limit_s = time_limit_s(prepared)
        self._steps.entered()
        try:
            output = await self._run(engine, prepared, limit_s)
        except TimeoutError:
            if engine is self._engine:
                why = (
                    f"no complete answer within {limit_s:g} s of its first token; raise timeout_s, or lower max_tokens"
                )
                return NoAnswer("timeout", why, _since(started))
            return NoAnswer("engine_died", "its engine hung, or lost its device", _since(started))
        except RequestRefused as error:
            return refusal(error)
        except EngineBusy as error:
            return NoAnswer("engine_busy", str(error), _since(started), sent=False)
        except EngineFault as error:
            return self._failed(engine, error, _since(started))
        except EngineDied as error:
            if self._settings.in_process and is_lost(error):
                self._end(engine, f"its device is lost: {error}")  # to the whole process
            else:
                self._note_death(engine, str(error))
            return NoAnswer("engine_died", str(error), _since(started))
        finally:
            self._steps.left()
        return self._answer(engine, prepared.input, output, _since(started))

    async def _run(self, engine: Engine, prepared: Prepared, limit_s: float) -> Any:
        """Its time begins with its first token: waiting in the engine's line is not the item's fault."""
        clock = asyncio.get_running_loop().time
        async with asyncio.timeout(None) as limit:
            self._limits.add(limit)
            try:
                with failpoint_as_fault():
                    self._failpoints.hit("engine")
                return await engine.run(prepared.input, lambda: _expire(limit, at=clock() + limit_s))
            finally:
                self._limits.discard(limit)

    def _answer(self, engine: Engine, call: Call, output: Any, took_ms: int) -> Tried:
        missing = why_unanswered(call, output)
        if missing is None:
            self._failing.answered()
            return Answer(200, _HEADERS, reply(call, output), took_ms)
        if missing.failure in ENGINES_FAULT and self._failing.failed():
            self._probe(engine)
        return NoAnswer(missing.failure, missing.detail, took_ms)

    def _failed(self, engine: Engine, error: EngineFault, took_ms: int) -> NoAnswer:
        if is_lost(error):
            self._end(engine, f"its device is lost: {error}")
            return NoAnswer("engine_died", str(error), took_ms)
        if self._failing.failed():
            self._probe(engine)
        return NoAnswer("engine_failed", str(error), took_ms)

    def gauges(self) -> Mapping[str, float | str]:
        max_seqs = self._max_seqs if self._engine is not None else 0
        return self._figures.gauges(max_seqs=max_seqs, lined_up=self.queue.waiting)

    def drain(self) -> None:
        self._draining = True

    async def close(self) -> None:
        self._draining = True
        self.queue.close()
        for task in (self._watching, self._rebuilding, self._probing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.stop()
        await self._grammars.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- the engine's life -----------------------------------------------------------------------------------------

    async def _build(self) -> None:
        engine = await self._started()
        config = engine.config
        self._max_seqs = config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size
        if self._calls is None:
            facts = _facts(self._settings, config)
            self._calls = CallBuilder(self._settings, engine.tokenizer(), facts, self._adapters)
        self._grammars.know(config)
        self._steps = StepWatch(self._settings.stall_s or stall_s(config))
        self._failing.answered()
        self._engine = engine
        self.queue.open(self._max_seqs, _kv_tokens(config))

    async def _started(self) -> Engine:
        """An engine with all the adapters that can be loaded. One that ends it is left out of the next."""
        while True:
            engine = make_engine(self._settings, self._adapters, self._figures, drain_seconds=self._drain_seconds)
            await engine.start()
            if await self._load_adapters(engine):
                return engine
            await engine.stop()

    async def _load_adapters(self, engine: Engine) -> bool:
        for adapter in list(self._adapters.usable()):
            try:
                async with asyncio.timeout(ADAPTER_S):
                    await engine.load(adapter.request())
            except (EngineDied, TimeoutError) as error:
                adapter.refuse(f"it ends the engine that loads it ({type(error).__name__} {error})")
                engine.kill()
                return False
            except Exception as error:  # what vLLM finds wrong with it, in whatever class
                adapter.refuse(f"{type(error).__name__}: {error}")
        return True

    def _note_step(self, number: int, state: EngineState) -> None:
        self._steps.stepped(number, busy=bool(state.running or state.waiting))

    def _end(self, engine: Engine, why: str) -> None:
        """An engine that does not end by itself."""
        if engine is not self._engine:
            return
        if not engine.kill():
            self._engine = None
            self.queue.close()
            self._give_up(f"the engine in this process is of no use any more: {why}")
        self._note_death(engine, why)
        for limit in list(self._limits):
            _expire(limit, at=0)  # whatever the engine says of them, or does not

    def _note_death(self, engine: Engine, why: str) -> None:
        """Called by each item that was in it; the first one has the new engine built."""
        if engine is not self._engine:
            return
        self._engine = None
        self.queue.close()
        self._figures.forget()
        log.error("the engine died (%s); what was in it goes back to the queue", why)
        self._rebuilding = asyncio.create_task(self._rebuild(engine, why), name="engine rebuild")

    async def _rebuild(self, dead: Engine, why: str) -> None:
        try:
            await dead.stop()
        except Exception:
            log.exception("the dead engine did not end cleanly")
        for pause_s in REBUILD_PAUSES_S:
            await asyncio.sleep(pause_s)
            if self._draining:
                return
            if not self._may_build():
                self._give_up(f"more than {self._settings.rebuilds_max} engines in an hour; the last one died: {why}")
                return
            began = time.monotonic()
            try:
                await self._build()
            except Exception as error:  # whatever it is: memory that is not free yet, a model that is gone
                why = str(error)
                log.error("no new engine could be built: %s", why)
                continue
            log.warning("a new engine is up after %.0f s", time.monotonic() - began)
            return
        self._give_up(f"no engine could be built in {len(REBUILD_PAUSES_S)} tries; the last one: {why}")

    def _may_build(self) -> bool:
        now = time.monotonic()
        while self._built and now - self._built[0] > REBUILD_SPAN_S:
            self._built.popleft()
        if len(self._built) >= self._settings.rebuilds_max:
            return False
        self._built.append(now)
        return True

    async def _watch(self) -> None:
        """An engine can die between two items, and it can hang."""
        while True:
            await asyncio.sleep(stall.LOOK_S)
            engine = self._engine
            if engine is None:
                continue
            if not engine.is_alive():
                self._note_death(engine, "it was found dead")
            elif (silence := self._steps.hangs()) is not None and not await self._compiles(engine):
                self._end(engine, f"it hangs: {silence} (gpu.stall_s)")

    async def _compiles(self, engine: Engine) -> bool:
        """Kernels are compiled as they are first needed, and that is one long step."""
        return self._steps.silent_s() < stall.COMPILING_S and await asyncio.to_thread(engine.compiles)

    def _probe(self, engine: Engine) -> None:
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._ask_one_token(engine), name="engine probe")

    async def _ask_one_token(self, engine: Engine) -> None:
        """Whether the documents are at fault, or the engine."""
        assert self._calls is not None, "start() comes first"
        try:
            async with asyncio.timeout(PROBE_S):
                probe = self._calls.probe()
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
                self._end(engine, f"after a run of failures it cannot give one token: {missing.detail}")
            else:
                log.warning("many requests failed in a row, and the engine answers: the documents are at fault")


ENGINES_FAULT = ("engine_failed", "engine_aborted")  # of the names in outcomes.py
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


def time_limit_s(prepared: Prepared) -> float:
    """How long the answer may take from its first token: as the job says, else as long as it may become."""
    asked_s = prepared.request.timeout_s
    if asked_s != OPTIONS["timeout_s"].default:
        return asked_s
    return max(asked_s, SECONDS_PER_TOKEN * (getattr(prepared.input.params, "max_tokens", None) or 0))


def stall_s(config: Any) -> float:
    """From the model's size, with vLLM's own name of the device."""
    tokens = config.scheduler_config.max_num_batched_tokens
    on_cpu = getattr(config.device_config, "device_type", "") == "cpu"
    return stall.longest_step_s(_parameters(config.model_config.hf_text_config), tokens, on_cpu=on_cpu)


def _parameters(text: Any) -> float:
    """About as many as one token passes through, by the widths of its layers; of a mixture of experts, those of a dense one."""
    hidden, layers = getattr(text, "hidden_size", 0), getattr(text, "num_hidden_layers", 0)
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    return float(layers * (4 * hidden * hidden + 3 * hidden * inner) + hidden * getattr(text, "vocab_size", 0))


def _expire(limit: asyncio.Timeout, *, at: float) -> None:
    """In loop time. One that has expired already stays as it is."""
    if not limit.expired():
        limit.reschedule(at)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
