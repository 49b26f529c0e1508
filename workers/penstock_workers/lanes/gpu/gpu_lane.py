"""The `gpu` lane: the worker hosts the model and keeps it full.

Read ``GpuLane.infer`` first. When the engine is dead (``engine_host.py`` says when), each item in
it ends as `engine_died` and goes back to its queue, and a new engine is built meanwhile.

Threads in which requests are made ready, and whose results come back to the loop in groups.

An executor wakes the loop for each result, and makes three locks for each call; on a busy loop that
costs more than a template. Here the loop is woken once for all that is ready by the time it looks.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import orjson

from penstock_ledger.texts import SetOption, Text
from penstock_producer.feed.queues import Served
from penstock_producer.job.options import OPTIONS
from penstock_workers.celery_app.ending import end_this_worker
from penstock_workers.errors import BadEngineSettings
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.lanes.engine_faults import is_lost
from penstock_workers.lanes.gpu.children.grammars import GrammarCheck
from penstock_workers.lanes.gpu.children.parsers import AnswerParsers, Unreadable, check_parsers
from penstock_workers.lanes.gpu.engine.engine_queue import EngineQueue
from penstock_workers.lanes.gpu.engine.engines import (
    Engine,
    EngineBusy,
    EngineCall,
    EngineDied,
    EngineFault,
    RequestRefused,
)
from penstock_workers.lanes.gpu.engine.vllm_calls import failpoint_as_fault, is_pooling
from penstock_workers.lanes.gpu.engine_host import EngineHost
from penstock_workers.lanes.gpu.host_files import check_model_place
from penstock_workers.lanes.gpu.requests.calls import (
    CallBuilder,
    ContextOverflow,
    UnknownModel,
    must_call,
)
from penstock_workers.lanes.gpu.requests.media import MediaMemory
from penstock_workers.lanes.gpu.requests.replies import (
    ENGINES_FAULT,
    nothing_said,
    reply,
    why_unanswered,
)
from penstock_workers.lanes.gpu.requests.scoring import PARTS_AT_ONCE, run_parts
from penstock_workers.settings import WorkerSettings

Result = TypeVar("Result")
_Asked = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class PrepareThreads:
    """The threads in which requests of one event loop are prepared.

    How many wait is bounded by those who ask: the runner's slots."""

    def __init__(self, number: int) -> None:
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._loop_is_called = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [
            threading.Thread(target=self._work, name=f"prepare_{place}", daemon=True)
            for place in range(number)
        ]

    async def run(self, step: Callable[[], Result]) -> Result:
        """Run ``step`` in one of the threads, and return or raise what it does.

        One that is cancelled while it waits is not begun."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            for thread in self._threads:
                thread.start()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._asked.put((step, future))
        return await future

    def close(self) -> None:
        """End the threads after the step that each of them has begun; nothing may wait any more."""
        for _ in self._threads:
            self._asked.put(None)

    def _work(self) -> None:
        while self._take_one():
            pass

    def _take_one(self) -> bool:
        """Wait for a step, and do it. False when it is time to end.

        In a frame of its own: a thread that waits keeps nothing of its last request, whose images
        count until it is forgotten.
        """
        asked = self._asked.get()
        if asked is None:
            return False
        step, future = asked
        if future.cancelled():
            return True
        try:
            self._ready.append((future, step(), None))
        except BaseException as error:
            self._ready.append((future, None, error))
        # the loop takes this back before it looks, so that none is overlooked
        if not self._loop_is_called:
            self._loop_is_called = True
            self._call_loop()
        return True

    def _call_loop(self) -> None:
        assert self._loop is not None, "it is known before the threads start"
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # it is closed, and nothing waits
            self._asked.put(None)

    def _deliver(self) -> None:
        self._loop_is_called = False
        while self._ready:
            future, result, error = self._ready.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


# of an answer, on a slow engine that is full: what the default of `timeout_s` allows
SECONDS_PER_TOKEN: Final = 0.25
# of `timeout_s`, for what has no first token: as much may be before it in the engine's line
POOLED_TIMES: Final = 2.0
_HEADERS: Final[Mapping[str, str]] = {}


class GpuLane:
    """Implements ``item.lane.Lane`` over one engine.

    ``give_up`` ends the worker, for its orchestrator to replace."""

    def __init__(
        self, settings: WorkerSettings, give_up: Callable[[str], None] = end_this_worker
    ) -> None:
        if settings.gpu.model is None:
            raise BadEngineSettings(
                Text(
                    "the gpu lane needs a model: give ",
                    SetOption("model"),
                    ", or set gpu.model (a folder or a name)",
                )
            )
        check_model_place(settings.gpu.model)
        self.queue = EngineQueue()
        self._in_process = settings.gpu.in_process
        self._failpoints = Failpoints.parse(settings.failpoints)
        self._settings = settings.gpu
        self._grammars = GrammarCheck()
        self._parsers = AnswerParsers(settings.gpu)
        self._media = MediaMemory(
            settings.gpu.media_memory_bytes, at_once=settings.gpu.prepare_threads
        )
        self._host = EngineHost(
            settings.gpu,
            self.queue,
            drain_seconds=settings.drain_seconds,
            give_up=give_up,
            on_built=self._grammars.know,
            on_end=self._expire_all,
            s3_endpoint_url=settings.s3_endpoint_url,
        )
        # of the requests in the engine; bounded by its queue
        self._limits: set[asyncio.Timeout] = set()
        self._threads = PrepareThreads(settings.gpu.prepare_threads)

    async def start(self) -> None:
        await asyncio.to_thread(check_parsers, self._settings)
        await self._host.start()
        assert self._host.engine is not None, "it was started"
        try:
            await self._parsers.start(self._host.engine.config)
        except BadEngineSettings:
            await self._host.close()
            raise

    async def prepare(self, request: Request) -> Prepared:
        """Make tokens and sampling parameters, in a thread: the loop feeds the engine meanwhile."""
        try:
            with self.queue.coming():
                call, tokens = await self._built(self._host.calls, request)
                await self._parsers.ask_for(call)
                await self._grammars.check(call.params, request.tag.partition(":")[0])
        except RequestRefused as error:
            return Prepared(request, refused=refusal(error))
        except Unreadable as error:
            return Prepared(request, refused=_unavailable(error))
        return Prepared(request, tokens, input=call, sequences=_sequences(call))

    async def _built(self, calls: CallBuilder, request: Request) -> tuple[EngineCall, int]:
        """Build the call of a request.

        Where prompts hold no decoded images, none waits for memory, and the threads have their next
        one at hand.
        """
        if not calls.decodes_media:
            return await self._threads.run(lambda: calls.build(request))
        async with self._media.turn():
            call, tokens = await self._threads.run(lambda: calls.build(request))
            self._media.hold(call)
            return call, tokens

    async def infer(self, prepared: Prepared) -> Tried:
        started = time.monotonic()
        engine, built = self._host.engine, self._host.built
        if engine is None or built is None:
            return NoAnswer("engine_busy", "the engine is being built", 0, sent=False)
        limit_s = time_limit_s(prepared)
        steps = built.steps
        steps.entered()
        try:
            output = await self._run(engine, prepared, limit_s)
        except TimeoutError:
            if engine is self._host.engine:
                return NoAnswer("timeout", _too_late(prepared, limit_s), _since(started))
            return NoAnswer("engine_died", "its engine hung, or lost its device", _since(started))
        except RequestRefused as error:
            return refusal(error)
        except EngineBusy as error:
            return NoAnswer("engine_busy", str(error), _since(started), sent=False)
        except EngineFault as error:
            return self._failed(engine, error, _since(started))
        except EngineDied as error:
            if self._in_process and is_lost(error):
                self._host.device_lost(engine, str(error))  # to the whole process
            else:
                self._host.note_death(engine, str(error))
            return NoAnswer("engine_died", str(error), _since(started))
        finally:
            steps.left()
        return await self._answer(engine, prepared.input, output, started)

    async def _run(self, engine: Engine, prepared: Prepared, limit_s: float) -> Any:
        """Run an item in the engine within its time.

        Its time begins with its first token: waiting in the engine's line is not the item's fault.
        """
        clock = asyncio.get_running_loop().time
        pooled = is_pooling(prepared.input.params)
        async with asyncio.timeout(pooled_limit_s(prepared, limit_s) if pooled else None) as limit:
            self._limits.add(limit)
            try:
                with failpoint_as_fault():
                    self._failpoints.hit("engine")
                if prepared.input.parts:
                    return await run_parts(engine, prepared.input.parts)
                return await engine.run(
                    prepared.input, lambda: _expire(limit, at=clock() + limit_s)
                )
            finally:
                self._limits.discard(limit)

    async def _answer(self, engine: Engine, call: EngineCall, output: Any, started: float) -> Tried:
        missing = why_unanswered(call, output)
        if missing is not None:
            if missing.failure in ENGINES_FAULT:
                self._host.failed(engine)
            return NoAnswer(missing.failure, missing.detail, _since(started))
        self._host.answered()
        try:
            said = await self._parsers.read(call, output)
        except Unreadable as error:
            return NoAnswer("invalid_answer", str(error), _since(started))
        missing = (
            None
            if said is None
            else nothing_said(output.outputs, said, must_call=must_call(call.facts.parsed))
        )
        if missing is not None:
            return NoAnswer(missing.failure, missing.detail, _since(started))
        return Answer(200, _HEADERS, reply(call, output, said), _since(started))

    def _failed(self, engine: Engine, error: EngineFault, took_ms: int) -> NoAnswer:
        if is_lost(error):
            self._host.device_lost(engine, str(error))
            return NoAnswer("engine_died", str(error), took_ms)
        self._host.failed(engine)
        return NoAnswer("engine_failed", str(error), took_ms)

    @property
    def served(self) -> Served:
        """Known once an engine is up."""
        return self._host.served

    @property
    def sequences(self) -> int | None:
        """Return how many requests the engine runs at once, all its replicas together.

        None before it is up."""
        return None if self._host.built is None else self._host.built.max_seqs

    def gauges(self) -> Mapping[str, float | str]:
        return self._host.gauges()

    def drain(self) -> None:
        self._host.drain()

    async def close(self) -> None:
        await self._host.close()
        await self._grammars.close()
        await self._parsers.close()
        self._threads.close()

    def _expire_all(self) -> None:
        for limit in list(self._limits):
            _expire(limit, at=0)


def refusal(error: RequestRefused) -> Answer:
    """Answer as vLLM's server would, so that both have the same table of failures."""
    match error:
        case UnknownModel():
            status, code = 404, "model_not_found"
        case ContextOverflow():
            status, code = 400, "context_length_exceeded"
        case _:
            status, code = 400, "invalid_request_error"
    body = {"error": {"message": str(error), "type": "invalid_request_error", "code": code}}
    return Answer(status, _HEADERS, orjson.dumps(body), 0)


