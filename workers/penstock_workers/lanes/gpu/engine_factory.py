"""Makes the engines of a `gpu` worker, each with its adapters and what builds its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_producer.feed.queues import Served
from penstock_workers.lanes import engine_faults
from penstock_workers.lanes.engine_faults import StepWatch
from penstock_workers.lanes.gpu import adapter_watch
from penstock_workers.lanes.gpu.adapter_watch import AdapterWatch
from penstock_workers.lanes.gpu.engine.adapters import Adapter, Adapters
from penstock_workers.lanes.gpu.engine.child_engine import ChildEngine
from penstock_workers.lanes.gpu.engine.engine_queue import EngineFigures
from penstock_workers.lanes.gpu.engine.engines import Engine
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
from penstock_workers.lanes.gpu.requests.scoring import classes_of
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.loading import LoadWatch
from penstock_workers.lanes.scoring import TASKS, wrong_model


@dataclass(slots=True, kw_only=True)
class Built:
    """An engine that was built, and what is known of it."""

    engine: Engine
    calls: CallBuilder
    served: Served
    max_seqs: int  # requests that it runs at once, all its replicas together
    kv_tokens: int
    steps: StepWatch


class EngineFactory:
    """Makes engines, on one event loop."""

    def __init__(
        self,
        settings: GpuSettings,
        figures: EngineFigures,
        *,
        drain_seconds: float,
        s3_endpoint_url: str | None,
    ) -> None:
        self._settings, self._figures, self._drain_seconds = settings, figures, drain_seconds
        self.model = settings.model
        self._files = HostFiles(settings, s3_endpoint_url)
        self._hosted = settings  # with the model as the engine finds it; known once prepared
        self._chat_template: str | None = None  # read when prepared
        self.adapters = Adapters(settings.lora, settings.model, more=settings.lora_from is not None)
        self.loading = LoadWatch("gpu.model", settings.model or "")

    async def prepare(self) -> None:
        """Read the chat template, and find the model."""
        self._chat_template = await asyncio.to_thread(read_template, self._settings.chat_template)
        self._hosted = await self._files.hosted(self.loading)

    def adapter_watch(self, load: Callable[[Adapter], Awaitable[bool]]) -> AdapterWatch | None:
        return self._files.adapter_watch(self.adapters, load)

    async def build(self) -> Built:
        engine = await self._started()
        config = engine.config
        lora = getattr(config, "lora_config", None)
        if lora is not None and is_on_cpu(config):
            self.adapters.warn_of_ranks(lora.max_lora_rank)
        facts = _facts(self._settings, config)
        replicas = config.parallel_config.data_parallel_size
        return Built(
            engine=engine,
            calls=self._call_builder(engine, facts),
            served=_served(self._settings, config, facts),
            max_seqs=config.scheduler_config.max_num_seqs * replicas,
            kv_tokens=_kv_tokens(config),
            steps=StepWatch(self._settings.stall_s or stall_s(config)),
        )

    async def _started(self) -> Engine:
        """Start an engine with all the adapters that can be loaded.

        An adapter that ends the engine is left out of the next."""
        while True:
            engine = self._make()
            async with self.loading.during(engine.pids):
                await engine.start()
            if await adapter_watch.load_all(engine, self.adapters):
                return engine
            await engine.stop()

    def _make(self) -> Engine:
        make = InProcessEngine if self._settings.in_process else ChildEngine
        return make(self._hosted, self.adapters, self._figures, self._drain_seconds)

    def _call_builder(self, engine: Engine, facts: ModelFacts) -> CallBuilder:
        """Build calls with the renderer of this engine, which ends with it."""
        tokenizers = Tokenizers(engine.tokenizer(), self._chat_template)
        chats = self._chats(engine.renderer(), tokenizers, facts)
        return CallBuilder(self._settings, tokenizers, facts, self.adapters, chats)

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
    return engine_faults.longest_step_s(
        _parameters(config.model_config.hf_text_config), tokens, on_cpu=is_on_cpu(config)
    )


def is_on_cpu(config: Any) -> bool:
    return getattr(config.device_config, "device_type", "") == "cpu"


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
