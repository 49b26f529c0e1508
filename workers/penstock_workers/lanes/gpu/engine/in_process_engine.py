"""vLLM in the worker's own process, for CPUs and tests.

It is up in two seconds, and what kills it kills the worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from penstock_workers.background import ComputingThread
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.engine.engine_queue import EngineFigures
from penstock_workers.lanes.gpu.engine.engines import EngineCall, EngineDied, upstream
from penstock_workers.lanes.gpu.engine.vllm_calls import (
    engine_arguments,
    explained,
    options,
    prompt,
    translated,
)
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.loading import this_process

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.2  # how late an engine in the worker's process notices that it is to end
STOP_S = 3.0  # for the step that it makes


class _Load(NamedTuple):
    """An adapter that is to be loaded."""

    key: str  # of the future that waits for it
    lora: Any


class InProcessEngine:
    """vLLM's LLMEngine, stepped by a thread of the worker.

    It is one process, up in two seconds, and not isolated from crashes."""

    def __init__(
        self,
        settings: GpuSettings,
        adapters: Adapters,
        figures: EngineFigures,
        drain_seconds: float,
    ) -> None:
        self._settings, self._adapters, self._figures = settings, adapters, figures
        self._drain_seconds = drain_seconds
        self._llm: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # calls and aborts; bounded by EngineQueue
        self._asked: queue.SimpleQueue[EngineCall | _Load | str | None] = queue.SimpleQueue()
        self._loads = count()
        # this and the next are touched on the loop only
        self._futures: dict[str, asyncio.Future[Any]] = {}
        self._begins: dict[str, Callable[[], None]] = {}
        self._dead: Exception | None = None
        self._thread: threading.Thread | None = None
        self.config: Any = None

    async def start(self) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._build)
        self.config = self._llm.vllm_config
        self._thread = ComputingThread(self._serve, "penstock-engine")
        self._thread.start()

    async def load(self, lora: Any) -> None:
        """Load an adapter between two steps, by the thread that steps the engine."""
        if self._dead is not None:
            raise EngineDied(str(self._dead))
        key = f"load#{next(self._loads)}"
        future = self._futures[key] = asyncio.get_running_loop().create_future()
        self._asked.put(_Load(key, lora))
        try:
            await future
        finally:
            self._futures.pop(key, None)

    async def run(self, call: EngineCall, began: Callable[[], None]) -> Any:
        if self._dead is not None:
            raise EngineDied(str(self._dead))
        future = self._futures[call.request_id] = asyncio.get_running_loop().create_future()
        self._begins[call.request_id] = began
        self._asked.put(call)
        try:
            with translated():
                return await future
        except asyncio.CancelledError:
            self._asked.put(call.request_id)
            raise
        finally:
            self._futures.pop(call.request_id, None)
            self._begins.pop(call.request_id, None)

    def tokenizer(self) -> Any:
        return self._llm.get_tokenizer()

    def renderer(self) -> Any:
        return getattr(self._llm, "renderer", None)

    def pids(self) -> list[int]:
        return this_process()

    def is_alive(self) -> bool:
        return self._dead is None and self._thread is not None and self._thread.is_alive()

    def compiles(self) -> bool:
        return False

    def kill(self) -> bool:
        self._dead = self._dead or EngineDied("it hangs")
        return False  # its thread ends with this process only

    async def stop(self) -> None:
        if self._thread is not None and self._dead is None:
            self._asked.put(None)
            await asyncio.to_thread(self._thread.join, STOP_S)
        llm, self._llm = self._llm, None
        if llm is not None:
            with contextlib.suppress(Exception):  # of an engine that died nothing more is expected
                await asyncio.to_thread(llm.engine_core.shutdown)

    # -- the engine's thread -----------------------------------------------------------------------

    def _build(self) -> None:
        arguments = engine_arguments(
            self._settings, self._adapters, drain_seconds=self._drain_seconds
        )
        make = upstream("vllm.v1.engine.llm_engine", "LLMEngine").from_vllm_config
        with explained(self._settings):
            self._llm = make(**options(self._settings, arguments, self._note))

    def _note(self, scheduler: Any, iteration: Any, engine: int) -> None:
        self._call(lambda: self._figures.note(scheduler, iteration, engine))

    def _serve(self) -> None:
        firsts: dict[str, Any] = {}  # of answers that are not complete
        try:
            while self._take_what_was_asked(firsts):
                if self._llm.has_unfinished_requests():
                    for output in self._llm.step():
                        self._gather(firsts, output)
        except Exception as error:
            log.exception("the engine in this process died")
            self._dead = error
            self._call(self._fail_all)

    def _gather(self, firsts: dict[str, Any], output: Any) -> None:
        """Put the parts of an answer together.

        An answer comes whole, or as its first token and the rest; of several answers to a request
        each comes so.
        """
        first = firsts.pop(output.request_id, None)
        if first is not None:
            first.add(output, aggregate=True)
            output = first
        if output.finished:
            self._resolve(output.request_id, output)
            return
        firsts[output.request_id] = output
        if first is None:
            self._call(lambda: self._begins.get(output.request_id, _nothing)())

    def _take_what_was_asked(self, firsts: dict[str, Any]) -> bool:
        """Add what came meanwhile; wait a little when there is nothing else to do.

        False when it is time to end."""
        block = not self._llm.has_unfinished_requests()
        while True:
            try:
                asked = self._asked.get(block=block, timeout=IDLE_POLL_S if block else None)
            except queue.Empty:
                return True
            block = False
            if asked is None:
                return False
            if isinstance(asked, str):
                self._llm.abort_request([asked])
                firsts.pop(asked, None)
                continue
            if isinstance(asked, _Load):
                self._load(asked)
                continue
            try:
                self._llm.add_request(
                    asked.request_id,
                    prompt(asked, self.config.model_config),
                    asked.params,
                    lora_request=asked.lora,
                    priority=asked.priority,
                )
            except Exception as error:
                self._reject(asked.request_id, error)

    def _load(self, asked: _Load) -> None:
        try:
            self._llm.add_lora(asked.lora)
        except Exception as error:
            self._reject(asked.key, error)
        else:
            self._resolve(asked.key, None)

    def _resolve(self, request_id: str, output: Any) -> None:
        self._call(lambda: _set(self._futures.get(request_id), output))

    def _reject(self, request_id: str, error: Exception) -> None:
        self._call(lambda: _set(self._futures.get(request_id), error))

    def _fail_all(self) -> None:
        for future in list(self._futures.values()):
            _set(future, EngineDied(f"{type(self._dead).__name__}: {self._dead}"))

    def _call(self, step: Callable[[], object]) -> None:
        assert self._loop is not None, "start() comes first"
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for it
            self._loop.call_soon_threadsafe(step)


def _nothing() -> None:
    """Do nothing, for an answer whose item has left meanwhile."""


def _set(future: asyncio.Future[Any] | None, value: Any) -> None:
    if future is None or future.done():
        return
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
