"""Cancels a job: every document without an outcome gets the dead letter `cancelled`."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from penstock_ledger import (
    CANCEL_WAIT_S,
    BatchFigures,
    FeedLost,
    JobStore,
    OutcomeStore,
    RedisLedger,
)
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import Reason, by_hand, explain
from penstock_producer.errors import SourceError
from penstock_producer.feed.leased_feed import write_off
from penstock_producer.feed.wire import item_tag
from penstock_workers.control.feeds.leadership import LedFeed
from penstock_workers.control.job.balance import Balance, Unbalanced
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.job.recover import stats_from
from penstock_workers.failpoints import Failpoints

WRITE_OFF_MAX = 2_000  # documents written off per round


class Cancelling:
    """Ends cancelled jobs step by step, on the control thread."""

    def __init__(
        self,
        jobs: JobStore,
        outcomes: OutcomeStore,
        batches: BatchFigures,
        hot: RedisLedger,
        states: JobStates,
        balance: Balance,
        lease_s: float,
        failpoints: Failpoints,
    ) -> None:
        self._jobs = jobs
        self._outcomes = outcomes
        self._batches = batches
        self._hot = hot
        self._states = states
        self._balance = balance
        self._lease_s = lease_s  # a worker that has not renewed a lease for so long is dead
        self._failpoints = failpoints
        self._since: dict[str, float] = {}  # job -> monotonic time of the first look

    def step(
        self,
        job: Job,
        queues: Sequence[str],
        feeds: Sequence[LedFeed],
        shards: Sequence[LedFeed],
    ) -> None:
        """Cancel a bounded number of the job's documents.

        ``queues``: of the lanes whose workers may have calls under way. ``feeds`` and ``shards``
        are those that this process leads. The job ends when all are written off.
        """
        if job.total is None:
            # an open job takes no more documents; the next round knows how many there are
            self._jobs.close(job.job_id)
            return
        if self._waits_for_calls(job, queues, [*feeds, *shards]):
            self._failpoints.hit("cancel_waiting")
            return  # calls under way may still end with a result; no more are started
        whole = [led for led in feeds if not led.feeder.feed.shards]
        try:
            if any(not write_off(led.feeder, WRITE_OFF_MAX).exhausted for led in (*whole, *shards)):
                return
            self._failpoints.hit("cancel_writing_off")
        except SourceError as error:
            also = f"documents that were not started have no dead letter, because {error}"
            self._states.move(job, JobState.CANCELLED, _with_also(job, also))
            return
        except FeedLost:
            return  # another process leads now, or the feed was rewound; the next round shows which
        # one process counts
        leads_newest = any(led.feeder.feed.generation == job.generation for led in feeds)
        if leads_newest and all(feed.exhausted for feed in self._jobs.feeds(job.job_id)):
            self._end(job)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._since = {job_id: since for job_id, since in self._since.items() if job_id in live}

    def _waits_for_calls(self, job: Job, queues: Sequence[str], feeds: Sequence[LedFeed]) -> bool:
        now = time.monotonic()
        if now >= self._since.setdefault(job.job_id, now) + CANCEL_WAIT_S:
            return False
        if self._batches.open_of(job.job_id):
            # those that ran are cancelled at their provider, and what they have answered is kept
            return True
        generations = {led.feeder.feed.generation for led in feeds}
        return any(
            self._hot.under_way(queue, job.job_id, generation, item_tag, self._lease_s)
            for generation in generations
            for queue in queues
        )

    def _end(self, job: Job) -> None:
        """End the job; counts that do not balance are noted in its reason."""
        closed = self._balance.close(job)
        if closed is None:
            return  # read once more; the missing documents are written off then
        why = job.why
        if isinstance(closed, Unbalanced):
            why = _with_also(job, explain(closed.reason))
        known = stats_from(self._outcomes.counts(job.job_id), self._hot.stats(job.job_id))
        self._hot.reset_stats(job.job_id, known)
        self._failpoints.hit("cancel_ending")
        self._states.move(job, JobState.CANCELLED, why)


def _with_also(job: Job, also: str) -> Reason:
    """Return why the job is cancelled, and what came on top."""
    why = job.why or by_hand("cancelled")
    return replace(why, params={**why.params, "also": also})
