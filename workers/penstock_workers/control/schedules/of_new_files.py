"""Starts the job of a planned time over a watched folder or prefix.

Its source is what is listed there, or what notifications have named."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from penstock_ledger import (
    FiringOutcome,
    JobNotFound,
    JobStore,
    NoticedStore,
    Schedule,
    ScheduleStore,
)
from penstock_ledger.schedules.model import TAKEN_MAX
from penstock_producer import Producer, SourceError
from penstock_producer.pins import FILES
from penstock_producer.schedules.events import collect
from penstock_producer.schedules.timetable import EVENTS, NEW_FILES, job_key, mark
from penstock_workers.control.schedules.starts import Started

log = logging.getLogger(__name__)

# of reading and checking a source; a control process has few threads for it
START_TIMEOUT_S: Final = 3_600.0
FILES_MAX: Final = 1_000  # of one job
_LOOKED: Final = (FiringOutcome.STARTED, FiringOutcome.NOTHING_NEW)


def start_new_files(
    producer: Producer,
    jobs: JobStore,
    schedules: ScheduleStore,
    noticed: NoticedStore,
    schedule: Schedule,
) -> Started:
    """Submit the files that no earlier job of this schedule has. Raises what a submit raises."""
    _make_room(producer, schedules, schedule)
    if EVENTS not in schedule.source:
        return _submitted(producer, schedules, schedule, None)
    counts = collect(noticed, schedule)
    said = "".join(
        f"; {number} {outcome} by notifications" for outcome, number in sorted(counts.items())
    )
    if _lists(jobs, schedules, schedule):
        return _submitted(producer, schedules, schedule, None, said)
    waiting = noticed.waiting(schedule.schedule_id, FILES_MAX)
    if not waiting:
        return Started(None, why_not=f"no new file{said}")
    started = _submitted(producer, schedules, schedule, [one.name for one in waiting], said)
    noticed.forget(schedule.schedule_id, waiting)
    return started


def _submitted(
    producer: Producer,
    schedules: ScheduleStore,
    schedule: Schedule,
    among: Sequence[str] | None,
    said: str = "",
) -> Started:
    job, unsettled = producer.submit_new_files(
        schedule.source[NEW_FILES],
        schedule.spec,
        partial(schedules.taken, schedule),
        job_key=job_key(schedule),
        among=among,
        timeout_s=START_TIMEOUT_S,
        started_by=mark(schedule),
    )
    if job is not None:
        return Started(job.job_id)
    why_not = "no new file"
    if unsettled:
        why_not += (
            f"; {unsettled} were changed seconds ago, may still be written, and wait for the next "
            "time"
        )
    return Started(None, why_not=why_not + said)


def _lists(jobs: JobStore, schedules: ScheduleStore, schedule: Schedule) -> bool:
    """Return whether a schedule that takes notifications looks at the whole place this time.

    It does the first time, the first time of each day (UTC), since a notification may be lost, and
    once more after a job that had all the files that a job may have.
    """
    looked = (one for one in schedules.firings(schedule.schedule_id) if one.outcome in _LOOKED)
    last = next(looked, None)
    if last is None or _day(last.planned_at) != _day(schedule.next_at):
        return True
    try:
        source: Mapping[str, object] = (
            jobs.get(last.job_id).source if last.job_id is not None else {}
        )
    except JobNotFound:
        return False
    files = source.get(FILES)
    return isinstance(files, list) and len(files) >= FILES_MAX


def _day(at: float) -> int:
    return datetime.fromtimestamp(at, UTC).toordinal()


def _make_room(producer: Producer, schedules: ScheduleStore, schedule: Schedule) -> None:
    """Forget taken files that are there no more, if their number is at the limit.

    Raises SourceError where all of them are there."""
    if schedules.has_taken(schedule.schedule_id) < TAKEN_MAX:
        return
    forgotten = 0
    taken_between = partial(schedules.taken_between, schedule.schedule_id)
    for gone in producer.gone_files(schedule.source[NEW_FILES], taken_between):
        schedules.forget_taken(schedule.schedule_id, gone)
        forgotten += len(gone)
    if forgotten == 0:
        raise SourceError(
            "too_many_files",
            f"jobs of this schedule have {TAKEN_MAX:,} files of {schedule.source[NEW_FILES]}, the "
            "most that are remembered, and all of them still exist; move away those that are done",
        )
    log.warning("schedule %s: forgot %d files that do not exist any more", schedule.name, forgotten)
