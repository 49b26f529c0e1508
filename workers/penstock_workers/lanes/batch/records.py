"""Documents of provider batches are written in one transaction in SQL, then in Redis.

The settler of all lanes calls it. What differs from other lanes: a document that is to be tried
again is a row of SQL in place of a message in Redis, and what earlier batches used up on it is
counted with its outcome.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock_ledger import (
    JobStore,
    ProviderBatchStore,
    RedisLedger,
    Remainder,
    SettleBatch,
    SettledCrash,
    SettledDead,
    SettledDone,
)
from penstock_ledger.model import JobState, PaidBeside
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.wire import CALLS_HEADER, SPENT_HEADER, ItemMessage, item_tag
from penstock_producer.job.routing import unmarked
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Dead, Done, Outcome, Parked, Retry
from penstock_workers.item.run.follow_ups import routed, turns
from penstock_workers.item.settling.records import MadeWithNotes, earlier_in, pauses_of
from penstock_workers.item.settling.rows import savings_in
from penstock_workers.item.settling.stop_loss import StopLoss, is_refused_first
from penstock_workers.item.spent import Spent

NO_REQUEST: Final = b"{}"  # what hooks see of a request that is lost


class BatchAttempt(Attempt, kw_only=True, eq=False):
    """One document in one provider batch."""

    batch: str  # its tag
    position: str  # of the document in its source
    beside: int  # documents of that batch, this one among them
    # its job has moved between lanes, so that another one may have the document
    has_left: bool = False


def attempt_of(
    before: Remainder,
    job: JobView,
    body: bytes = b"",
    *,
    batch: str = "",
    beside: int = 1,
    has_left: bool = False,
    step: int = 0,
) -> BatchAttempt:
    """Return the attempt at a document with what was used up on it ``before``.

    Without a ``batch`` it takes the answer to an equal request. ``step``: of the job's `degrade`,
    by which the batch was packed."""
    sums = before.prompt_tokens, before.completion_tokens, before.cost_microusd
    used = Spent(*sums, escalations=before.escalations).as_header
    headers = {CALLS_HEADER: before.calls, SPENT_HEADER: [*used]}
    view, is_better = routed(job, body), before.escalations > 0
    for _, following in turns(view, escalated=is_better, steps=step):
        view = following
    tag, queue = item_tag(before.key), queue_name(job.spec.lane)
    return BatchAttempt(
        Delivery(tag, None, headers, retries=before.attempts, queue=queue),
        ItemMessage(before.key, body, None, job.named_endpoint),
        before.key,
        job=view,
        given=body,
        body=unmarked(body) or NO_REQUEST,
        batch=batch,
        position=before.position,
        beside=beside,
        has_left=has_left,
        step=0 if is_better else step,
    )


class BatchRecords:
    """Writes what documents of batches came to. Every write may be repeated without harm."""

    def __init__(
        self,
        jobs: JobStore,
        batches: ProviderBatchStore,
        hot: RedisLedger,
        made_with: MadeWithNotes,
    ) -> None:
        self._jobs = jobs
        self._batches = batches
        self._hot = hot
        self._made_with = made_with
        self._stop_loss = StopLoss(jobs, hot)

    def write_sql(self, group: Sequence[Settled]) -> None:
        if any(isinstance(outcome, Done) for _, outcome in group):
            self._made_with.note(group)
        for tag, some in _by_batch(group).items():
            results = [outcome.result for _, outcome in some if isinstance(outcome, Done)]
            letters = [outcome.letter for _, outcome in some if isinstance(outcome, Dead)]
            again = [
                (attempt, outcome)
                for attempt, outcome in some
                if isinstance(outcome, Retry | Parked)
            ]
            left = [_left(attempt, outcome) for attempt, outcome in again]
            beside = [
                _beside(attempt) for attempt, _ in again if attempt.has_left and attempt.calls
            ]
            in_sql = [Settled(attempt, outcome) for attempt, outcome in some]
            self._batches.settle(
                tag, results, letters, left, beside, earlier_in(in_sql), savings_in(in_sql)
            )
        for job_id, (why, ends_in_s) in pauses_of(group).items():
            resume_at = None if ends_in_s is None else time.time() + ends_in_s
            self._jobs.set_state(
                job_id, JobState.PAUSED, why=why, expect={JobState.RUNNING}, resume_at=resume_at
            )

    def write_redis(self, group: Sequence[Settled]) -> None:
        """Write the completed set and the counters, for people."""
        for job_id in pauses_of(group):
            self._hot.set_job_state(job_id, JobState.PAUSED)
        done, dead, again = list[SettledDone](), list[SettledDead](), list[SettledCrash]()
        for attempt, outcome in group:
            if not isinstance(attempt, BatchAttempt):
                continue
            # what is reserved is its batch's, until that is settled
            used = attempt.spent_in_all[:3]
            if isinstance(outcome, Done):
                first_calls = 1 + attempt.spent_in_all.escalations
                after_retry = attempt.calls_in_all > first_calls or attempt.retries > 0
                done.append(
                    SettledDone(
                        attempt.key,
                        attempt.job.buckets,
                        after_retry,
                        *used,
                        calls=attempt.calls_in_all,
                        keep=attempt.keep,
                        reused=outcome.result.reason,
                    )
                )
            elif isinstance(outcome, Dead):
                reason = outcome.letter.reason
                refused = is_refused_first(attempt, outcome)
                dead.append(
                    SettledDead(
                        attempt.key,
                        attempt.job.buckets,
                        reason,
                        *used,
                        attempt.calls_in_all,
                        refused,
                    )
                )
            elif isinstance(outcome, Retry):
                again.append(
                    SettledCrash(attempt.key, outcome.name, is_refused_first(attempt, outcome))
                )
        report = self._hot.settle(SettleBatch(done, dead, tried_again=again))
        self._stop_loss.look(group, report.lately)


class NoQueue:
    """The bridge of a lane whose documents are no messages: there is nothing to acknowledge."""

    async def sure(self, *, anew: bool = False) -> None:
        pass

    def started(self, delivery: Delivery) -> None:
        pass

    def conclude(self, pairs: Sequence[tuple[Delivery, Outcome]]) -> None:
        pass


def _by_batch(group: Iterable[Settled]) -> Mapping[str, list[tuple[BatchAttempt, Outcome]]]:
    found: defaultdict[str, list[tuple[BatchAttempt, Outcome]]] = defaultdict(list)
    for attempt, outcome in group:
        if isinstance(attempt, BatchAttempt):
            found[attempt.batch].append((attempt, outcome))
    return found


def _left(attempt: BatchAttempt, outcome: Retry | Parked) -> Remainder:
    """Return what is left for the next batch."""
    is_counted = isinstance(outcome, Retry) and outcome.counted
    calls, (prompt, completion, cost) = attempt.calls_in_all, attempt.spent_in_all[:3]
    # what this batch has cost is in no row, which may be gone already or another's: see ``_beside``
    if attempt.has_left:
        own = attempt.spent
        calls -= attempt.calls
        prompt, completion, cost = prompt - own[0], completion - own[1], cost - own[2]
    attempts = attempt.number if is_counted else attempt.retries
    if isinstance(outcome, Retry):
        reason = outcome.name
    else:
        reason = "" if outcome.pauses is None else outcome.pauses.code
    most = max(1, (attempt.beside + 1) // 2) if reason == "batch_refused" else None
    unpriced = 0 if attempt.has_left else attempt.spent.unpriced
    return Remainder(
        attempt.key,
        attempt.position,
        attempts,
        calls,
        prompt,
        completion,
        cost,
        reason,
        most,
        unpriced,
        escalations=attempt.spent_in_all.escalations,
    )


def _beside(attempt: BatchAttempt) -> PaidBeside:
    """Return what one batch has cost that did not answer its document.

    Its job has left the lane."""
    return attempt.spent.beside(attempt.key, attempt.calls)
