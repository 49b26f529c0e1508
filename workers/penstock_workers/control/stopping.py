"""Whether a job goes on: its limits and pauses, and the lanes that it may go to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from penstock_ledger import JobSeen, LiveJob, RedisLedger
from penstock_ledger.model import Job, JobState
from penstock_producer.feed.queues import queue_name
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.job.limits import JobLimits
from penstock_workers.control.job.resume import Resumes
from penstock_workers.control.lanes.step import LaneChoices

UNPARK_MAX: Final = 2_000  # messages of a resumed job brought back per round


class Stopping:
    """Stops and pauses jobs, in the control thread. Any process does it, not their leader only."""

    def __init__(
        self,
        hot: RedisLedger,
        limits: JobLimits,
        resumes: Resumes,
        lanes: LaneChoices,
        specs: Specs,
    ) -> None:
        self._hot, self._limits, self._resumes = hot, limits, resumes
        self._lanes, self._specs = lanes, specs

    def prepare(self, live: Sequence[LiveJob], names: Collection[str]) -> None:
        """Forget jobs that are over, and note those that live."""
        for part in (self._limits, self._resumes, self._lanes):
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
        return self._limits.stop(job, spec, seen) or self._lanes.look(
            job, spec, sum(seen.outstanding)
        )

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
