"""Moves a job to another state: in SQL, which decides, and then in Redis, for the workers."""

from __future__ import annotations

from penstock_ledger import JobStore, RedisLedger
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import Reason


class JobStates:
    """Belongs to the control thread."""

    def __init__(self, jobs: JobStore, hot: RedisLedger) -> None:
        self._jobs = jobs
        self._hot = hot

    def move(self, job: Job, to: JobState, why: Reason | None) -> bool:
        """Move a job from the state in which this round found it.

        Return False when others have moved it meanwhile."""
        moved = self._jobs.set_state(job.job_id, to, why=why, expect={job.state})
        if moved:
            self._hot.set_job_state(job.job_id, to)
        return moved
