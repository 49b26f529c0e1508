"""vLLM with its scheduler and model in processes of their own.

What kills them does not kill the worker."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
import uuid
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Any, Final

from penstock_workers.lanes.gpu.engine import guard
from penstock_workers.lanes.gpu.engine.adapters import Adapters
from penstock_workers.lanes.gpu.engine.engine_queue import EngineFigures
from penstock_workers.lanes.gpu.engine.engines import EngineCall, EngineDied, EngineFault, upstream
from penstock_workers.lanes.gpu.engine.guard import Guard
from penstock_workers.lanes.gpu.engine.vllm_calls import (
    engine_arguments,
    explained,
    is_pooling,
    keep_variables,
    options,
    prompt,
    translated,
)
from penstock_workers.lanes.gpu.plugin import load_in_engines
from penstock_workers.lanes.gpu.settings import GpuSettings

# a start that is cancelled: vLLM may import for so long before it has any process to kill
GIVE_UP_S: Final = 30.0
GIVE_UP_LOOK_S: Final = 0.5
# nothing is in it by then; after that its processes are killed, within STOP_TIMEOUT_S
SHUTDOWN_S: Final = 2.0


class ChildEngine:
    """vLLM's AsyncLLM, with scheduler and model in child processes.

    What kills them does not kill the worker."""

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
        self._memory: set[str] = set()  # shared memory that its processes use
        self._pids: frozenset[int] = frozenset()  # of those that it always has
        self.config: Any = None

    async def start(self) -> None:
        # Not forked: the worker has threads, and a lock that one of them holds would stay locked in
        # the child.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        load_in_engines()
        beside = _guard()
        arguments = engine_arguments(
            self._settings, self._adapters, drain_seconds=self._drain_seconds
        )
        # Off the loop, which goes on settling; its output handler starts with the first request, on
        # the loop.
        building = asyncio.get_running_loop().run_in_executor(None, self._build, arguments)
        try:
            with explained(self._settings):
                self._llm = await asyncio.shield(building)
        except BaseException:
            await _give_up(building)
            raise
        keep_variables()
        self.config = self._llm.vllm_config
        self._pids = frozenset(await asyncio.to_thread(guard.marked, _mark()))
        self._memory = await asyncio.to_thread(guard.shared_memory, list(self._pids))
        beside.note(self._memory)

    def _build(self, arguments: Any) -> Any:
        make = upstream("vllm.v1.engine.async_llm", "AsyncLLM").from_vllm_config
        return make(
            **options(self._settings, arguments, self._figures.note),
            enable_log_requests=arguments.enable_log_requests,
        )

    async def load(self, lora: Any) -> None:
        try:
            await self._llm.add_lora(lora)
        except Exception as error:
            if not self.is_alive():
                raise EngineDied(f"{type(error).__name__}: {error}") from error
            raise

    async def run(self, call: EngineCall, began: Callable[[], None]) -> Any:
        output = None
        asked = prompt(call, self.config.model_config)
        with translated():
            if is_pooling(call.params):
                outputs = self._llm.encode(
                    asked,
                    call.params,
                    call.request_id,
                    lora_request=call.lora,
                    priority=call.priority,
                )
            else:
                outputs = self._llm.generate(
                    asked,
                    call.params,
                    call.request_id,
                    lora_request=call.lora,
                    priority=call.priority,
                )
            async for one in outputs:
                if output is None:
                    output = one
                    began()
                else:
                    output.add(one, aggregate=True)
        if output is None:
            raise EngineFault("the engine ended the request without an output")
        return output

    def tokenizer(self) -> Any:
        return self._llm.get_tokenizer()

    def renderer(self) -> Any:
        return getattr(self._llm, "renderer", None)

    def pids(self) -> list[int]:
        return guard.marked(_mark())

    def is_alive(self) -> bool:
        return self._llm is not None and not self._llm.errored

    def compiles(self) -> bool:
        return any(pid not in self._pids for pid in guard.marked(_mark()))

    def kill(self) -> bool:
        for pid in guard.marked(_mark()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a stopped process takes no other signal
        return True

    async def stop(self) -> None:
        llm, self._llm = self._llm, None
        try:
            if llm is not None:
                await asyncio.to_thread(llm.shutdown, timeout=SHUTDOWN_S)
                # Its finalizer would do it again, when Python has taken vLLM's modules down.
                llm.shutdown = _nothing
        finally:
            await asyncio.to_thread(guard.end, _mark(), self._memory)


def _nothing(**_: object) -> None:
    """Do nothing: it has been shut down."""


async def _give_up(building: asyncio.Future[Any]) -> None:
    """Kill what has been started until the building notices.

    Where it was cancelled, it may not have started all of it yet."""
    until = time.monotonic() + GIVE_UP_S
    while True:
        await asyncio.to_thread(guard.end, _mark(), set())
        await asyncio.wait([building], timeout=GIVE_UP_LOOK_S)
        if building.done() or time.monotonic() > until:
            break
    if building.done() and not building.cancelled():
        building.exception()  # it is known why


@functools.cache
def _mark() -> str:
    """Mark the engines of this worker, one at a time, so that they may share the mark."""
    os.environ[guard.MARK] = mark = uuid.uuid4().hex
    return mark


@functools.cache
def _guard() -> Guard:
    # else Python's exit waits for them without end
    Finalize(None, guard.end, args=(_mark(), set()), exitpriority=0)
    return Guard(_mark())
