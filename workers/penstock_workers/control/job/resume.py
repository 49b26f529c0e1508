"""What happens when a paused job goes on: by itself at a stated time, or by `penstock resume`."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

import redis

from penstock_ledger import JobSeen, JobStore
from penstock_ledger.model import Job, JobState
from penstock_ratelimit.for_penstock import lift_hold
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.settings import DEFAULT_PROVIDER

log = logging.getLogger(__name__)


class Resumes:
    """Belongs to the control thread.

    Any process may find that a job goes on; the states in SQL and Redis say who was first."""

    def __init__(self, jobs: JobStore, states: JobStates, quotas: redis.Redis) -> None:
        self._jobs = jobs
        self._states = states
        self._quotas = quotas
        # jobs last seen paused -> when that ends by itself
        self._paused: dict[str, float | None] = {}
        self._running: set[str] = set()  # jobs last seen running

    def resume_when_over(self, job: Job) -> None:
        """Let a paused job go on once the time is over for which the provider wants no calls."""
        self._paused[job.job_id] = job.resume_at
        if job.resume_at is None or time.time() < job.resume_at:
            return
        if self._states.move(job, JobState.RUNNING, None):
            log.info("job %s goes on by itself: its pause is over (%s)", job.job_id, job.reason)

    def lift_hold(self, job: Job, seen: JobSeen) -> None:
        """Lift the hold on a provider when its job is resumed by hand.

        Resuming it says that the account is in order. Redis still calls the job paused until a
        control process sees that it was resumed, so one that has started since sees it, too. A job
        that went on by itself says nothing about the account: a hold from another job stays.
        """
        if job.state is not JobState.RUNNING:
            self._running.discard(job.job_id)
            return
        if job.job_id in self._running:
            return
        self._running.add(job.job_id)
        ends_at = self._paused.pop(job.job_id, None)
        if ends_at is not None and time.time() >= ends_at:
            return
        if not seen.is_paused or self._jobs.get(job.job_id).state is not JobState.RUNNING:
            return  # the second: it was paused after this round had read it
        provider = str(job.spec.get("provider", DEFAULT_PROVIDER))
        if lift_hold(self._quotas, provider):
            log.info("job %s was resumed: the hold on provider %s is lifted", job.job_id, provider)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._running.intersection_update(live)
        self._paused = {
            job_id: ends_at for job_id, ends_at in self._paused.items() if job_id in live
        }

    def close(self) -> None:
        self._quotas.close()
