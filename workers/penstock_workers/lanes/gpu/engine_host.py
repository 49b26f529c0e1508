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
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock_producer.feed.queues import Served
from penstock_workers.lanes import engine_faults
from penstock_workers.lanes.engine_faults import FailureRun, StepWatch
from penstock_workers.lanes.gpu import adapter_watch
from penstock_workers.lanes.gpu.engine.adapters import Adapter, Adapters, UnusableAdapter
from penstock_workers.lanes.gpu.engine.child_engine import ChildEngine
from penstock_workers.lanes.gpu.engine.engine_queue import EngineFigures, EngineQueue, EngineState
from penstock_workers.lanes.gpu.engine.engines import (
    Engine,
    EngineBusy,
    EngineDied,
    EngineFault,
    RequestRefused,
)
from penstock_workers.lanes.gpu.engine.in_process_engine import InProcessEngine
from penstock_workers.lanes.gpu.host_files import HostFiles
from penstock_workers.lanes.gpu.requests.calls import CallBuilder, ModelFacts
from penstock_workers.lanes.gpu.requests.media import Media
from penstock_workers.lanes.gpu.requests.prompts import (
    ChatPrompts,
    TextChats,
    Tokenizers,
    read_template,
)
from penstock_workers.lanes.gpu.requests.rendered_chats import RenderedChats
from penstock_workers.lanes.gpu.requests.replies import ENGINES_FAULT, why_unanswered
from penstock_workers.lanes.gpu.requests.scoring import classes_of
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.loading import LoadWatch
from penstock_workers.lanes.scoring import TASKS, wrong_model

log = logging.getLogger(__name__)

# ``rebuilds_max`` engines in this time; one that dies more often needs another machine
REBUILD_SPAN_S: Final = 3600.0
# Before each try to build a new one: the same cause may be about to end the worker, and memory of
# the old one to be freed.
REBUILD_PAUSES_S: Final = (1.0, 3.0, 10.0, 30.0)
PROBE_S: Final = 60.0  # for one token, where nothing but failures came


