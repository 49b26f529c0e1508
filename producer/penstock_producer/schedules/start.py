"""Starting the job of a planned time, once, however often and by however many processes it is tried."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from penstock_ledger import Job, JobConflict, JobNotFound, JobStore, Schedule
from penstock_producer.producer import STARTED_BY, Producer

__all__ = ["start_job", "started_by"]

START_TIMEOUT_S: Final = 3_600.0  # of reading and checking a source; a control process has few threads for it


def job_key(name: str, planned_at: float) -> str:
    """The key of a planned time's job: submitting it again is the same job."""
    return f"{name}@{datetime.fromtimestamp(planned_at, UTC):%Y-%m-%dT%H:%MZ}"


def start_job(producer: Producer, jobs: JobStore, schedule: Schedule, planned_at: float) -> str:
    """Submit what the schedule holds; returns the job's id.

    A process that died after its submit, or was thought dead, has left the job under this key: that one counts, even if
    the source has changed since. Raises what a submit raises.
    """
    key = job_key(schedule.name, planned_at)
    found = _started_before(jobs, schedule, key)
    if found is not None:
        return found
    mark = {"schedule": schedule.name, "schedule_id": schedule.schedule_id, "planned_at": planned_at}
    try:
        job = producer.submit(
            schedule.source["source"], schedule.spec, job_key=key, timeout_s=START_TIMEOUT_S, started_by=mark
        )
    except JobConflict:
        found = _started_before(jobs, schedule, key)
        if found is None:
            raise
        return found
    return job.job_id


def started_by(job: Job) -> tuple[str, float] | None:
    """The schedule's name and the planned time of a job that started by itself."""
    mark = job.source.get(STARTED_BY)
    return None if mark is None else (str(mark["schedule"]), float(mark["planned_at"]))


def _started_before(jobs: JobStore, schedule: Schedule, key: str) -> str | None:
    try:
        job = jobs.get(key)
    except JobNotFound:
        return None
    return job.job_id if job.source.get(STARTED_BY, {}).get("schedule_id") == schedule.schedule_id else None
