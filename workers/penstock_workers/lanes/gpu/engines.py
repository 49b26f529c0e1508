"""vLLM behind one small interface: the engine core in a process of its own, or, for CPUs and tests, in the worker's.

Nothing of vLLM is imported before a worker starts its engine. What differs between its versions (0.26 to 0.33) is asked of
the installed one, here and in ``arguments``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import queue
import signal
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock_workers.errors import BadEngineSettings
from penstock_workers.failpoints import PlayedDeviceError
from penstock_workers.lanes.gpu import processes
from penstock_workers.lanes.gpu.adapters import Adapters
from penstock_workers.lanes.gpu.arguments import engine_arguments
from penstock_workers.lanes.gpu.figures import EngineFigures
from penstock_workers.lanes.gpu.guard import Guard
from penstock_workers.lanes.gpu.plugin import load_in_engines
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.gpu.upstream import upstream

log = logging.getLogger(__name__)

SHUTDOWN_S = 3.0  # nothing is in it by then; after that its processes are killed, within drain.STOP_TIMEOUT_S
# Faults of the request; before 0.3x these had no common ancestor but ValueError, and some not even that.
CLIENT_ERRORS = frozenset({"VLLMClientError", "VLLMNotFoundError", "VLLMUnprocessableEntityError", "ValueError"})
IDLE_POLL_S = 0.2  # how late an engine in the worker's process notices that it is to end


class EngineDied(Exception):
    """The engine is gone, and with it every request that was in it."""


class EngineBusy(Exception):
    """The engine takes no more requests now."""


class EngineFault(Exception):
    """The engine could not do this request, and goes on."""


class RequestRefused(Exception):
    """The engine says that this request can never be done."""


@dataclass(slots=True, eq=False)
class Call:
    """One request in the engine's own terms."""

    request_id: str
    token_ids: list[int]
    params: Any  # vLLM's SamplingParams or PoolingParams
    lora: Any = None  # vLLM's LoRARequest
    priority: int = 0  # lower goes first
    facts: Any = field(default=None, repr=False)  # what the reply will need besides


class Engine(Protocol):
    """One engine. Built anew after its death, never revived."""

    config: Any  # vLLM's VllmConfig, complete once ``start`` has returned

    async def start(self) -> None:
        """Load the model. Raises BadEngineSettings; what went wrong in a child is in the worker's log."""

    async def run(self, call: Call, began: Callable[[], None]) -> Any:
        """The finished RequestOutput. Cancelling ends the request. ``began`` is called at the first token of one answer.

        Raises RequestRefused, EngineBusy, EngineFault, EngineDied.
        """
        ...

    async def load(self, lora: Any) -> None:
        """Load an adapter. Raises EngineDied, and else whatever is wrong with it."""
        ...

    def tokenizer(self) -> Any: ...

    def is_alive(self) -> bool: ...

    def compiles(self) -> bool:
        """Whether processes run in it that it has for a while only: compilers."""
        ...

    def kill(self) -> bool:
        """End an engine that does not answer. False where it cannot be ended without this process."""
        ...

    async def stop(self) -> None:
        """End it; nothing may be in flight: vLLM leaves callers hanging."""


def make_engine(settings: GpuSettings, adapters: Adapters, figures: EngineFigures, *, drain_seconds: float) -> Engine:
    if settings.in_process:
        return InProcessEngine(settings, adapters, figures, drain_seconds)
    return ChildEngine(settings, adapters, figures, drain_seconds)


