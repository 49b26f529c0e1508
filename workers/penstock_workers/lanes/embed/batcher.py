"""The dynamic batcher: texts wait in length buckets while the encoder computes, and go in batches of alike ones.

The encoder has one thread of its own and computes one batch at a time. Everything else is on the event loop, where
``_turn`` is the page to read. When a batch fails, each of its halves is tried by itself, and so on down to the row that is
at fault.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress

from penstock_producer.spec import Priority
from penstock_workers.lanes.embed.buckets import Buckets, TextRow, TokenIds, Vector, padded_tokens
from penstock_workers.lanes.embed.budget import TokenBudget
from penstock_workers.lanes.embed.encoder import Encoder, OutOfMemory
from penstock_workers.lanes.embed.figures import BatchFigures, Computed

log = logging.getLogger(__name__)

MAX_WAITING_ROWS = 65_536  # a request above this is put off; some 100 MB of token ids at 500 each


class NoRoom(Exception):
    """As many texts wait as are allowed to (``MAX_WAITING_ROWS``)."""


class EncodingFailed(Exception):
    """The encoder fails at this text, and at no other in its batch."""


class Batcher:
    """Everything but ``gauges`` is called on the event loop that ``start`` was called on."""

    def __init__(
        self,
        encoder: Encoder,
        budget: TokenBudget,
        *,
        batch_items: int,
        window_s: float,
        thread: Executor | None = None,
    ) -> None:
        self._encoder = encoder
        self._budget = budget
        self._buckets = Buckets(batch_items=batch_items, window_s=window_s)
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="penstock-encoder")
        self._computing: asyncio.Task[None] | None = None
        self._next_look: asyncio.Handle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.figures = BatchFigures(self._loop.time)

    async def encode(self, texts: Sequence[TokenIds], priority: Priority = "normal") -> list[Vector]:
        """The vectors of these texts, in their order. Raises NoRoom and EncodingFailed.

        Cancelled, what still waits of it leaves its bucket.
        """
        if len(self._buckets) and len(self._buckets) + len(texts) > MAX_WAITING_ROWS:
            raise NoRoom(f"{len(self._buckets)} texts wait already")
        now = self._loop.time()
        rows = [TextRow(ids, now, priority, self._loop.create_future()) for ids in texts]
        for row in rows:
            self._buckets.add(row)
        self._look_soon()
        try:
            ended = await asyncio.gather(*(row.future for row in rows), return_exceptions=True)
        finally:
            for row in rows:
                self._buckets.discard(row)
        for end in ended:
            if isinstance(end, BaseException):
                raise end
        return list(ended)

    def gauges(self) -> Mapping[str, float | str]:
        """Any thread."""
        waiting = len(self._buckets)
        return {
            **self.figures.lately(),
            "token_budget": self._budget.limit,
            "waiting": waiting,
            "bound": "engine" if waiting else "queue",
        }

    async def close(self) -> None:
        for row in self._buckets.clear():
            row.future.cancel()
        self._stop_looking()
        if self._computing is not None:
            self._computing.cancel()
            with suppress(asyncio.CancelledError):
                await self._computing
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -- the recipe --------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Give the encoder its next batch, if it is free and one is ready; else look again when the oldest is due."""
        self._next_look = None
        if self._computing is not None or not len(self._buckets):
            return
        rows = self._buckets.take(self._loop.time(), self._budget.limit)
        if rows:
            self._computing = self._loop.create_task(self._compute(rows), name="embed batch")
        else:
            self._next_look = self._loop.call_at(self._buckets.due(), self._turn)

    def _look_soon(self) -> None:
        """Once for all that happens in this turn of the loop."""
        if self._computing is None:
            self._stop_looking()
            self._next_look = self._loop.call_soon(self._turn)

    def _stop_looking(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    async def _compute(self, rows: list[TextRow]) -> None:
        try:
            await self._encode_rows(rows)
        finally:
            for row in rows:
                row.future.cancel()  # futures that have ended stay as they are
            self._computing = None
            self._look_soon()

    async def _encode_rows(self, rows: list[TextRow]) -> None:
        rows = [row for row in rows if not row.future.done()]
        if not rows:
            return
        waited_s = self._loop.time() - min(row.arrived for row in rows)
        try:
            vectors, seconds = await self._loop.run_in_executor(self._thread, self._timed, [row.ids for row in rows])
        except Exception as error:
            await self._halve(rows, error)
            return
        self._note(rows, waited_s, seconds)
        for row, vector in zip(rows, vectors, strict=True):
            if not row.future.done():
                row.future.set_result(vector)

    async def _halve(self, rows: list[TextRow], error: Exception) -> None:
        if isinstance(error, OutOfMemory):
            self._budget.out_of_memory(padded_tokens(rows))
        if len(rows) == 1:
            rows[0].future.set_exception(EncodingFailed(f"{type(error).__name__}: {error}"))
            return
        log.warning("a batch of %d texts failed (%s); each half is tried by itself", len(rows), error)
        middle = len(rows) // 2
        await self._encode_rows(rows[:middle])
        await self._encode_rows(rows[middle:])

    def _timed(self, ids: Sequence[TokenIds]) -> tuple[Sequence[Vector], float]:
        """The encoder's thread."""
        started = time.perf_counter()
        vectors = self._encoder.encode(ids)
        if len(vectors) != len(ids):
            raise RuntimeError(f"the encoder gave {len(vectors)} vectors for {len(ids)} texts")
        return vectors, time.perf_counter() - started

    def _note(self, rows: Sequence[TextRow], waited_s: float, seconds: float) -> None:
        tokens = sum(row.length for row in rows)
        if len(self._buckets):
            self._budget.computed(tokens, seconds)
        self.figures.add(Computed(self._loop.time(), len(rows), tokens, padded_tokens(rows), waited_s))
