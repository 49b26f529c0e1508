"""Begin: count an item's start outside this process, and learn whether it may start at all.

Begins of many items travel in one script call; while it is under way the next group gathers. An
item begins only while it is in its job's window. There every document is that was fed and has no
outcome, through retries and pauses, so an item that is neither there nor finished was not sent by
the job's feed. In a job with a budget the same call reserves what the request may cost, and an item
for which there is no room waits outside the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import redis

from penstock_ledger import (
    Begin,
    JobStore,
    MayCost,
    OutcomeStore,
    RedisLedger,
    SettleBatch,
    in_words,
)
from penstock_workers.background import BackgroundTasks
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Attempt, Item
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Dead, Outcome, Parked, Unreadable
from penstock_workers.item.run.cost import may_cost
from penstock_workers.item.run.doubts import BUDGET_CHANGED, Answer, Doubts, released
from penstock_workers.item.settling.groups import Backlog, Gatherer, StoreWriter
from penstock_workers.item.settling.rows import has_budget

log = logging.getLogger(__name__)

GROUP_MAX = 500  # begins per script call, so that one call stays well under a millisecond of Redis
REDIS_RETRY_CAP_S = 5.0  # while Redis is away items wait here; they are bounded by the slots
RENEW_S = 15.0  # a worker that makes calls for jobs with a budget says so often that it lives


class _Asked(NamedTuple):
    begin: Begin
    redelivered: bool
    # None where only the answer is asked for: a start that was counted is taken back
    attempt: Attempt | None
    answer: asyncio.Future[Answer]


async def _no_leases() -> None:
    """Renew nothing: of a caller whose documents are no messages."""


class Starts:
    """Counts starts for tasks of the event loop; the stores are asked in a thread."""

    def __init__(
        self,
        hot: RedisLedger,
        outcomes: OutcomeStore,
        jobs: JobStore,
        lane: str = "",
        budget_changed: Callable[[str], None] = lambda job_id: None,
        renew_leases: Callable[[], Awaitable[None]] = _no_leases,
    ) -> None:
        """Make the starts of one worker.

        ``lane`` is the worker's own; items of jobs that have moved to another one do not start.
        ``budget_changed`` is called with the job whose budget this worker does not know as it is.
        ``renew_leases`` ends when what another worker may hold by now is aborted.
        """
        self._lane = lane
        self._renew_leases = renew_leases
        self._rebuilt = ""  # after which rebuild of Redis the leases were renewed
        self._renewing = asyncio.Lock()
        self._hot = hot
        self._doubts = Doubts(hot, outcomes, jobs, lane)
        self._budget_changed = budget_changed
        # of reservations: of this process, and of none that had its name before
        self._owner = secrets.token_hex(8)
        # what was asked last, and its name: after a lost answer it is asked again by the same one
        self._asked: tuple[Sequence[_Asked], str] = ((), "")
        # monotonic; 0 until this worker has made a call for a job with a budget
        self._renewed_at = 0.0
        self._tasks = BackgroundTasks()
        self._begins: Gatherer[_Asked] = Gatherer(self._ask, group_max=GROUP_MAX, linger_s=0)
        self._returns: Gatherer[tuple[Attempt, asyncio.Future[None]]] = Gatherer(
            self._take_back, group_max=GROUP_MAX, linger_s=0
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="begin")
        self._redis = StoreWriter(
            "the ledger of starts", self._thread, FailureLog(log), cap_s=REDIS_RETRY_CAP_S
        )
        self.backlog = Backlog("starts wait to be counted", (self._redis,))

    def start(self) -> None:
        # here, where the worker has claimed nothing yet: no lease is from before the latest rebuild
        with contextlib.suppress(redis.RedisError):
            self._rebuilt = self._hot.last_rebuild()
        self._begins.start()
        self._returns.start()
        self._tasks.start(self._renew(), "budget owner")

    async def close(self) -> None:
        await self._begins.close()
        await self._returns.close()
        await self._tasks.close()
        self._thread.shutdown()

    async def begin(self, attempt: Attempt, *, sends: bool = False) -> None:
        """Count the start, and reserve what a request may cost that it ``sends``.

        Raises TurnedAway where it must not start, and PricesMissing where its tenant has a budget
        and the price is not known."""
        outcome = await self._answer(
            attempt, attempt.job, attempt, may_cost(attempt) if sends else None
        )
        if outcome is not None:
            raise TurnedAway(outcome)

    async def vouch(self, item: Item, job: JobView | None, outcome: Outcome) -> Outcome:
        """Return what an item ends in that has not begun.

        One that no feed sent gets no dead letter and pauses no job."""
        if job is None or not (
            isinstance(outcome, Dead) or (isinstance(outcome, Parked) and outcome.pauses)
        ):
            return outcome
        return await self._answer(item, job, None) or outcome

    async def take_back(self, attempt: Attempt) -> None:
        """Take back the start of an item that now waits, where it was begun.

        No death may be held against it meanwhile."""
        if not attempt.begun:
            return
        attempt.begun = False
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returns.put((attempt, taken))
        await taken

    async def _answer(
        self, item: Item, job: JobView, attempt: Attempt | None, call: MayCost | None = None
    ) -> Outcome | None:
        if has_budget(job):
            call = (call or MayCost(paid=item.spent.cost_microusd))._replace(owner=self._owner)
        begin = Begin(item.key, job.buckets, call)
        while True:
            answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self.backlog.put()
            self._begins.put(_Asked(begin, item.delivery.redelivered, attempt, answered))
            answer = await answered
            if not answer.rebuilt:
                return answer.outcome
            async with self._renewing:
                if self._rebuilt != answer.rebuilt:
                    await self._renew_leases()
                    self._rebuilt = answer.rebuilt

    async def _take_back(self, group: Sequence[tuple[Attempt, asyncio.Future[None]]]) -> None:
        paid = {one.key: one.spent.cost_microusd for one, _ in group if has_budget(one.job)}
        await self._release(SettleBatch(released=[one.key for one, _ in group], paid=paid))
        for _, taken in group:
            if not taken.done():
                taken.set_result(None)

    async def _ask(self, group: Sequence[_Asked]) -> None:
        self.backlog.take()
        written = await self._redis.write(self._begin, group)
        answered = [
            pair for part, answers in written.parts for pair in zip(part, answers, strict=True)
        ]
        for asked, error in written.refused:
            answered.append(
                (asked, Answer(Unreadable(f"its start cannot be counted: {in_words(error)}")))
            )
        for job_id in {
            asked.begin.key.job_id for asked, answer in answered if answer.outcome is BUDGET_CHANGED
        }:
            self._budget_changed(job_id)
        unwanted = [asked.begin for asked, answer in answered if not _tell(asked, answer)]
        await self._release(released(unwanted))
        self.backlog.done(more=len(self._begins) > 0)

    async def _release(self, batch: SettleBatch) -> None:
        if batch.released:
            await self._redis.write(
                lambda batches: [self._hot.settle(one) for one in batches], [batch]
            )

    async def _renew(self) -> None:
        """Renew the reservations of this worker once it has some, for as long as it lives.

        Its calls may take long."""
        while True:
            await asyncio.sleep(RENEW_S)
            if self._renewed_at:
                # while Redis is away no one gives reservations back
                with contextlib.suppress(redis.RedisError):
                    await asyncio.to_thread(self._hot.budgets.renew, self._owner)

    # -- in the thread -----------------------------------------------------------------------------

    def _begin(self, group: Sequence[_Asked]) -> list[Answer]:
        """Count a group in one script call.

        Where Redis may not know what it says, SQL is asked before anything is paid twice."""
        if any(asked.begin.may_cost is not None for asked in group):
            self._say_alive()
        if self._asked[0] is not group:
            self._asked = group, secrets.token_hex(4)
        call = self._owner, self._asked[1]
        begun = self._hot.begin([asked.begin for asked in group], self._lane, call, self._rebuilt)
        return self._doubts.answers([(asked.begin, asked.redelivered) for asked in group], begun)

    def _say_alive(self) -> None:
        """Say that this worker lives, before what is reserved in its name can be seen."""
        if time.monotonic() - self._renewed_at > RENEW_S or not self._renewed_at:
            self._hot.budgets.renew(self._owner)
            self._renewed_at = time.monotonic()


def _tell(asked: _Asked, answer: Answer) -> bool:
    """Give an answer; return False where a start was counted that is not wanted any more."""
    may_start = answer.outcome is None and not answer.rebuilt
    if asked.answer.done():  # cancelled meanwhile
        return not may_start
    if asked.attempt is not None:
        asked.attempt.begun, asked.attempt.crashes = may_start, answer.crashes
    asked.answer.set_result(answer)
    return asked.attempt is not None or not may_start
