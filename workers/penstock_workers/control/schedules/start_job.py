"""Starting the job of a planned time, once, however often and by however many processes it is tried."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock_ledger import Job, JobConflict, JobNotFound, JobStore, Schedule, ScheduleStore
from penstock_producer import Producer
from penstock_producer.schedules.marks import NEW_FILES, SOURCE, is_of, job_key, mark
from penstock_workers.control.schedules.starts import Started

START_TIMEOUT_S: Final = 3_600.0  # of reading and checking a source; a control process has few threads for it


def start_job(producer: Producer, jobs: JobStore, schedules: ScheduleStore, schedule: Schedule) -> Started:
    """Submit what the schedule holds for ``next_at``.

    A process that died after its submit, or was thought dead, has left the job under this key: that one counts, even if
    the source has changed since. Raises what a submit raises.
    """
    found = _started_before(jobs, schedule)
    if found is not None:
        return Started(found.job_id)
    try:
        if NEW_FILES in schedule.source:
            return _of_new_files(producer, schedules, schedule)
        job = producer.submit(
            schedule.source[SOURCE],
            schedule.spec,
            job_key=job_key(schedule),
            timeout_s=START_TIMEOUT_S,
            started_by=mark(schedule),
        )
    except JobConflict:  # another process may have submitted another content since
        found = _started_before(jobs, schedule)
        if found is None:
            raise
        return Started(found.job_id)
    return Started(job.job_id)


def _of_new_files(producer: Producer, schedules: ScheduleStore, schedule: Schedule) -> Started:
    job, unsettled = producer.submit_new_files(
        schedule.source[NEW_FILES],
        schedule.spec,
        partial(schedules.taken, schedule),
        job_key=job_key(schedule),
        timeout_s=START_TIMEOUT_S,
        started_by=mark(schedule),
    )
    if job is not None:
        return Started(job.job_id)
    why_not = "no new file"
    if unsettled:
        why_not += f"; {unsettled} were changed seconds ago, may still be written, and wait for the next time"
    return Started(None, why_not=why_not)


def _started_before(jobs: JobStore, schedule: Schedule) -> Job | None:
    try:
        job = jobs.get(job_key(schedule))
    except JobNotFound:
        return None
    return job if is_of(job, schedule) else None
