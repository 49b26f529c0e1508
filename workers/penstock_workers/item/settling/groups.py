"""Many single writes become few group calls, each repeated until its store has answered.

A ``Gatherer`` collects what is put into it and hands it to ``flush`` in groups. Only one flush is
under way at a time, so while the store is slow the next group grows by itself. A ``StoreWriter``
waits while its store is away: giving up would throw away answers that are paid for. What a store
refuses for good would hold up all that is behind it, so a refused group is halved until what was
refused is alone; ``Unstorable`` says what becomes of that.

``Backlog`` knows how long the oldest outcome has waited, and when that must fail the liveness
probe. Ending a worker costs what it has not settled: answers that are paid for are asked for again.
So it must help. It does not while a store is down, full or locked by another client: then the
worker stays alive, however long that lasts, and says what it waits for. It may help when a store
answers and still nothing goes through, or when a call to it never comes back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock_ledger import Trouble, in_words, storable, trouble_of
from penstock_ledger.model import DeadLetter
from penstock_ratelimit import full_jitter
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.answer import excerpt
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.outcome import Dead, Done, Parked, Retry, Unreadable


class Writes(Protocol):
    """The writes of a group, in threads. Each may be repeated without harm."""

    def write_sql(self, group: Sequence[Settled]) -> None: ...

    def write_redis(self, group: Sequence[Settled]) -> None: ...


RETRY_FIRST_S = 0.2

T = TypeVar("T")
R = TypeVar("R")


class Gatherer(Generic[T]):
    """Groups of at most ``group_max`` things, each flushed ``linger_s`` after its first one.

    What waits here is bounded by the caller: every waiting thing is an item in flight, and those
    are bounded by prefetch. ``flush`` must not raise; it owns its retries. All methods belong to
    the event loop that ``start`` was called on."""

    def __init__(
        self,
        flush: Callable[[Sequence[T]], Awaitable[None]],
        *,
        group_max: int,
        linger_s: float,
        at_once: Callable[[T, int], bool] | None = None,
    ) -> None:
        """Gather things into groups of at most ``group_max``.

        ``at_once`` says for which things a group, of so many by now, does not wait for more."""
        self._flush = flush
        self._group_max = group_max
        self.linger_s = linger_s
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
        number = len(self._waiting)
        if number == 1:
            self._idle.clear()
            self._arrived.set()
        if number >= self._group_max or (
            self._at_once is not None and self._at_once(thing, number)
        ):
            self._full.set()

    def look_again(self) -> None:
        """Wait for more things, unless ``at_once`` says of one of them that it must not."""
        number = len(self._waiting)
        if number < self._group_max and not (
            self._at_once is not None
            and any(self._at_once(thing, number) for thing in self._waiting)
        ):
            self._full.clear()

    def __len__(self) -> int:
        """Return how many things wait for the next group."""
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
            if self.linger_s and not (self._closing or self._hurried):
                await self._linger()
            group = self._take()
            if group:
                await self._flush(group)
            if not self._waiting:
                self._idle.set()
                if self._closing:
                    return

    async def _linger(self) -> None:
        # asked again: what came while the last group was flushed may be all that there is
        if self._at_once is not None and self._at_once(self._waiting[-1], len(self._waiting)):
            return
        try:
            async with asyncio.timeout(self.linger_s):
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
    """The fates of a group: parts that were written, with answers, and what was refused."""

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
        """Write everything of ``group``, or have it refused for good, before this returns."""
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
        """Repeat a call until its store answers; raise what it will never take."""
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
            f"cannot write to {self.store}",
            error,
            f"{number} items wait here, next try in {wait_s:.1f} s",
        )
        await asyncio.sleep(wait_s)


# the longest that an outcome may wait: a store that works is never this slow
UNSETTLED_MAX_S = 900.0
# a store counts as down for so long after a failure: longer than any call's time limit
AWAY_FRESH_S = 300.0


class Backlog:
    """The outcomes that wait for stores, written on the item loop and read by any thread."""

    def __init__(
        self,
        what: str,
        writers: Sequence[StoreWriter],
        *,
        max_s: float = UNSETTLED_MAX_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._writers = writers
        self._max_s = max_s
        self._clock = clock
        self._since: float | None = None  # the oldest waiting outcome is no older than this
        self._group_at = 0.0

    def put(self) -> None:
        """Note that an outcome waits from now on."""
        if self._since is None:
            self._since = self._clock()

    def take(self) -> None:
        """Note that a group is on its way to the store; what is put from now on is younger."""
        self._group_at = self._clock()

    def done(self, *, more: bool) -> None:
        """Note that the group is stored; ``more`` says whether others wait."""
        self._since = self._group_at if more else None

    def oldest_s(self) -> float:
        """Return the age of the oldest thing that waits, or a little more; 0 for none."""
        since = self._since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def away(self) -> str | None:
        """Return the store that does not take what waits; None while all goes through."""
        return next(
            (writer.outage.store for writer in self._writers if writer.outage is not None), None
        )

    def trouble(self) -> str | None:
        """Return what is waited for, in words; None while everything goes through."""
        waiting = next(
            (writer.outage for writer in self._writers if writer.outage is not None), None
        )
        if waiting is None:
            return None
        return (
            f"{self._what} for up to {self.oldest_s():.0f} s: {waiting.store} is "
            f"{waiting.trouble.value} ({waiting.words}; {waiting.failures} tries in "
            f"{self._clock() - waiting.since:.0f} s)"
        )

    def overdue(self) -> str | None:
        """Return why the liveness probe must fail because of a store; None otherwise."""
        if self.oldest_s() <= self._max_s or self._is_store_away():
            return None
        return (
            f"{self.trouble() or self._what + f' for {self.oldest_s():.0f} s'}, more than "
            f"{self._max_s:.0f} s"
        )

    def _is_store_away(self) -> bool:
        now = self._clock()
        waits = [writer.outage for writer in self._writers if writer.outage is not None]
        return any(
            wait.trouble is Trouble.AWAY and now - wait.failed_at < AWAY_FRESH_S for wait in waits
        )


UNSTORABLE = "unstorable_outcome"  # the reason of the dead letter
EXCERPT_BYTES = 4_096  # of the answer that could not be stored whole


class Instead(NamedTuple):
    """The outcome in place of a refused one."""

    settled: Settled
    is_to_be_written: bool  # to the store that refused the first one


Choice = Callable[[Settled, Exception], Instead]


class Unstorable:
    """Chooses what takes a refused outcome's place; logs a line per cause, with its first item."""

    def __init__(self, log: logging.Logger) -> None:
        self._failure_log = FailureLog(log)

    def by_sql(self, settled: Settled, error: Exception) -> Instead:
        """Make a plain dead letter of a result or dead letter that SQL refuses.

        Anything else is set aside."""
        attempt, outcome = settled
        if not isinstance(attempt, Attempt) or not isinstance(outcome, Done | Dead):
            return self.set_aside(settled, error)
        self._log("SQL", settled, error, f"becomes the dead letter `{UNSTORABLE}`")
        said = outcome.result.body if isinstance(outcome, Done) else outcome.letter.response
        was = (
            "its result"
            if isinstance(outcome, Done)
            else f"its dead letter `{storable(outcome.letter.reason)}`"
        )
        spent = attempt.spent_in_all
        letter = DeadLetter(
            key=attempt.key,
            reason=UNSTORABLE,
            attempts=attempt.number,
            calls=attempt.calls_in_all,
            last_error=f"the database will never take {was}: {in_words(error)}",
            status_code=None,
            request=attempt.given,
            response=excerpt(said, EXCERPT_BYTES),
            prompt_tokens=spent.prompt_tokens,
            completion_tokens=spent.completion_tokens,
            cost_microusd=spent.cost_microusd,
            endpoint=attempt.message.endpoint,
            unpriced=spent.unpriced,
        )
        return Instead(Settled(attempt, Dead(letter)), is_to_be_written=True)

    def by_redis(self, settled: Settled, error: Exception) -> Instead:
        """Keep the message of a retry or a parked item, which Redis refuses.

        What SQL holds needs no Redis: reconciling tells it later.

        Where the message of a retry or a parked item lies, does."""
        if isinstance(settled.outcome, Retry | Parked):
            return self.set_aside(settled, error)
        self._log("Redis", settled, error, "is what SQL says; reconciling tells Redis later")
        return Instead(settled, is_to_be_written=False)

    def set_aside(self, settled: Settled, error: Exception) -> Instead:
        """Keep the message whole, for a person."""
        self._log("a store", settled, error, "is set aside for a person (penstock:parked:unknown)")
        outcome = Unreadable(f"its outcome cannot be stored: {in_words(error)}")
        return Instead(Settled(settled.item, outcome), is_to_be_written=False)

    def _log(self, store: str, settled: Settled, error: Exception, then: str) -> None:
        kind, name = type(settled.outcome).__name__.lower(), settled.delivery.task_id[:200]
        self._failure_log.tell(
            f"{store} refuses an outcome for good ({kind})",
            error,
            f"item {name!r} {then}",
            level=logging.ERROR,
        )
