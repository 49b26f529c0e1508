"""The dynamic batcher: texts wait in length buckets while the encoder computes, and go in batches of alike ones.

The encoder has one thread of its own and computes one batch at a time; a second thread builds the next one meanwhile, if
enough texts wait to fill it. Everything else is on the event loop, where ``_turn`` is the page to read. When a batch fails,
each of its halves is tried by itself, and so on down to the row that is at fault.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

from penstock_producer.spec import Priority
from penstock_workers.lanes.embed.buckets import Buckets, Row, TokenIds, Vector, padded_tokens
from penstock_workers.lanes.embed.budget import TokenBudget
from penstock_workers.lanes.embed.encoder import Encoder, OutOfMemory
from penstock_workers.lanes.embed.figures import Computed, Figures

log = logging.getLogger(__name__)

MAX_WAITING_ROWS = 65_536  # a request above this is put off; some 100 MB of token ids at 500 each
BATCHES_IN_HAND = 2  # one that is computed, and one that is built: rows of a third are better chosen later
LOOK_AGAIN = 0.25  # batches that have to come before the next is looked for again, while its rows were too unlike


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
        builder: Executor | None = None,
    ) -> None:
        self._encoder = encoder
        self._budget = budget
        self._buckets = Buckets(batch_items=batch_items, window_s=window_s)
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="penstock-encoder")
        self._builder = builder or ThreadPoolExecutor(1, thread_name_prefix="penstock-batches")
        self._encoder_free = asyncio.Lock()
        self._in_hand: set[asyncio.Task[None]] = set()
        self._ahead_from = 1.0  # batches that wait before one is taken while another is computed
        self._next_look: asyncio.Handle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.figures = Figures(self._loop.time)

    async def encode(self, texts: Sequence[TokenIds], priority: Priority = "normal") -> list[Vector]:
        """The vectors of these texts, in their order. Raises NoRoom and EncodingFailed.

        Cancelled, what still waits of it leaves its bucket.
        """
        if len(self._buckets) and len(self._buckets) + len(texts) > MAX_WAITING_ROWS:
            raise NoRoom(f"{len(self._buckets)} texts wait already")
        now = self._loop.time()
        rows = [Row(ids, now, priority, self._loop.create_future()) for ids in texts]
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
            "bound": "engine" if waiting or len(self._in_hand) == BATCHES_IN_HAND else "queue",
        }

    async def close(self) -> None:
        for row in self._buckets.clear():
            row.future.cancel()
        self._stop_looking()
        for task in self._in_hand:
            task.cancel()
        await asyncio.gather(*self._in_hand, return_exceptions=True)
        self._builder.shutdown(wait=False, cancel_futures=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    # -- the recipe --------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Take the next batch, if the encoder is free and one is ready; else look again when the oldest is due.

        While it computes, one more is taken, if it is full.
        """
        self._next_look = None
        if not len(self._buckets) or not self._may_take():
            return
        ahead, limit = bool(self._in_hand), self._budget.limit
        rows = self._buckets.take(self._loop.time(), limit, only_full=ahead)
        if rows:
            task = self._loop.create_task(self._encode_rows(rows), name="embed batch")
            self._in_hand.add(task)
            task.add_done_callback(partial(self._put_down, rows))
            self._ahead_from = 1.0
            self._look_soon()
        elif ahead:
            self._ahead_from = self._buckets.batches(limit) + LOOK_AGAIN
        else:
            self._next_look = self._loop.call_at(self._buckets.due(), self._turn)

    def _may_take(self) -> bool:
        """Looking costs as much as a batch has rows, so it is not done for each text that comes."""
        if not self._in_hand:
            return True
        return len(self._in_hand) < BATCHES_IN_HAND and self._buckets.batches(self._budget.limit) >= self._ahead_from

    def _put_down(self, rows: list[Row], task: asyncio.Task[None]) -> None:
        """However it ended, even before it began."""
        for row in rows:
            row.future.cancel()  # futures that have ended stay as they are
        self._in_hand.discard(task)
        self._look_soon()

    def _look_soon(self) -> None:
        """Once for all that happens in this turn of the loop."""
        if self._may_take():
            self._stop_looking()
            self._next_look = self._loop.call_soon(self._turn)

    def _stop_looking(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    async def _encode_rows(self, rows: list[Row]) -> None:
        rows = [row for row in rows if not row.future.done()]
        if not rows:
            return
        waited_s = self._loop.time() - min(row.arrived for row in rows)
        try:
            built = await self._loop.run_in_executor(self._builder, self._encoder.build, [row.ids for row in rows])
            async with self._encoder_free:
                if all(row.future.done() for row in rows):
                    return  # their requests were given up meanwhile
                vectors, seconds = await self._loop.run_in_executor(self._thread, self._timed, built, len(rows))
        except Exception as error:
            await self._halve(rows, error)
            return
        self._note(rows, waited_s, seconds)
        for row, vector in zip(rows, vectors, strict=True):
            if not row.future.done():
                row.future.set_result(vector)

    async def _halve(self, rows: list[Row], error: Exception) -> None:
        if isinstance(error, OutOfMemory):
            self._budget.out_of_memory(padded_tokens(rows))
        if len(rows) == 1:
            rows[0].future.set_exception(EncodingFailed(f"{type(error).__name__}: {error}"))
            return
        log.warning("a batch of %d texts failed (%s); each half is tried by itself", len(rows), error)
        middle = len(rows) // 2
        await self._encode_rows(rows[:middle])
        await self._encode_rows(rows[middle:])

    def _timed(self, built: Any, rows: int) -> tuple[Sequence[Vector], float]:
        """The encoder's thread."""
        started = time.perf_counter()
        vectors = self._encoder.encode(built)
        if len(vectors) != rows:
            raise RuntimeError(f"the encoder gave {len(vectors)} vectors for {rows} texts")
        return vectors, time.perf_counter() - started

    def _note(self, rows: Sequence[Row], waited_s: float, seconds: float) -> None:
        tokens = sum(row.length for row in rows)
        if len(self._buckets):
            self._budget.computed(tokens, seconds)
        self.figures.add(Computed(self._loop.time(), len(rows), tokens, padded_tokens(rows), waited_s))