class ChildEngine:
    """vLLM's AsyncLLM: scheduler and model in child processes, so that what kills them does not kill the worker."""

    def __init__(self, settings: GpuSettings, adapters: Adapters, figures: EngineFigures, drain_seconds: float) -> None:
        self._settings, self._adapters, self._figures = settings, adapters, figures
        self._drain_seconds = drain_seconds
        self._llm: Any = None
        self._memory: set[str] = set()  # shared memory that its processes use
        self._pids: frozenset[int] = frozenset()  # of those that it always has
        self.config: Any = None

    async def start(self) -> None:
        # Not forked: the worker has threads, and a lock that one of them holds would stay locked in the child.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        load_in_engines()
        guard = _guard()
        arguments = engine_arguments(self._settings, self._adapters, drain_seconds=self._drain_seconds)
        make = upstream("vllm.v1.engine.async_llm", "AsyncLLM").from_engine_args
        try:
            with _explained(self._settings):
                # Off the loop, which goes on settling; its output handler starts with the first request, on the loop.
                self._llm = await asyncio.to_thread(make, arguments, **_options(self._figures.note))
        except BaseException:
            await asyncio.to_thread(processes.end, _mark(), set())
            raise
        self.config = self._llm.vllm_config
        self._pids = frozenset(await asyncio.to_thread(processes.marked, _mark()))
        self._memory = await asyncio.to_thread(processes.shared_memory, list(self._pids))
        guard.note(self._memory)

    async def load(self, lora: Any) -> None:
        try:
            await self._llm.add_lora(lora)
        except Exception as error:
            if not self.is_alive():
                raise EngineDied(f"{type(error).__name__}: {error}") from error
            raise

    async def run(self, call: Call, began: Callable[[], None]) -> Any:
        output = None
        with _translated():
            if _is_pooling(call.params):
                outputs = self._llm.encode(
                    _prompt(call), call.params, call.request_id, lora_request=call.lora, priority=call.priority
                )
            else:
                outputs = self._llm.generate(
                    _prompt(call), call.params, call.request_id, lora_request=call.lora, priority=call.priority
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

    def is_alive(self) -> bool:
        return self._llm is not None and not self._llm.errored

    def compiles(self) -> bool:
        return any(pid not in self._pids for pid in processes.marked(_mark()))

    def kill(self) -> bool:
        for pid in processes.marked(_mark()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a stopped process takes no other signal
        return True

    async def stop(self) -> None:
        llm, self._llm = self._llm, None
        try:
            if llm is not None:
                await asyncio.to_thread(llm.shutdown, timeout=SHUTDOWN_S)
        finally:
            await asyncio.to_thread(processes.end, _mark(), self._memory)


class InProcessEngine:
    """vLLM's LLMEngine, stepped by a thread of the worker: up in two seconds, one process, and not isolated from crashes."""

    def __init__(self, settings: GpuSettings, adapters: Adapters, figures: EngineFigures, drain_seconds: float) -> None:
        self._settings, self._adapters, self._figures = settings, adapters, figures
        self._drain_seconds = drain_seconds
        self._llm: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: queue.SimpleQueue[Call | str | None] = (
            queue.SimpleQueue()
        )  # calls and aborts; bounded by EngineQueue
        self._futures: dict[str, asyncio.Future[Any]] = {}  # this and the next are touched on the loop only
        self._begins: dict[str, Callable[[], None]] = {}
        self._dead: Exception | None = None
        self._thread: threading.Thread | None = None
        self.config: Any = None

    async def start(self) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._build)
        self.config = self._llm.vllm_config
        self._thread = threading.Thread(target=self._serve, name="penstock-engine", daemon=True)
        self._thread.start()

    async def load(self, lora: Any) -> None:
        await asyncio.to_thread(self._llm.add_lora, lora)  # before the first request: the stepper rests

    async def run(self, call: Call, began: Callable[[], None]) -> Any:
        if self._dead is not None:
            raise EngineDied(str(self._dead))
        future = self._futures[call.request_id] = asyncio.get_running_loop().create_future()
        self._begins[call.request_id] = began
        self._asked.put(call)
        try:
            with _translated():
                return await future
        except asyncio.CancelledError:
            self._asked.put(call.request_id)
            raise
        finally:
            self._futures.pop(call.request_id, None)
            self._begins.pop(call.request_id, None)

    def tokenizer(self) -> Any:
        return self._llm.get_tokenizer()

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
            await asyncio.to_thread(self._thread.join, SHUTDOWN_S)
        llm, self._llm = self._llm, None
        if llm is not None:
            with contextlib.suppress(Exception):  # of an engine that died nothing more is expected
                await asyncio.to_thread(llm.engine_core.shutdown)

    # -- the engine's thread ---------------------------------------------------------------------------------------

    def _build(self) -> None:
        arguments = engine_arguments(self._settings, self._adapters, drain_seconds=self._drain_seconds)
        make = upstream("vllm.v1.engine.llm_engine", "LLMEngine").from_engine_args
        with _explained(self._settings):
            self._llm = make(arguments, **_options(self._note))

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
        """An answer comes whole, or as its first token and the rest."""
        first = firsts.pop(output.request_id, None)
        if first is not None:
            first.add(output, aggregate=True)
            output = first
        if output.finished:
            self._resolve(output.request_id, output)
        else:
            firsts[output.request_id] = output
            self._call(lambda: self._begins.get(output.request_id, _nothing)())

    def _take_what_was_asked(self, firsts: dict[str, Any]) -> bool:
        """Add what came meanwhile; wait a little when there is nothing else to do. False when it is time to end."""
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
            try:
                self._llm.add_request(
                    asked.request_id, _prompt(asked), asked.params, lora_request=asked.lora, priority=asked.priority
                )
            except Exception as error:
                self._reject(asked.request_id, error)

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
    """For an answer whose item has left meanwhile."""


@functools.cache
def _mark() -> str:
    """Of this worker's engines: one at a time, so that they may share it."""
    os.environ[processes.MARK] = mark = uuid.uuid4().hex
    return mark


@functools.cache
def _guard() -> Guard:
    return Guard(_mark())


def _set(future: asyncio.Future[Any] | None, value: Any) -> None:
    if future is None or future.done():
        return
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)


