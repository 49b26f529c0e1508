"""Completes a job that has all its outcomes.

The counts in SQL are checked, then the results are written."""

from __future__ import annotations

import logging

from penstock_ledger import JobStore, RedisLedger
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import explain
from penstock_producer.job.spec import JobSpec
from penstock_workers.control.job.balance import Balance, Unbalanced
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.job.recover import stats_from
from penstock_workers.control.job.sinks import JobSinks, SinkGivenUp

log = logging.getLogger(__name__)


class Completion:
    """Belongs to the control thread."""

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
