"""One batch on the encoder's thread, and what came of it.

Errors end here: one that lives holds the tensors of its batch.

The thread that computes.

What the encoder did lately, for `penstock status`: is it the engine that holds the job up, or
the queue?
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

from penstock_workers.background import ComputingThread
from penstock_workers.failpoints import Failpoints
from penstock_workers.lanes.embed.buckets import TokenIds, Vector
from penstock_workers.lanes.embed.encoder import Encoder, OutOfMemory
from penstock_workers.lanes.engine_faults import is_lost, longest_step_s


class EncoderThread(Executor):
    """A thread that computes one call at a time, in their order.

    Unlike a ThreadPoolExecutor's, its thread is not waited for at exit."""

    def __init__(self, name: str = "penstock-encoder") -> None:
        # bounded by the batcher
        self._given: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        ComputingThread(self._work, name).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given.put((lambda: fn(*args, **kwargs), future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End after the call that it makes now, which is never waited for."""
        self._given.put(None)

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            call, future = given
            if not future.set_running_or_notify_cancel():
                continue
            try:
                said = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(said)
            # an error holds the tensors of its batch: not until the next one comes
            del (given, call, future)


T = TypeVar("T")
PROBE: Final = 1  # a token that most vocabularies have


class Vectors(NamedTuple):
    """One for each text, and the seconds that they took."""

    vectors: Sequence[Vector]
    seconds: float
    began: float = 0.0  # on the batcher's clock


class Built(NamedTuple):
    """A batch as the encoder takes it."""

    cells: Any
    rows: int
    longest_s: float  # that it may take


class Broken(NamedTuple):
    """The reason why there are no vectors."""

    words: str
    too_large: bool = False  # for the memory that is left
    lost: bool = False  # the encoder hangs, or its device is gone: no text is at fault


class Computing:
    """Computes batches; one that takes longer than ``stall_s`` hangs. None: by the sizes."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        stall_s: float | None = None,
        failpoints: Failpoints | None = None,
        thread: Executor | None = None,
        builder: Executor | None = None,
    ) -> None:
        self._encoder, self._stall_s = encoder, stall_s
        self._thread = thread or EncoderThread("penstock-encoder")
        self._builder = builder or EncoderThread("penstock-batches")
        self._failpoints = failpoints or Failpoints()

    async def build(self, ids: Sequence[TokenIds]) -> Built | Broken:
        """Build a batch in a thread of its own.

        Another one may be computed at the same time."""
        return await self._on(self._builder, self._longest_s(ids), self._build, ids)

    async def batch(self, built: Built) -> Vectors | Broken:
        return await self._on(self._thread, built.longest_s, self._compute, built)

    async def _on(
        self, thread: Executor, limit_s: float, call: Callable[[Any], T | Broken], given: object
    ) -> T | Broken:
        try:
            return await asyncio.wait_for(
                asyncio.get_running_loop().run_in_executor(thread, call, given), limit_s
            )
        except TimeoutError:
            return Broken(
                f"the encoder hangs: no end of a batch after {limit_s:g} s (embed.stall_s)",
                lost=True,
            )

    async def fails_at_everything(self) -> str | None:
        """Return whether it cannot compute a single token, either; then in words."""
        built = await self.build([[PROBE if self._encoder.vocabulary > PROBE else 0]])
        came = built if isinstance(built, Broken) else await self.batch(built)
        return (
            None
            if isinstance(came, Vectors)
            else f"the encoder fails at everything, one token too: {came.words}"
        )

    def end(self) -> None:
        for thread in (self._builder, self._thread):
            thread.shutdown(wait=False, cancel_futures=True)

    def _longest_s(self, ids: Sequence[TokenIds]) -> float:
        if self._stall_s is not None:
            return self._stall_s
        padded = max(map(len, ids)) * len(ids)
        return longest_step_s(self._encoder.parameters, padded, on_cpu=self._encoder.on_cpu)

    def _build(self, ids: Sequence[TokenIds]) -> Built | Broken:
        """Build the cells of a batch; runs in the builder's thread."""
        try:
            return Built(self._encoder.build(ids), len(ids), self._longest_s(ids))
        except Exception as error:
            return _broken(error)

    def _compute(self, built: Built) -> Vectors | Broken:
        """Compute the vectors of a batch; runs in the encoder's thread."""
        started = time.perf_counter()
        try:
            self._failpoints.hit("engine")
            vectors = self._encoder.encode(built.cells)
        except Exception as error:
            return _broken(error)
        if len(vectors) != built.rows:
            return Broken(f"the encoder gave {len(vectors)} vectors for {built.rows} texts")
        return Vectors(vectors, time.perf_counter() - started)


def _broken(error: Exception) -> Broken:
    words = f"{type(error).__name__}: {error}"
    if is_lost(error):
        return Broken(f"the encoder's device is lost: {words}", lost=True)
    return Broken(words, too_large=isinstance(error, OutOfMemory))


RECENT_S = 10.0  # rates are over this time: two heartbeats, so that no batch goes unseen
RECENT_BATCHES = 4_096  # kept at most; more than a GPU computes in that time


@dataclass(frozen=True, slots=True)
class Computed:
    """One batch."""

    at: float
    items: int
    tokens: int
    padded: int
    waited_s: float  # by its oldest row


class BatchFigures:
    """The figures of batches, written on the loop and read by any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._recent: deque[Computed] = deque(maxlen=RECENT_BATCHES)
        self.tokens, self.padded, self.batches, self.items = 0, 0, 0, 0  # since the start

    def add(self, batch: Computed) -> None:
        self._recent.append(batch)
        self.batches += 1
        self.items += batch.items
        self.tokens += batch.tokens
        self.padded += batch.padded

    def lately(self) -> Mapping[str, float]:
        now = self._clock()
        recent = [batch for batch in tuple(self._recent) if batch.at > now - RECENT_S]
        seconds = max(1e-3, min(RECENT_S, now - self._since))
        tokens, padded = (
            sum(batch.tokens for batch in recent),
            sum(batch.padded for batch in recent),
        )
        items = sum(batch.items for batch in recent)
        return {
            "tokens_per_s": tokens / seconds,
            "items_per_s": items / seconds,
            "batch_items": items / len(recent) if recent else 0.0,
            "padding_efficiency": tokens / padded if padded else 1.0,
            "queue_wait_ms": 1000 * sum(batch.waited_s for batch in recent) / len(recent)
            if recent
            else 0.0,
        }
