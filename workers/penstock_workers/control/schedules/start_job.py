"""Starts the job of a planned time once, over files or over the outcomes of another job.

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
from penstock_producer import OutcomesOf, Producer, SourceError
from penstock_producer.pins import DOOR, REMOTE
from penstock_producer.schedules.timetable import (
    NEW_FILES,
    OUTCOMES_OF,
    SOURCE,
    is_of,
    job_key,
    mark,
    taken_key,
)
from penstock_workers.control.schedules.of_new_files import START_TIMEOUT_S, start_new_files
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


def start_over_outcomes(
    producer: Producer, jobs: JobStore, schedules: ScheduleStore, schedule: Schedule
) -> Started:
    """Submit what no earlier job of this schedule has read.

    Raises what a submit raises, JobNotFound and ScheduleNotFound."""
    over = OutcomesOf.of(schedule.source[OUTCOMES_OF])
    found = (
        _named(jobs, over.job)
        if over.job is not None
        else _newest(jobs, schedules, schedule, str(over.schedule))
    )
    if isinstance(found, Started):
        return found
    read = _read_up_to(schedules, schedule, found)
    if read == found.generation:
        return Started(None, why_not=_was_read(found))
    try:
        job = producer.submit_from(
            found.job_id,
            schedule.spec,
            where=over.where,
            job_key=job_key(schedule),
            started_by=mark(schedule),
            after_generation=read,
        )
    except SourceError as error:
        if error.code != "empty_source":
            raise
        return Started(None, why_not=str(error), read=taken_key(found.job_id, found.generation))
    return Started(job.job_id)


def _named(jobs: JobStore, name: str) -> Job | Started:
    job = jobs.get(name)
    return job if job.state.final else _waits(job)


def _newest(
    jobs: JobStore, schedules: ScheduleStore, schedule: Schedule, source: str
) -> Job | Started:
    """Return the newest job of the schedule ``source`` that has ended.

    Where that was read, one that still runs is waited for."""
    running: Job | None = None
    for firing in schedules.firings(schedules.get(source).schedule_id):
        job = _job(jobs, firing.job_id)
        if job is None:
            continue
        if not job.state.final:
            running = running or job
            continue
        if _read_up_to(schedules, schedule, job) < job.generation:
            return job
        return _waits(running) if running is not None else Started(None, why_not=_was_read(job))
    if running is not None:
        return _waits(running)
    return Started(None, why_not=f"schedule {source} has started no job yet")


def _job(jobs: JobStore, job_id: str | None) -> Job | None:
    """Return the job; None where there was none, and where it was purged."""
    if job_id is None:
        return None
    try:
        return jobs.get(job_id)
    except JobNotFound:
        return None


def _read_up_to(schedules: ScheduleStore, schedule: Schedule, job: Job) -> int:
    """Return the last generation of a job whose outcomes this schedule has; 0 for none."""
    by_key = {taken_key(job.job_id, one): one for one in range(1, job.generation + 1)}
    return max((by_key[key] for key in schedules.taken(schedule, list(by_key))), default=0)


def _waits(job: Job) -> Started:
    return Started(
        None, why_not=f"job {job.job_key}, whose outcomes are read, is {job.state}", waits=True
    )


def _was_read(job: Job) -> str:
    return f"the outcomes of job {job.job_key} were read by an earlier job of this schedule"
