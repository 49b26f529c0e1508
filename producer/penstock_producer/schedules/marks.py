"""How a job that started itself is known: by its key, and by a mark in what the ledger keeps of its source."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from penstock_ledger import Job, Schedule
from penstock_producer.pins import STARTED_BY

__all__ = ["NEW_FILES", "SOURCE", "is_of", "job_key", "mark", "shown_source", "started_by"]

SOURCE: Final = "source"  # of what a schedule submits: a path or URI that is read whole each time
NEW_FILES: Final = "new_files"  # one of which each job has the files that no earlier one has


def job_key(schedule: Schedule) -> str:
    """The key of the job of ``next_at``: submitting it again is the same job."""
    return f"{schedule.name}@{_utc(schedule.next_at)}"


def mark(schedule: Schedule) -> dict[str, Any]:
    """Of the job of ``next_at``."""
    return {"schedule": schedule.name, "schedule_id": schedule.schedule_id, "planned_at": schedule.next_at}


def is_of(job: Job, schedule: Schedule) -> bool:
    """Whether the job was started by this schedule, and not by hand or by another one that had its name."""
    return bool(job.source.get(STARTED_BY, {}).get("schedule_id") == schedule.schedule_id)


def shown_source(schedule: Schedule) -> str:
    """What is submitted, for people to read."""
    watched = schedule.source.get(NEW_FILES)
    return str(schedule.source[SOURCE]) if watched is None else f"new files of {watched}"


def started_by(job: Job) -> tuple[str, str] | None:
    """The schedule's name and the planned time (in UTC) of a job that started itself."""
    found = job.source.get(STARTED_BY)
    return None if found is None else (str(found["schedule"]), _utc(float(found["planned_at"])))


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%MZ}"
