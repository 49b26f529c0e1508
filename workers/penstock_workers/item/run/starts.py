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
    BeginReply,
    Begun,
    JobNotFound,
    JobStore,
    MayCost,
    OutcomeStore,
    RedisLedger,
    SettleBatch,
    in_words,
)
from penstock_ledger.model import ItemKey, JobState
from penstock_workers.background import BackgroundTasks
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Attempt, Item, JobView
from penstock_workers.item.failures import TurnedAway
from penstock_workers.item.outcome import Dead, Outcome, Parked, Skipped, Unreadable
from penstock_workers.item.run.cost import may_cost
from penstock_workers.item.settling.groups import Backlog, Gatherer, StoreWriter
from penstock_workers.item.settling.rows import has_budget

log = logging.getLogger(__name__)

GROUP_MAX = 500  # begins per script call, so that one call stays well under a millisecond of Redis
REDIS_RETRY_CAP_S = 5.0  # while Redis is away items wait here; they are bounded by the slots
RENEW_S = 15.0  # a worker that makes calls for jobs with a budget says so often that it lives
SHOWN_CHARS = 80  # of an id that a stranger chose

_FINISHED = Skipped("finished already")
_NOT_FED = (BeginReply.UNKNOWN, BeginReply.UNKNOWN_SINCE_REBUILT)
_BUDGET_CHANGED = Parked("the budget of its job has changed")
_MUST_NOT: dict[BeginReply, Outcome] = {
    BeginReply.DONE: _FINISHED,
    BeginReply.CANCELLED: Skipped("its job is cancelled"),
    BeginReply.PAUSED: Parked("its job is paused"),
    BeginReply.NO_ROOM: Parked("the budget of its job may be needed for calls that are under way"),
    BeginReply.BUDGET_CHANGED: _BUDGET_CHANGED,
    BeginReply.ELSEWHERE: Skipped("its job goes on in another lane", left_lane=True),
}
# of a job in any other state items may start: all of a completed one have outcomes
_OF_STATES: dict[JobState, BeginReply] = {
    JobState.PAUSED: BeginReply.PAUSED,
    JobState.CANCELLING: BeginReply.CANCELLED,
    JobState.CANCELLED: BeginReply.CANCELLED,
    JobState.FAILED: BeginReply.CANCELLED,
}


class _Answer(NamedTuple):
    outcome: Outcome | None  # None: it may start
    crashes: int = 0
    rebuilt: str = ""  # ask again once leases were renewed after this rebuild of Redis


