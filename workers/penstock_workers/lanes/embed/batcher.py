"""The dynamic batcher: texts wait in length buckets while the encoder computes, and go in batches of alike ones.

The encoder has one thread of its own and computes one batch at a time. Everything else is on the event loop, where
``_turn`` is the page to read. When a batch fails, each of its halves is tried by itself, and so on down to the row that is
at fault. An encoder that hangs, that has lost its device or that fails at everything is lost: no text is at fault then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress

from penstock_producer.spec import Priority
from penstock_workers.failpoints import Failpoints
from penstock_workers.lanes.embed.buckets import Buckets, Tell, TextRow, TokenIds, Vector, ignored, padded_tokens
from penstock_workers.lanes.embed.budget import TokenBudget
from penstock_workers.lanes.embed.computing import Broken, Computing, Vectors
from penstock_workers.lanes.embed.encoder import Encoder
from penstock_workers.lanes.embed.encoder_thread import EncoderThread
from penstock_workers.lanes.embed.figures import BatchFigures, Computed
from penstock_workers.lanes.engine_life.failing import FailureRun

log = logging.getLogger(__name__)

MAX_WAITING_ROWS = 65_536  # a request above this is put off; some 100 MB of token ids at 500 each


class NoRoom(Exception):
    """As many texts wait as are allowed to (``MAX_WAITING_ROWS``)."""


class EncodingFailed(Exception):
    """The encoder fails at this text, and at no other in its batch."""


class EncoderLost(Exception):
    """The encoder computes nothing more in this process."""


class Batcher:
    """Everything but ``gauges`` is called on the event loop that ``start`` was called on."""

    def __init__(
        self,
        encoder: Encoder,
        budget: TokenBudget,
        *,
        batch_items: int,
        window_s: float,
        on_lost: Callable[[str], None],
        stall_s: float | None = None,
        failpoints: Failpoints | None = None,
        thread: Executor | None = None,
    ) -> None:
        """``on_lost`` is told once why. ``stall_s``: a batch that takes longer hangs; None = by its size and the model's."""
        self._on_lost, self._lost = on_lost, ""
        self._failing = FailureRun()
        self._budget = budget
        self._buckets = Buckets(batch_items=batch_items, window_s=window_s)
        self._computing_on = Computing(encoder, thread or EncoderThread(), stall_s=stall_s, failpoints=failpoints)
        self._computing: asyncio.Task[None] | None = None
        self._next_look: asyncio.Handle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.figures = BatchFigures(self._loop.time)

    async def encode(
        self, texts: Sequence[TokenIds], priority: Priority = "normal", tell: Tell = ignored
    ) -> list[Vector]:
        """The vectors of these texts, in their order. Raises NoRoom, EncodingFailed and EncoderLost.

        ``tell`` is told when a batch with some of them begins, and when it ends. Cancelled, what still waits leaves
        its bucket.
        """
        if self._lost:
            raise EncoderLost(self._lost)
        if len(self._buckets) and len(self._buckets) + len(texts) > MAX_WAITING_ROWS:
            raise NoRoom(f"{len(self._buckets)} texts wait already")
        now = self._loop.time()
        rows = [TextRow(ids, now, priority, self._loop.create_future(), tell) for ids in texts]
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
        self._computing_on.end()

    # -- the recipe --------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Give the encoder its next batch, if it is free and one is ready; else look again when the oldest is due."""
        self._next_look = None
        if self._computing is not None or not len(self._buckets) or self._lost:
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
        came = await self._compute_rows(rows)
        if isinstance(came, Broken):
            await self._take_apart(rows, came)
            return
        self._failing.answered()
        self._note(rows, waited_s, came.seconds)
        for row, vector in zip(rows, came.vectors, strict=True):
            if not row.future.done():
                row.future.set_result(vector)

    async def _compute_rows(self, rows: Sequence[TextRow]) -> Vectors | Broken:
        for row in rows:
            row.tell(True)
        try:
            return await self._computing_on.batch([row.ids for row in rows])
        finally:
            for row in rows:
                row.tell(False)

    async def _take_apart(self, rows: list[TextRow], broken: Broken) -> None:
        """Find the text that is at fault, unless the encoder is."""
        if broken.too_large:
            self._budget.out_of_memory(padded_tokens(rows))
        why = broken.words if broken.lost else None
        if why is None and len(rows) == 1 and self._failing.failed():
            why = await self._computing_on.fails_at_everything()
        if why is not None:
            self._lose(why)
        if self._lost:
            _fail(rows, EncoderLost(self._lost))
        elif len(rows) == 1:
            _fail(rows, EncodingFailed(broken.words))
        else:
            log.warning("a batch of %d texts failed (%s); each half is tried by itself", len(rows), broken.words)
            middle = len(rows) // 2
            await self._encode_rows(rows[:middle])
            await self._encode_rows(rows[middle:])

    def _lose(self, why: str) -> None:
        """All that wait are told, and all that come later."""
        if not self._lost:
            self._lost = why
            _fail(self._buckets.clear(), EncoderLost(why))
            self._on_lost(why)

    def _note(self, rows: Sequence[TextRow], waited_s: float, seconds: float) -> None:
        tokens = sum(row.length for row in rows)
        if len(self._buckets):
            self._budget.computed(tokens, seconds)
        self.figures.add(Computed(self._loop.time(), len(rows), tokens, padded_tokens(rows), waited_s))


def _fail(rows: Iterable[TextRow], error: Exception) -> None:
    for row in rows:
        if not row.future.done():
            row.future.set_exception(error)
