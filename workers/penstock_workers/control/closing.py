"""The end of a job: it is cancelled or complete, and its results are written until then."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from penstock_ledger import BatchFigures, JobSeen, LiveJob
from penstock_ledger.model import Feed, Job, JobState
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import packs
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.job.balance import Balance
from penstock_workers.control.job.cancel import Cancelling
from penstock_workers.control.job.complete import Completion
from penstock_workers.control.job.ending import JobEnding
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.job.sinks import JobSinks, SinkGivenUp
from penstock_workers.control.leading import Led

log = logging.getLogger(__name__)


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

    def cancel(self, job: Job, led: Led) -> None:
        self._cancelling.step(job, queue_name(job.lane), led.feeds, led.every_shard)

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
