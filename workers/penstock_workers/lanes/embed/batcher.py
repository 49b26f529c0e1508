"""The dynamic batcher: texts wait while the encoder computes, and go in batches of similar length.

The encoder has one thread of its own and computes one batch at a time; a second thread builds the
next one meanwhile, if enough texts wait to fill it. Everything else is on the event loop, where
``_turn`` is the page to read. When a batch fails, each of its halves is tried by itself, and so on
down to the row that is at fault. An encoder that hangs, that has lost its device or that fails at
everything is lost: no text is at fault then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from penstock_producer.job.spec import Priority
from penstock_workers.lanes.embed.buckets import (
    Buckets,
    Tell,
    TextRow,
    TokenBudget,
    TokenIds,
    Vector,
    ignored,
    padded_tokens,
)
from penstock_workers.lanes.embed.computing import (
    BatchFigures,
    Broken,
    Built,
    Computed,
    Computing,
    Vectors,
)
from penstock_workers.lanes.engine_faults import FailureRun

log = logging.getLogger(__name__)

MAX_WAITING_ROWS = 65_536  # a request above this is put off; some 100 MB of token ids at 500 each
# one that is computed, and one that is built: rows of a third are better chosen later
BATCHES_IN_HAND = 2
# batches that have to come before the next is looked for again, while its rows were too unlike
LOOK_AGAIN = 0.25


class NoRoom(Exception):
    """So many texts wait that no more are taken (``MAX_WAITING_ROWS``)."""


class EncodingFailed(Exception):
    """The encoder fails at this text, and at no other in its batch."""


class EncoderLost(Exception):
    """The encoder computes nothing more in this process."""


class Batcher:
    """Makes batches of waiting texts, on the event loop of ``start`` but for ``gauges``."""

    def __init__(
        self,
        computing: Computing,
        buckets: Buckets,
        budget: TokenBudget,
        on_lost: Callable[[str], None],
    ) -> None:
        """Make a batcher for one encoder; ``on_lost`` is called once, with the reason."""
        self._on_lost, self._lost = on_lost, ""
        self._failing = FailureRun()
        self._computing, self._buckets, self._budget = computing, buckets, budget
        self._encoder_free = asyncio.Lock()
        self._in_hand: set[asyncio.Task[None]] = set()
        self._ahead_from = 1.0  # batches that wait before one is taken while another is computed
        self._next_look: asyncio.Handle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.figures = BatchFigures(self._loop.time)

    async def encode(
        self, texts: Sequence[TokenIds], priority: Priority = "normal", tell: Tell = ignored
    ) -> list[Vector]:
        """Return the vectors of these texts, in their order.

        Raises NoRoom, EncodingFailed and EncoderLost.

        ``tell`` is called with true when a batch with some of them begins, and with false when it
        ends. When this is cancelled, what still waits leaves its bucket.
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
        """Return the figures of the batches; from any thread."""
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
        self._computing.end()

    # -- the recipe --------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Take the next batch if the encoder is free and one is ready.

        Else look again when the oldest row is due. While the encoder computes, one more is taken,
        if it is full.
        """
        self._next_look = None
        if not len(self._buckets) or self._lost or not self._may_take():
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
        """Return whether another batch may be taken now.

        Looking costs as much as a batch has rows, so it is not done for each text that comes."""
        if not self._in_hand:
            return True
        return (
            len(self._in_hand) < BATCHES_IN_HAND
            and self._buckets.batches(self._budget.limit) >= self._ahead_from
        )

    def _put_down(self, rows: list[TextRow], task: asyncio.Task[None]) -> None:
        """Put a batch down, however it ended, even before it began."""
        for row in rows:
            row.future.cancel()  # futures that have ended stay as they are
        self._in_hand.discard(task)
        self._look_soon()

    def _look_soon(self) -> None:
        """Look for the next batch once for all that happens in this turn of the loop."""
        if self._may_take():
            self._stop_looking()
            self._next_look = self._loop.call_soon(self._turn)

    def _stop_looking(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    async def _encode_rows(self, rows: list[TextRow]) -> None:
        rows = [row for row in rows if not row.future.done()]
        if not rows:
            return
        came = await self._vectors(rows)
        if isinstance(came, Broken):
            await self._take_apart([row for row in rows if not row.future.done()], came)
            return
        self._failing.answered()
        self._note(rows, came)
        for row, vector in zip(rows, came.vectors, strict=True):
            if not row.future.done():
                row.future.set_result(vector)

    async def _vectors(self, rows: Sequence[TextRow]) -> Vectors | Broken:
        """Build a batch while the one before is computed, then compute it."""
        built = await self._computing.build([row.ids for row in rows])
        if isinstance(built, Broken):
            return built
        async with self._encoder_free:
            if self._lost or all(row.future.done() for row in rows):
                return Broken("given up before it was computed")
            return await self._compute_rows(rows, built)

    async def _compute_rows(self, rows: Sequence[TextRow], built: Built) -> Vectors | Broken:
        began = self._loop.time()
        for row in rows:
            row.tell(True)
        try:
            came = await self._computing.batch(built)
        finally:
            for row in rows:
                row.tell(False)
        return came._replace(began=began) if isinstance(came, Vectors) else came

    async def _take_apart(self, rows: list[TextRow], broken: Broken) -> None:
        """Find the text that is at fault, unless the encoder is."""
        if not rows:
            return
        if broken.too_large:
            self._budget.out_of_memory(padded_tokens(rows))
        why = broken.words if broken.lost else None
        if why is None and len(rows) == 1 and self._failing.failed():
            async with self._encoder_free:
                why = await self._computing.fails_at_everything()
        if why is not None:
            self._lose(why)
        if self._lost:
            _fail(rows, EncoderLost(self._lost))
        elif len(rows) == 1:
            _fail(rows, EncodingFailed(broken.words))
        else:
            log.warning(
                "a batch of %d texts failed (%s); each half is tried by itself",
                len(rows),
                broken.words,
            )
            middle = len(rows) // 2
            await self._encode_rows(rows[:middle])
            await self._encode_rows(rows[middle:])

    def _lose(self, why: str) -> None:
        """Fail all that wait, and all that come later."""
        if not self._lost:
            self._lost = why
            _fail(self._buckets.clear(), EncoderLost(why))
            self._on_lost(why)

    def _note(self, rows: Sequence[TextRow], came: Vectors) -> None:
        tokens, waited_s = (
            sum(row.length for row in rows),
            came.began - min(row.arrived for row in rows),
        )
        if len(self._buckets):
            self._budget.computed(tokens, came.seconds)
        self.figures.add(
            Computed(self._loop.time(), len(rows), tokens, padded_tokens(rows), waited_s)
        )


def _fail(rows: Iterable[TextRow], error: Exception) -> None:
    for row in rows:
        if not row.future.done():
            row.future.set_exception(error)
