"""SQL's word about starts where Redis may not know: what ended, what no feed sent, an old copy.

Redis answers whether an item may start. Where its message was seen before, where an earlier start
never came to a conclusion, and where Redis is not rebuilt yet, SQL is asked before anything is paid
twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock_ledger import (
    Begin,
    BeginReply,
    Begun,
    JobNotFound,
    JobStore,
    OutcomeStore,
    RedisLedger,
    SettleBatch,
)
from penstock_ledger.model import ItemKey, JobState
from penstock_workers.item.outcome import Outcome, Parked, Skipped, Unreadable

SHOWN_CHARS = 80  # of an id that a stranger chose

_FINISHED = Skipped("finished already")
_NOT_FED = (BeginReply.UNKNOWN, BeginReply.UNKNOWN_SINCE_REBUILT)
BUDGET_CHANGED = Parked("the budget of its job has changed")
_MUST_NOT: dict[BeginReply, Outcome] = {
    BeginReply.DONE: _FINISHED,
    BeginReply.CANCELLED: Skipped("its job is cancelled"),
    BeginReply.PAUSED: Parked("its job is paused"),
    BeginReply.NO_ROOM: Parked("the budget of its job may be needed for calls that are under way"),
    BeginReply.BUDGET_CHANGED: BUDGET_CHANGED,
    BeginReply.ELSEWHERE: Skipped("its job goes on in another lane", left_lane=True),
}
# of a job in any other state items may start: all of a completed one have outcomes
_OF_STATES: dict[JobState, BeginReply] = {
    JobState.PAUSED: BeginReply.PAUSED,
    JobState.CANCELLING: BeginReply.CANCELLED,
    JobState.CANCELLED: BeginReply.CANCELLED,
    JobState.FAILED: BeginReply.CANCELLED,
}


class Answer(NamedTuple):
    """The answer to an item that wants to start."""

    outcome: Outcome | None  # None: it may start
    crashes: int = 0
    rebuilt: str = ""  # ask again once leases were renewed after this rebuild of Redis


class Doubts:
    """Asks SQL, in the thread in which starts are counted."""

    def __init__(self, hot: RedisLedger, outcomes: OutcomeStore, jobs: JobStore, lane: str) -> None:
        self._hot, self._outcomes, self._jobs, self._lane = hot, outcomes, jobs, lane

    def answers(self, begins: Sequence[tuple[Begin, bool]], begun: Sequence[Begun]) -> list[Answer]:
        """Return what becomes of items, each given with whether its message was seen before."""
        if not all(one.is_sure for one in begun):
            begun = self._as_sql_has(begins, begun)
        asked = [
            begin
            for (begin, was_seen), one in zip(begins, begun, strict=True)
            if _is_doubtful(one, was_seen=was_seen)
        ]
        finished = self._outcomes.terminal([begin.key for begin in asked]) if asked else frozenset()
        if finished:
            self._finish([begin for begin in asked if begin.key in finished])
        stopped = [
            begin
            for (begin, _), one in zip(begins, begun, strict=True)
            if not one.is_sure and one.reply is not BeginReply.GO
        ]
        if stopped:
            self._hot.settle(released(stopped))
        return [
            Answer(_FINISHED)
            if finished and begin.key in finished
            else Answer(self._objection(begin, one), one.crashes, one.rebuilt)
            for (begin, _), one in zip(begins, begun, strict=True)
        ]

    def _as_sql_has(
        self, begins: Sequence[tuple[Begin, bool]], begun: Sequence[Begun]
    ) -> list[Begun]:
        """Ask SQL about jobs of which Redis is not sure.

        An old copy knows of no pause, no end, no purge and no move that came after it."""
        pairs = [(begin.key.job_id, one) for (begin, _), one in zip(begins, begun, strict=True)]
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

    def _objection(self, begin: Begin, begun: Begun) -> Outcome | None:
        if begun.reply is BeginReply.GO:
            return None
        if begun.reply in _NOT_FED:
            return self._not_fed(begin.key, rebuilt=begun.reply is BeginReply.UNKNOWN_SINCE_REBUILT)
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


def released(begins: Sequence[Begin]) -> SettleBatch:
    """Return what takes starts back; of jobs with a budget only what was paid stays reserved."""
    paid = {begin.key: begin.may_cost.paid for begin in begins if begin.may_cost is not None}
    return SettleBatch(released=[begin.key for begin in begins], paid=paid)


def _is_doubtful(begun: Begun, *, was_seen: bool) -> bool:
    if begun.reply is BeginReply.GO:
        return was_seen or begun.crashes > 0 or not begun.is_sure
    return begun.reply in _NOT_FED
