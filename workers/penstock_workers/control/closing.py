"""The end of a job: it is cancelled or complete, and its results are written until then.

A control loop polls. Near a job's end it polls more often, as long as outcomes keep coming: where
the last calls take many seconds, a fifth of a second more does not matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from penstock_ledger import BatchFigures, JobSeen, JobStore, LiveJob, RedisLedger
from penstock_ledger.model import Feed, Job, JobState
from penstock_ledger.reasons import explain
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import packs
from penstock_producer.job.spec import JobSpec
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.job.balance import Balance, Unbalanced
from penstock_workers.control.job.cancel import Cancelling
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.job.recover import stats_from
from penstock_workers.control.job.sinks import JobSinks, SinkGivenUp
from penstock_workers.control.leading import Led

log = logging.getLogger(__name__)

ENDING_DOCUMENTS = 64  # at most so many are under way: what a worker settles in about one group
ENDING_FOR_S = 2.0  # after the latest outcome
ENDING_INTERVAL_S = 0.04  # a tick costs 1 to 2 ms


class JobEnding:
    """Notices that a job is about to end, so that its last outcome is seen soon.

    Belongs to the control thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # job that is all read -> documents under way, since when so many
        self._moved: dict[str, tuple[int, float]] = {}

    def note(self, job_id: str, under_way: int) -> None:
        """Note how many documents are under way of a job that is led here and read to its end."""
        known = self._moved.get(job_id)
        if known is None or known[0] != under_way:
            self._moved[job_id] = (under_way, self._clock())

    def interval_s(self, usual_s: float) -> float:
        """Return how long the loop may wait for its next tick."""
        now = self._clock()
        ends = any(
            under_way <= ENDING_DOCUMENTS and now - since < ENDING_FOR_S
            for under_way, since in self._moved.values()
        )
        return min(usual_s, ENDING_INTERVAL_S) if ends else usual_s

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._moved = {job_id: moved for job_id, moved in self._moved.items() if job_id in live}


class Completion:
    """Completes a job: checks the counts in SQL, then has its results written.

    Belongs to the control thread."""

    def __init__(
        self, jobs: JobStore, hot: RedisLedger, states: JobStates, balance: Balance, sinks: JobSinks
    ) -> None:
        self._jobs = jobs
        self._hot = hot
        self._states = states
        self._balance = balance
        self._sinks = sinks

    def complete(self, job: Job, spec: JobSpec) -> None:
        """End the job if SQL counts one outcome for every document.

        Call it once everything seems read and nothing under way: both are asked again, because a
        replay may have begun, or the last documents have been fed, since that was seen."""
        feeds = self._jobs.feeds(job.job_id)
        if not all(feed.exhausted for feed in feeds):
            return
        if any(self._hot.outstanding_of([(feed.job_id, feed.generation) for feed in feeds])):
            return
        closed = self._balance.close(job)
        if isinstance(closed, Unbalanced):
            log.error("job %s: %s", job.job_id, explain(closed.reason))
            self._states.move(job, closed.state, closed.reason)
        elif closed is not None and self._written(job, spec):
            # drifted while Redis was rebuilt
            if self._hot.stats(job.job_id).get("succeeded", 0) != closed.succeeded:
                self._hot.reset_stats(job.job_id, stats_from(closed, self._hot.stats(job.job_id)))
            self._states.move(job, JobState.COMPLETED, None)

    def _written(self, job: Job, spec: JobSpec) -> bool:
        try:
            return self._sinks.written(job, spec)
        except SinkGivenUp as error:
            log.error("job %s: %s", job.job_id, explain(error.reason))
            self._states.move(job, JobState.PAUSED, error.reason)
            return False


class Closing:
    """Belongs to the control thread. Only the leader of a job's feeds ends it."""

    def __init__(
        self,
        balance: Balance,
        batches: BatchFigures,
        states: JobStates,
        specs: Specs,
        sinks: JobSinks,
        cancelling: Cancelling,
        completion: Completion,
    ) -> None:
        self._balance, self._batches, self._states, self._specs = balance, batches, states, specs
        self._sinks, self._cancelling, self._completion = sinks, cancelling, completion
        self.ending = JobEnding()

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        for part in (self._balance, self._cancelling, self._sinks, self.ending):
            part.keep_only(live)

    def cancel(self, job: Job, led: Led, held: Sequence[str]) -> None:
        """Take a step of a cancel; ``held`` are the queues of lanes that the job has left."""
        self._cancelling.step(job, [queue_name(job.lane), *held], led.feeds, led.every_shard)

    def end_if_done(self, live: LiveJob, seen: JobSeen, led: Led) -> None:
        """Go on with results that are written while the job runs, and end it where all is done.

        One process does: the one that leads the newest generation."""
        feeds = [led_feed.feeder.feed for led_feed in led.feeds]
        if any(feed.generation == live.job.generation for feed in feeds) and self._grow(live.job):
            self._end_if_done(live, seen, feeds)

    def _end_if_done(self, live: LiveJob, seen: JobSeen, led: Sequence[Feed]) -> None:
        now = {feed.feed.generation: feed.feed for feed in live.feeds}
        now |= {feed.generation: feed for feed in led}  # as this round left them
        if live.job.total is None or not all(feed.exhausted for feed in now.values()):
            return
        self.ending.note(live.job.job_id, sum(seen.outstanding))
        if not any(seen.outstanding) and not self._is_in_batches(live.job):
            self._completion.complete(live.job, self._specs.of(live.job))

    def _is_in_batches(self, job: Job) -> bool:
        """Return whether documents are with a provider, or wait for another batch or lane."""
        return (packs(job.lane) or job.moves > 0) and self._batches.is_busy(job.job_id)

    def _grow(self, job: Job) -> bool:
        """Go on with the results that are written while the job runs.

        Return False when they cannot be written, for which the job is paused."""
        try:
            self._sinks.look(job, self._specs.of(job))
        except SinkGivenUp as error:
            log.error("job %s: %s", job.job_id, error)
            self._states.move(job, JobState.PAUSED, error.reason)
            return False
        return True