class EngineHost:
    """Used on one event loop.

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
        self._settings, self._queue, self._drain_seconds = settings, queue, drain_seconds
        self._give_up, self._on_built, self._on_end = give_up, on_built, on_end
        self.engine: Engine | None = None
        self.calls: CallBuilder | None = None
        self.draining = False
        self._served = Served(())  # known once an engine is up
        self._figures = EngineFigures(queue.heard, self._note_step)
        self._files = HostFiles(settings, s3_endpoint_url)
        self._hosted = settings  # with the model as the engine finds it; known at the start
        self._adapters = Adapters(
            settings.lora, settings.model, more=settings.lora_from is not None
        )
        self._adapter_watch = self._files.adapter_watch(self._adapters, self._load_found)
        self._chat_template: str | None = None  # read at the start
        # of the engine that there is; another one has another
        self.steps = StepWatch(engine_faults.MOST_S)
        self._failing = FailureRun()
        self._loading = LoadWatch("gpu.model", settings.model or "")
        # requests that it runs at once, all its replicas together; known once an engine is up
        self.max_seqs = 0
        self._deaths = 0
        self._built: deque[float] = deque()  # when engines were built anew; bounded by rebuilds_max
        self._rebuilding: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        started = time.monotonic()
        self._chat_template = await asyncio.to_thread(read_template, self._settings.chat_template)
        self._hosted = await self._files.hosted(self._loading)
        if self._adapter_watch is not None:
            await self._adapter_watch.look()
        await self._build()
        log.info(
            "gpu.model %s is up after %.0f s", self._settings.model, time.monotonic() - started
        )
        self._watching = asyncio.create_task(self._watch(), name="engine watch")
        if self._adapter_watch is not None:
            self._looking = asyncio.create_task(self._adapter_watch.run(), name="adapter watch")

    async def close(self) -> None:
        self.draining = True
        self._queue.close()
        for task in (self._looking, self._watching, self._rebuilding, self._probing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self.engine is not None:
            engine, self.engine = self.engine, None
            await engine.stop()

    @property
    def served(self) -> Served:
        """What the engine serves, with the adapters that there are now; no name before it is up."""
        return (
            replace(self._served, adapters=self._adapters.announced())
            if self._served.names
            else self._served
        )

    def gauges(self) -> Mapping[str, float | str]:
        max_seqs = self.max_seqs if self.engine is not None else 0
        cards: Mapping[str, str] = {"cards": self._settings.cards} if self._settings.cards else {}
        figures = self._figures.gauges(max_seqs=max_seqs, lined_up=self._queue.waiting)
        return {**figures, "deaths": float(self._deaths), **cards, **self._loading.gauges()}

    # -- what its requests tell of it --------------------------------------------------------------

    def answered(self) -> None:
        self._failing.answered()

    def failed(self, engine: Engine) -> None:
        """Count a request that failed for no known reason of its own.

        After many of them the engine is probed."""
        if self._failing.failed() and (self._probing is None or self._probing.done()):
            self._probing = asyncio.create_task(self._ask_one_token(engine), name="engine probe")

    def device_lost(self, engine: Engine, why: str) -> None:
        self.end(engine, f"its device is lost: {why}")

    # -- its life ----------------------------------------------------------------------------------

    async def _build(self) -> None:
        engine = await self._started()
        config = engine.config
        self.max_seqs = (
            config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size
        )
        facts = _facts(self._settings, config)
        self.calls = self._call_builder(engine, facts)
        self._served = _served(self._settings, config, facts)
        self._on_built(config)
        self.steps = StepWatch(self._settings.stall_s or stall_s(config))
        self._failing.answered()
        self.engine = engine
        self._queue.open(self.max_seqs, _kv_tokens(config))

    def _call_builder(self, engine: Engine, facts: ModelFacts) -> CallBuilder:
        """Build calls with the renderer of this engine, which ends with it."""
        tokenizers = Tokenizers(engine.tokenizer(), self._chat_template)
        chats = self._chats(engine.renderer(), tokenizers, facts)
        return CallBuilder(self._settings, tokenizers, facts, self._adapters, chats)

    def _chats(self, renderer: Any, tokenizers: Tokenizers, facts: ModelFacts) -> ChatPrompts:
        """Choose what makes the prompts of chats.

        vLLM's renderer does where there is more than text to read; its server renders such chats
        with it too.
        """
        if facts.pools or not RenderedChats.suits(renderer):
            return TextChats(tokenizers)
        media = Media(self._settings, renderer)
        if not media.takes_any and self._settings.tool_parser is None:
            return TextChats(tokenizers)
        return RenderedChats(renderer, media, self._chat_template, tokenizers.template)

    def _make(self) -> Engine:
        make = InProcessEngine if self._settings.in_process else ChildEngine
        return make(self._hosted, self._adapters, self._figures, self._drain_seconds)

    async def _started(self) -> Engine:
        """Start an engine with all the adapters that can be loaded.

        An adapter that ends the engine is left out of the next."""
        while True:
            engine = self._make()
            async with self._loading.during(engine.pids):
                await engine.start()
            if await adapter_watch.load_all(engine, self._adapters):
                return engine
            await engine.stop()

    async def _load_found(self, adapter: Adapter) -> bool:
        """Load an adapter that was found now; a first engine that is yet to come will load it.

        Raises UnusableAdapter."""
        engine = self.engine
        if engine is None:
            return self.calls is None
        try:
            await adapter_watch.load(engine, adapter)
        except adapter_watch.EngineEnded as error:
            if engine is not self.engine:  # it was found dead meanwhile, for a reason of its own
                return False
            self.end(engine, str(error))
            raise UnusableAdapter(str(error)) from error
        return True

    def _note_step(self, number: int, state: EngineState) -> None:
        self.steps.stepped(number, busy=bool(state.running or state.waiting))

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
        self._rebuilding = asyncio.create_task(self._rebuild(engine, why), name="engine rebuild")

    async def _rebuild(self, dead: Engine, why: str) -> None:
        try:
            await dead.stop()
        except Exception:
            log.exception("the dead engine did not end cleanly")
        for pause_s in REBUILD_PAUSES_S:
            await asyncio.sleep(pause_s)
            if self.draining:
                return
            if not self._may_build():
                self._give_up(
                    f"more than {self._settings.rebuilds_max} engines in an hour; the last one "
                    f"died: {why}"
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
        if len(self._built) >= self._settings.rebuilds_max:
            return False
        self._built.append(now)
        return True

    async def _watch(self) -> None:
        """Look again and again whether the engine is alive.

        It can die between two items, and it can hang."""
        while True:
            await asyncio.sleep(engine_faults.LOOK_S)
            engine = self.engine
            if engine is None:
                continue
            if not engine.is_alive():
                self.note_death(engine, "it was found dead")
            elif (silence := self.steps.hangs()) is not None and not await self._compiles(engine):
                self.end(engine, f"it hangs: {silence} (gpu.stall_s)")

    async def _compiles(self, engine: Engine) -> bool:
        """Return whether the engine compiles.

        Kernels are compiled as they are first needed, and that is one long step."""
        return self.steps.silent_s() < engine_faults.COMPILING_S and await asyncio.to_thread(
            engine.compiles
        )

    async def _ask_one_token(self, engine: Engine) -> None:
        """Return whether the documents are at fault, or the engine."""
        assert self.calls is not None, "start() comes first"
        try:
            async with asyncio.timeout(PROBE_S):
                probe = self.calls.probe()
                output = await engine.run(probe, lambda: None)
        except TimeoutError:
            self.end(engine, f"after a run of failures it gave no token within {PROBE_S:.0f} s")
        except (EngineFault, EngineDied, RequestRefused) as error:
            self.end(engine, f"after a run of failures it cannot give one token: {error}")
        except EngineBusy:
            log.warning("many requests failed in a row; the engine had no room to be asked why")
        else:
            missing = why_unanswered(probe, output)
            if missing is not None and missing.failure in ENGINES_FAULT:
                self.end(
                    engine, f"after a run of failures it cannot give one token: {missing.detail}"
                )
            else:
                log.warning(
                    "many requests failed in a row, and the engine answers: the documents are at "
                    "fault"
                )


def _facts(settings: GpuSettings, config: Any) -> ModelFacts:
    model = settings.model or ""
    model_config = config.model_config
    defaults: Mapping[str, Any] = getattr(model_config, "get_diff_sampling_param", dict)()
    return ModelFacts(
        names=frozenset({model, Path(model).name, *settings.names}),
        context=model_config.max_model_len,
        defaults={name: value for name, value in defaults.items() if name != "max_tokens"},
        pools=model_config.runner_type == "pooling",
        classes=classes_of(model_config, templated=settings.chat_template is not None),
    )


def stall_s(config: Any) -> float:
    """Return how long a step may take, from the model's size and vLLM's own name of the device."""
    tokens = config.scheduler_config.max_num_batched_tokens
    on_cpu = getattr(config.device_config, "device_type", "") == "cpu"
    return engine_faults.longest_step_s(
        _parameters(config.model_config.hf_text_config), tokens, on_cpu=on_cpu
    )


def _parameters(text: Any) -> float:
    """Return about how many parameters one token passes through.

    They follow from the widths of the model's layers. For a mixture of experts it is as many as a
    dense model has.
    """
    hidden, layers = getattr(text, "hidden_size", 0), getattr(text, "num_hidden_layers", 0)
    inner = getattr(text, "intermediate_size", None) or 4 * hidden
    return float(
        layers * (4 * hidden * hidden + 3 * hidden * inner)
        + hidden * getattr(text, "vocab_size", 0)
    )


def _served(settings: GpuSettings, config: Any, facts: ModelFacts) -> Served:
    model = settings.model or ""
    names = tuple(dict.fromkeys((model, Path(model).name, *settings.names)))
    dtype = str(config.model_config.dtype).removeprefix("torch.")
    return Served(names, (), facts.context, dtype, _tasks(facts))


def _tasks(facts: ModelFacts) -> tuple[str, ...]:
    if not facts.pools:
        return ("generate",)
    classes = facts.classes
    if not classes.labels:
        return ("embed",)
    able = [task for task in TASKS if wrong_model(task, len(classes.labels)) is None]
    return tuple(task for task in able if classes.joins or task == "classify")


def _kv_tokens(config: Any) -> int:
    """Return how many tokens the KV caches of all replicas hold; 0 where the engine does not say.

    vLLM adds up the blocks of its replicas, but of their tokens it keeps those of one."""
    cache = config.cache_config
    # counts groups of layers right; older versions lack it
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    if tokens:
        return int(tokens) * int(config.parallel_config.data_parallel_size)
    return int((cache.num_gpu_blocks or 0) * (cache.block_size or 0))