def _sequences(call: EngineCall) -> int:
    """Return how many sequences of a call the engine runs; what is pooled has no `n`."""
    return min(PARTS_AT_ONCE, len(call.parts)) or getattr(call.params, "n", 1)


def _unavailable(error: Unreadable) -> Answer:
    """Answer for no fault of the request's own that is known: it is tried again."""
    body = {"error": {"message": str(error), "type": "server_error", "code": None}}
    return Answer(503, _HEADERS, orjson.dumps(body), 0)


def time_limit_s(prepared: Prepared) -> float:
    """Return how long the answer may take from its first token.

    As the job says, else as long as the answer may become."""
    asked_s = prepared.request.timeout_s
    if asked_s != OPTIONS["timeout_s"].default:
        return asked_s
    return max(
        asked_s, SECONDS_PER_TOKEN * (getattr(prepared.input.params, "max_tokens", None) or 0)
    )


def pooled_limit_s(prepared: Prepared, limit_s: float) -> float:
    """Return how long a pooled item may take from its entry into the engine.

    The engine takes the parts of a long list some at a time."""
    return POOLED_TIMES * limit_s * max(1, math.ceil(len(prepared.input.parts) / PARTS_AT_ONCE))


def _too_late(prepared: Prepared, limit_s: float) -> str:
    if is_pooling(prepared.input.params):
        return (
            f"no answer within {pooled_limit_s(prepared, limit_s):g} s in the engine; raise "
            "timeout_s, or send shorter texts"
        )
    return (
        f"no complete answer within {limit_s:g} s of its first token; raise timeout_s, or lower "
        "max_tokens and n"
    )


def _expire(limit: asyncio.Timeout, *, at: float) -> None:
    """Set when a limit expires, in loop time; one that has expired already stays as it is."""
    if not limit.expired():
        limit.reschedule(at)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
