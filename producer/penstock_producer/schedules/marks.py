"""What a schedule over the outcomes of other jobs reads.

It is made by `penstock schedule add --from-job J`, or `--from-schedule S`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

import orjson

from penstock_ledger import Job, Schedule
from penstock_producer.errors import ScheduleError
from penstock_producer.pins import STARTED_BY

__all__ = [
    "EVENTS",
    "NEW_FILES",
    "OUTCOMES_OF",
    "SOURCE",
    "WEBHOOK",
    "OutcomesOf",
    "is_of",
    "job_key",
    "mark",
    "shown_source",
    "started_by",
    "taken_key",
]


@dataclass(frozen=True, slots=True)
class OutcomesOf:
    """The outcomes of a job, or of a schedule's newest job that has ended, instead of a source.

    Each time takes what no earlier job of the schedule has: a job once, and of one that was
    replayed what the replay brought.
    """

    job: str | None = None  # an id or a key
    schedule: str | None = None  # a name
    where: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.job is None) == (self.schedule is None):
            raise ScheduleError(
                "name the job, or the schedule, whose outcomes are read, and not both"
            )

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        return cls(stored.get("job"), stored.get("schedule"), tuple(stored["where"]))

    def to_json(self) -> dict[str, Any]:
        name = {"schedule": self.schedule} if self.job is None else {"job": self.job}
        return {**name, "where": list(self.where)}

    def __str__(self) -> str:
        where = f", where {' and '.join(self.where)}" if self.where else ""
        newest = f"the newest job of schedule {self.schedule}"
        return f"outcomes of {newest if self.job is None else f'job {self.job}'}{where}"


SOURCE: Final = "source"  # of what a schedule submits: a path or URI that is read whole each time
NEW_FILES: Final = "new_files"  # one of which each job has the files that no earlier one has
# beside NEW_FILES: where notifications of new files come from, a queue's URL or
EVENTS: Final = "events"
WEBHOOK: Final = "webhook"  # bodies that are given to `Schedules.notify`
OUTCOMES_OF: Final = "outcomes_of"  # what other jobs ended with; see OutcomesOf

_KEY_BYTES: Final = 16


def job_key(schedule: Schedule) -> str:
    """Return the key of the job of ``next_at``: submitting it again is the same job."""
    return f"{schedule.name}@{_utc(schedule.next_at)}"


def mark(schedule: Schedule) -> dict[str, Any]:
    """Return the mark of the job of ``next_at``."""
    return {
        "schedule": schedule.name,
        "schedule_id": schedule.schedule_id,
        "planned_at": schedule.next_at,
    }


def is_of(job: Job, schedule: Schedule) -> bool:
    """Return whether the job was started by this schedule.

    A job that was started by hand, or by another schedule that had its name, is not.
    """
    return bool(job.source.get(STARTED_BY, {}).get("schedule_id") == schedule.schedule_id)


def shown_source(schedule: Schedule) -> str:
    """Return what is submitted, for people to read."""
    if OUTCOMES_OF in schedule.source:
        return str(OutcomesOf.of(schedule.source[OUTCOMES_OF]))
    watched = schedule.source.get(NEW_FILES)
    if watched is None:
        return str(schedule.source[SOURCE])
    events = schedule.source.get(EVENTS)
    return f"new files of {watched}" + (
        "" if events is None else f", by notifications from {events}"
    )


def started_by(job: Job) -> tuple[str, str] | None:
    """Return the schedule's name and the planned time (in UTC) of a job that started itself."""
    found = job.source.get(STARTED_BY)
    return None if found is None else (str(found["schedule"]), _utc(float(found["planned_at"])))


def taken_key(job_id: str, generation: int) -> bytes:
    """Return what a schedule remembers of the outcomes of a job that its own jobs have.

    No file has the same.
    """
    return hashlib.sha256(orjson.dumps(["job", job_id, generation])).digest()[:_KEY_BYTES]


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%MZ}"