def _prompt(call: Call) -> dict[str, Any]:
    return {"prompt_token_ids": call.token_ids}


def _is_pooling(params: Any) -> bool:
    return type(params).__name__ == "PoolingParams"


def _options(note: Callable[[Any, Any, int], None]) -> dict[str, Any]:
    """Offline use, so that defaults are those of vLLM's own batch class; and a logger that reports each step."""
    context = upstream("vllm.usage.usage_lib", "UsageContext").LLM_CLASS
    return {"usage_context": context, "stat_loggers": [_tap(note)]}


def _tap(note: Callable[[Any, Any, int], None]) -> Callable[[Any, int], Any]:
    """A stat logger factory. vLLM calls ``record`` once per step of each engine."""
    base = upstream("vllm.v1.metrics.loggers", "StatLoggerBase")

    class Tap(base):  # type: ignore[misc, valid-type]  # looked up, so that no checker can know it
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._engine = engine_index

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            note(scheduler_stats, iteration_stats, self._engine)

        def log_engine_initialized(self) -> None:
            """The worker says itself that its engine is up."""

    return Tap


@contextlib.contextmanager
def _explained(settings: GpuSettings) -> Any:
    try:
        yield
    except Exception as error:
        raise BadEngineSettings(
            f"the engine for gpu.model = {settings.model!r} does not start: {type(error).__name__}: {error}; "
            "its own log above this line says why (memory, a missing folder and a wrong dtype are the usual reasons)"
        ) from error


@contextlib.contextmanager
def failpoint_as_fault() -> Any:
    """An error of the device that a failpoint plays, as the engine would report it."""
    try:
        yield
    except PlayedDeviceError as error:
        raise EngineFault(str(error)) from error


@contextlib.contextmanager
def _translated() -> Any:
    """vLLM's exceptions as this module's. Their classes moved between versions, so they are recognised by name and ancestry."""
    try:
        yield
    except (EngineDied, asyncio.CancelledError):
        raise
    except Exception as error:
        ancestry = {kind.__name__ for kind in type(error).__mro__}
        if "EngineDeadError" in ancestry:
            raise EngineDied(str(error)) from error
        if ancestry & {"QueueOverflowError", "MaxQueuedTokensError", "GracefulHTTPError"}:
            raise EngineBusy(str(error)) from error
        if ancestry & CLIENT_ERRORS:
            raise RequestRefused(str(error)) from error
        raise EngineFault(f"{type(error).__name__}: {error}") from error
