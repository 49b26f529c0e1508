"""Many single requests become few group calls, and each call is repeated until its store has
answered.

A ``Gatherer`` collects what is put into it and hands it to ``flush`` in groups. Only one flush is
under way at a time, so while the store is slow the next group grows by itself. A ``StoreWriter``
waits while its store is away: giving up would throw away answers that are paid for. What a store
refuses for good would hold up all that is behind it, so a refused group is halved until what was
refused is alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, NamedTuple, TypeVar

from penstock_ledger import Trouble, in_words, trouble_of
from penstock_ratelimit import full_jitter
from penstock_workers.failure_log import FailureLog

RETRY_FIRST_S = 0.2

T = TypeVar("T")
R = TypeVar("R")


class Gatherer(Generic[T]):
    """Groups of at most ``group_max`` things, each flushed at most ``linger_s`` after its first
    thing arrived.

    What waits here is bounded by the caller: every waiting thing is an item in flight, and those
    are bounded by prefetch. ``flush`` must not raise; it owns its retries. All methods belong to
    the event loop that ``start`` was called on.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[T]], Awaitable[None]],
        *,
        group_max: int,
        linger_s: float,
        at_once: Callable[[T], bool] | None = None,
    ) -> None:
        """``at_once``: for which things a group does not wait for more of them."""
        self._flush = flush
        self._group_max = group_max
        self._linger_s = linger_s
        self._at_once = at_once
        self._waiting: list[T] = []
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurried = False  # ``flush`` waits for an empty gatherer: do not linger
        self._closing = False
        self._loop_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop_task = asyncio.create_task(self._run(), name=f"gather-{self._flush.__name__}")

    def put(self, thing: T) -> None:
        self._waiting.append(thing)
        if len(self._waiting) == 1:
            self._idle.clear()
            self._arrived.set()
        if len(self._waiting) >= self._group_max or (
            self._at_once is not None and self._at_once(thing)
        ):
            self._full.set()

    def __len__(self) -> int:
        """Things that wait for the next group."""
        return len(self._waiting)

    async def flush(self) -> None:
        """Return once everything that was put in before this call has been flushed."""
        self._hurried = True
        self._full.set()
        await self._idle.wait()
        self._hurried = False

    async def close(self) -> None:
        """Flush what waits, then end."""
        self._closing = True
        self._arrived.set()
        self._full.set()
        if self._loop_task is not None:
            await self._loop_task

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            if self._linger_s and not (self._closing or self._hurried):
                await self._linger()
            group = self._take()
            if group:
                await self._flush(group)
            if not self._waiting:
                self._idle.set()
                if self._closing:
                    return

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(self._linger_s):
                await self._full.wait()
        except TimeoutError:
            pass

    def _take(self) -> list[T]:
        group, self._waiting = self._waiting[: self._group_max], self._waiting[self._group_max :]
        if len(self._waiting) < self._group_max:
            self._full.clear()
        if not self._waiting and not self._closing:
            self._arrived.clear()
        return group


class StoreOutage(NamedTuple):
    """A store that does not take what it is given, as its latest failure says."""

    store: str
    trouble: Trouble
    words: str  # its class and first line
    since: float  # monotonic seconds of the first failure in a row
    failures: int  # in a row
    failed_at: float  # monotonic seconds of the latest


class WrittenGroup(NamedTuple, Generic[T, R]):
    """What became of a group: the parts that were written, with their answers, and what was refused
    for good."""

    parts: list[tuple[Sequence[T], R]]
    refused: list[tuple[T, Exception]]


class StoreWriter:
    """Writes to one store. Belongs to an event loop; the store is asked on ``thread``.

    ``outage`` says what it waits for: written on the loop, read by any thread.
    """

    def __init__(
        self, store: str, thread: Executor, failure_log: FailureLog, *, cap_s: float
    ) -> None:
        self.store = store
        self.outage: StoreOutage | None = None
        self.refusals = 0  # things that the store will never take
        self.failures = 0  # tries that failed and were repeated
        self._thread = thread
        self._failure_log = failure_log
        self._cap_s = cap_s

    async def write(self, do: Callable[[Sequence[T]], R], group: Sequence[T]) -> WrittenGroup[T, R]:
        """Everything of ``group`` is written, or refused for good, when this returns."""
        written: WrittenGroup[T, R] = WrittenGroup([], [])
        rest = [group] if group else []
        while rest:
            part = rest.pop()
            try:
                written.parts.append((part, await self._until_answered(do, part)))
            except Exception as error:
                if len(part) == 1:
                    self.refusals += 1
                    written.refused.append((part[0], error))
                else:
                    middle = len(part) // 2
                    rest += [part[middle:], part[:middle]]
        return written

    async def _until_answered(self, do: Callable[[Sequence[T]], R], part: Sequence[T]) -> R:
        """Raises what the store answers to a part that it will never take."""
        while True:
            try:
                answer = await asyncio.get_running_loop().run_in_executor(self._thread, do, part)
            except Exception as error:
                if trouble_of(error) is Trouble.REFUSED:
                    self.outage = None
                    raise
                await self._wait(error, len(part))
            else:
                self.outage = None
                return answer

    async def _wait(self, error: Exception, number: int) -> None:
        now = time.monotonic()
        failures, since = (
            (0, now) if self.outage is None else (self.outage.failures, self.outage.since)
        )
        wait_s = full_jitter(failures, base_s=RETRY_FIRST_S, cap_s=self._cap_s)
        self.failures += 1
        self.outage = StoreOutage(
            self.store, trouble_of(error), in_words(error), since, failures + 1, now
        )
        self._failure_log.tell(
            f"{self.store} does not take what is written to it",
            error,
            f"{number} items wait here, next try in {wait_s:.1f} s",
        )
        await asyncio.sleep(wait_s)