class _Asked(NamedTuple):
    begin: Begin
    redelivered: bool
    # None where only the answer is asked for: a start that was counted is taken back
    attempt: Attempt | None
    answer: asyncio.Future[_Answer]


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
        self._outcomes = outcomes
        self._jobs = jobs
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
            answered: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
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
                (asked, _Answer(Unreadable(f"its start cannot be counted: {in_words(error)}")))
            )
        for job_id in {
            asked.begin.key.job_id
            for asked, answer in answered
            if answer.outcome is _BUDGET_CHANGED
        }:
            self._budget_changed(job_id)
        unwanted = [asked.begin for asked, answer in answered if not _tell(asked, answer)]
        await self._release(_released(unwanted))
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

    def _begin(self, group: Sequence[_Asked]) -> list[_Answer]:
        """Count a group in one script call.

        Where a message was seen before, or Redis may be an old copy, one look into SQL comes before
        anything is paid twice."""
        if any(asked.begin.may_cost is not None for asked in group):
            self._say_alive()
        if self._asked[0] is not group:
            self._asked = group, secrets.token_hex(4)
        call = self._owner, self._asked[1]
        begun = self._hot.begin([asked.begin for asked in group], self._lane, call, self._rebuilt)
        if not all(one.is_sure for one in begun):
            begun = self._as_sql_has(group, begun)
        doubtful = [
            asked.begin for asked, one in zip(group, begun, strict=True) if _is_doubtful(asked, one)
        ]
        finished = (
            self._outcomes.terminal([begin.key for begin in doubtful]) if doubtful else frozenset()
        )
        if finished:
            self._finish([begin for begin in doubtful if begin.key in finished])
        stopped = [
            asked.begin
            for asked, one in zip(group, begun, strict=True)
            if not one.is_sure and one.reply is not BeginReply.GO
        ]
        if stopped:
            self._hot.settle(_released(stopped))
        return [
            _Answer(_FINISHED)
            if finished and asked.begin.key in finished
            else _Answer(self._objection(asked, one), one.crashes, one.rebuilt)
            for asked, one in zip(group, begun, strict=True)
        ]

    def _as_sql_has(self, group: Sequence[_Asked], begun: Sequence[Begun]) -> list[Begun]:
        """Ask SQL about jobs of which Redis is not sure.

        An old copy knows of no pause, no end, no purge and no move that came after it."""
        pairs = [(asked.begin.key.job_id, one) for asked, one in zip(group, begun, strict=True)]
        said = {
            job_id: self._said_by_sql(job_id)
            for job_id in {job_id for job_id, one in pairs if not one.is_sure}
        }
        return [one if one.is_sure else one._replace(reply=said[job_id]) for job_id, one in pairs]

    def _said_by_sql(self, job_id: str) -> BeginReply:
        """Return what workers are to do with items of a job, by what SQL has of it."""
        try:
            job = self._jobs.get(job_id)
        except JobNotFound:
            return BeginReply.CANCELLED
        if self._lane and job.lane != self._lane:
            return BeginReply.ELSEWHERE
        return _OF_STATES.get(job.state, BeginReply.GO)

    def _say_alive(self) -> None:
        """Say that this worker lives, before what is reserved in its name can be seen."""
        if time.monotonic() - self._renewed_at > RENEW_S or not self._renewed_at:
            self._hot.budgets.renew(self._owner)
            self._renewed_at = time.monotonic()

    def _objection(self, asked: _Asked, begun: Begun) -> Outcome | None:
        if begun.reply is BeginReply.GO:
            return None
        if begun.reply in _NOT_FED:
            return self._not_fed(
                asked.begin.key, rebuilt=begun.reply is BeginReply.UNKNOWN_SINCE_REBUILT
            )
        return _MUST_NOT.get(begun.reply)

    def _not_fed(self, key: ItemKey, *, rebuilt: bool) -> Outcome:
        """Return the outcome of a document that Redis does not know as fed.

        ``rebuilt`` says that Redis was rebuilt not long ago. These are rare, so SQL is asked about
        each.
        """
        job_id, generation, doc_id = key
        if all(feed.generation != generation for feed in self._jobs.feeds(job_id)):
            return Unreadable(
                f"job {job_id[:SHOWN_CHARS]!r} has no generation {generation}; nothing was sent "
                "for it"
            )
        # the worker held the message from before; the feed starts again and will come to the
        # document
        if rebuilt:
            return Skipped(
                "Redis was rebuilt and does not know it; the feed of its job sends it again"
            )
        return Unreadable(
            f"document {doc_id[:SHOWN_CHARS]!r} was not fed to generation {generation} of job "
            f"{job_id}: it is not in the job's source, or was put into the queue by something else "
            "than a feed; nothing was sent for it"
        )

    def _finish(self, found: Sequence[Begin]) -> None:
        """Write to Redis what SQL has of finished items.

        The worker that put it there died before it wrote to Redis."""
        for (job_id, generation, doc_id), buckets, _ in found:
            self._hot.rehydrate(job_id, generation, [(doc_id, False)], buckets)
        paid = {begin.key: 0 for begin in found if begin.may_cost is not None}
        self._hot.settle(SettleBatch(released=[begin.key for begin in found], paid=paid))
        self._hot.drop_from_window(begin.key for begin in found)


def _released(begins: Sequence[Begin]) -> SettleBatch:
    """Return what takes starts back; of jobs with a budget only what was paid stays reserved."""
    paid = {begin.key: begin.may_cost.paid for begin in begins if begin.may_cost is not None}
    return SettleBatch(released=[begin.key for begin in begins], paid=paid)


def _tell(asked: _Asked, answer: _Answer) -> bool:
    """Give an answer; return False where a start was counted that is not wanted any more."""
    may_start = answer.outcome is None and not answer.rebuilt
    if asked.answer.done():  # cancelled meanwhile
        return not may_start
    if asked.attempt is not None:
        asked.attempt.begun, asked.attempt.crashes = may_start, answer.crashes
    asked.answer.set_result(answer)
    return asked.attempt is not None or not may_start


def _is_doubtful(asked: _Asked, begun: Begun) -> bool:
    if begun.reply is BeginReply.GO:
        return asked.redelivered or begun.crashes > 0 or not begun.is_sure
    return begun.reply in _NOT_FED
