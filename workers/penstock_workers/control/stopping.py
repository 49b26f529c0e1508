"""A job goes on or stops by its limits and pauses, and by the lanes that it may go to.

A paused job goes on by itself at a stated time, or by `penstock resume`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Final

import redis

from penstock_ledger import JobSeen, JobStore, LiveJob, RedisLedger
from penstock_ledger.model import Job, JobState
from penstock_producer.feed.queues import queue_name
from penstock_ratelimit.for_penstock import lift_hold
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.job.degrading import Degrading
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.job.limits import JobLimits
from penstock_workers.control.lanes.step import LaneChoices
from penstock_workers.settings import DEFAULT_PROVIDER

log = logging.getLogger(__name__)

UNPARK_MAX: Final = 2_000  # messages of a resumed job brought back per round


class Resumes:
    """Lets paused jobs go on, on the control thread.

    Any process may find that a job goes on; the states in SQL and Redis say who was first."""

    def __init__(self, jobs: JobStore, states: JobStates, quotas: redis.Redis) -> None:
        self._jobs = jobs
        self._states = states
        self._quotas = quotas
        # jobs last seen paused -> when that ends by itself
        self._paused: dict[str, float | None] = {}

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
        control process sees that it was resumed, so one that did not see the pause, since it looked
        before and after it, or has started since, sees that it is over. A job that went on by
        itself says nothing about the account: a hold from another job stays.
        """
        if job.state is not JobState.RUNNING:
            return
        if not seen.is_paused:
            self._paused.pop(job.job_id, None)
            return
        ends_at = self._paused.get(job.job_id)
        if ends_at is not None and time.time() >= ends_at:
            return
        if self._jobs.get(job.job_id).state is not JobState.RUNNING:
            return  # it was paused after this round had read it
        provider = str(job.spec.get("provider", DEFAULT_PROVIDER))
        if lift_hold(self._quotas, provider):
            log.info("job %s was resumed: the hold on provider %s is lifted", job.job_id, provider)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._paused = {
            job_id: ends_at for job_id, ends_at in self._paused.items() if job_id in live
        }

    def close(self) -> None:
        self._quotas.close()


class Stopping:
    """Stops and pauses jobs, in the control thread. Any process does it, not their leader only."""

    def __init__(
        self,
        hot: RedisLedger,
        limits: JobLimits,
        resumes: Resumes,
        lanes: LaneChoices,
        specs: Specs,
        degrading: Degrading,
    ) -> None:
        self._hot, self._limits, self._resumes = hot, limits, resumes
        self._degrading = degrading
        self._lanes, self._specs = lanes, specs

    def prepare(self, live: Sequence[LiveJob], names: Collection[str]) -> None:
        """Forget jobs that are over, and note those that live."""
        for part in (self._limits, self._resumes, self._lanes, self._degrading):
            part.keep_only(names)
        self._lanes.note([job for job, _ in live], self._specs.of)

    def tell(self, job: Job, seen: JobSeen) -> None:
        """Tell Redis what SQL says of a job.

        The hold of a resumed job goes before workers learn that it runs: it would stop its
        items."""
        self._resumes.lift_hold(job, seen)
        if not seen.is_current:
            self._hot.set_job_state(job.job_id, job.state)
            self._hot.set_job_lane(job)

    def look_at_pause(self, job: Job, seen: JobSeen) -> None:
        """Let a paused job go on where what it waits for has come, here or in another lane."""
        goes_on = self._limits.go_on_if_done(job) or self._limits.go_on_if_raised(job)
        if not goes_on and not self._leave(job, seen):
            self._resumes.resume_when_over(job)

    def stops(self, job: Job, seen: JobSeen) -> bool:
        """Return whether the job does not go on in its lane: it is stopped, or moves."""
        spec = self._specs.of(job)
        if self._limits.stop(job, spec, seen):
            return True
        self._degrading.look(job, spec)
        return self._lanes.look(job, spec, sum(seen.outstanding))

    def unpark(self, job: Job, seen: JobSeen) -> None:
        """Bring back parked messages, as many as the limits of the job let go on."""
        if seen.parked:
            self._unpark(job, self._limits.to_unpark(job, seen.parked, UNPARK_MAX))

    def unpark_cancelled(self, job: Job, seen: JobSeen) -> None:
        """Bring back parked messages, for workers to see that they are cancelled."""
        if seen.parked:
            self._unpark(job, UNPARK_MAX)

    def close(self) -> None:
        self._resumes.close()

    def _unpark(self, job: Job, most: int) -> None:
        if most:
            self._hot.unpark(job.job_id, queue_name(job.lane), most)

    def _leave(self, job: Job, seen: JobSeen) -> bool:
        """Return whether a job that its lane has paused goes on in another one.

        Redis learns it now: a job that it still calls paused counts as resumed by a person."""
        if not self._lanes.leave(job, self._specs.of(job), sum(seen.outstanding)):
            return False
        self._hot.set_job_state(job.job_id, JobState.RUNNING)
        return True
