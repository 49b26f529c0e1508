"""Starts the job of a planned time once.

It does not matter how often, or by how many processes, that is tried."""

from __future__ import annotations

from penstock_ledger import (
    Job,
    JobConflict,
    JobNotFound,
    JobStore,
    NoticedStore,
    Schedule,
    ScheduleStore,
)
from penstock_producer import Producer
from penstock_producer.pins import DOOR, REMOTE
from penstock_producer.schedules.marks import NEW_FILES, OUTCOMES_OF, SOURCE, is_of, job_key, mark
from penstock_workers.control.schedules.of_new_files import START_TIMEOUT_S, start_new_files
from penstock_workers.control.schedules.over_outcomes import start_over_outcomes
from penstock_workers.control.schedules.starts import Started


def start_job(
    producer: Producer,
    remote: Producer,
    jobs: JobStore,
    schedules: ScheduleStore,
    noticed: NoticedStore,
    schedule: Schedule,
) -> Started:
    """Submit what the schedule holds for ``next_at``.

    ``remote`` submits it where the schedule was added through a remote door: its source then lies
    in `source_roots`, and its options keep to `doors.*`, at this moment as well. A process that
    died after its submit, or was thought dead, has left the job under this key: that one counts,
    even if the source has changed since. Raises what a submit raises.
    """
    found = _started_before(jobs, schedule)
    if found is not None:
        return Started(found.job_id)
    try:
        if NEW_FILES in schedule.source:
            return start_new_files(producer, jobs, schedules, noticed, schedule)
        if OUTCOMES_OF in schedule.source:
            return start_over_outcomes(producer, jobs, schedules, schedule)
        by = remote if schedule.source.get(DOOR) == REMOTE else producer
        job = by.submit(
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


def _started_before(jobs: JobStore, schedule: Schedule) -> Job | None:
    try:
        job = jobs.get(job_key(schedule))
    except JobNotFound:
        return None
    return job if is_of(job, schedule) else None
