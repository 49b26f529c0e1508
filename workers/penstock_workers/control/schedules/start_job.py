"""Starting the job of a planned time, once, however often and by however many processes it is tried."""

from __future__ import annotations

from typing import Final

from penstock_ledger import JobConflict, JobNotFound, JobStore, Schedule
from penstock_producer import Producer
from penstock_producer.schedules.marks import is_of, job_key, mark

START_TIMEOUT_S: Final = 3_600.0  # of reading and checking a source; a control process has few threads for it


def start_job(producer: Producer, jobs: JobStore, schedule: Schedule) -> str:
    """Submit what the schedule holds for ``next_at``; returns the job's id.

    A process that died after its submit, or was thought dead, has left the job under this key: that one counts, even if
    the source has changed since. Raises what a submit raises.
    """
    found = _started_before(jobs, schedule)
    if found is not None:
        return found
    try:
        job = producer.submit(
            schedule.source["source"],
            schedule.spec,
            job_key=job_key(schedule),
            timeout_s=START_TIMEOUT_S,
            started_by=mark(schedule),
        )
    except JobConflict:  # another process may have submitted another content since
        found = _started_before(jobs, schedule)
        if found is None:
            raise
        return found
    return job.job_id


def _started_before(jobs: JobStore, schedule: Schedule) -> str | None:
    try:
        job = jobs.get(job_key(schedule))
    except JobNotFound:
        return None
    return job.job_id if is_of(job, schedule) else None
