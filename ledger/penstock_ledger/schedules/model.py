"""The nouns of schedules: when a job is to start by itself, and what came of each time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from penstock_ledger.model import JobState

__all__ = [
    "TAKEN_MAX",
    "CatchUp",
    "Decision",
    "DriftRule",
    "Firing",
    "FiringOutcome",
    "NewSchedule",
    "OnDrift",
    "Schedule",
    "ScheduleState",
]

# files of one schedule that are remembered: some 100 MB in the database
TAKEN_MAX: Final = 1_000_000


class CatchUp(StrEnum):
    """The ways to treat planned times that passed while nothing could start their jobs."""

    SKIP = "skip"  # nothing; the next time counts
    ONCE = "once"  # one job, for the latest of them
    ALL = "all"  # one job for each, up to a limit, the oldest first


class OnDrift(StrEnum):
    """The ways to go on after a run whose figures have moved away from those of the run before."""

    REPORT = "report"  # say so; the next run starts
    PAUSE = "pause"  # say so, and pause the schedule


@dataclass(frozen=True, slots=True)
class DriftRule:
    """The rule by which each run of a schedule is compared with the run before."""

    then: OnDrift
    # a field of answers that are JSON, as `label` or `answer.kind`, whose values are counted
    field: str | None = None


class FiringOutcome(StrEnum):
    """The outcome of a planned time."""

    STARTED = "started"
    SKIPPED = "skipped"
    FAILED = "failed"
    # nothing that earlier jobs had not taken: no file of a folder, no outcome of another job
    NOTHING_NEW = "nothing_new"


class ScheduleState(StrEnum):
    """The state of a schedule, for people who watch all of them."""

    ACTIVE = "active"
    # a planned time has come, and longer ago than a start takes, but it has neither job nor
    # decision
    LATE = "late"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A schedule as it is added."""

    schedule_id: str
    name: str
    cron: str  # five fields
    timezone: str  # a name of the IANA database
    # What a submit would take: the job options as penstock_producer.job.spec.JobSpec has them, and
    # the source by the argument's name, {"source": "s3://bucket/key"}; {"new_files":
    # "s3://bucket/prefix/"} for a watched folder, and {"outcomes_of": {"schedule": "nightly",
    # "where": ["status=dead"]}} for those of another job.
    spec: dict[str, Any]
    source: dict[str, Any]
    catch_up: CatchUp
    overlap: bool  # start a job although an earlier one of this schedule has not ended
    next_at: float  # Unix seconds of the first planned time
    drift: DriftRule | None = None  # None: runs are not compared


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as the ledger holds it. Times are Unix seconds."""

    schedule_id: str
    name: str
    cron: str
    timezone: str
    spec: dict[str, Any]
    source: dict[str, Any]
    catch_up: CatchUp
    overlap: bool
    paused: bool
    created_at: float
    next_at: float  # the earliest planned time that is not decided yet; it only ever grows
    tries: int  # to start the job of ``next_at``
    retry_at: float | None  # when that is tried again
    waits_for: str | None  # why the job of ``next_at`` has not started yet, for people to read
    owner: str | None  # the process that is starting a job
    lease_until: float | None  # on the database server's clock
    drift: DriftRule | None = None


@dataclass(frozen=True, slots=True)
class Firing:
    """A planned time, and what came of it."""

    planned_at: float
    outcome: FiringOutcome
    job_id: str | None
    reason: str | None  # why there is no job, for people to read
    noted_at: float
    job_state: JobState | None = None  # of the job now; None where there is none, or it was purged
    # the comparison with the run before, as penstock_producer.schedules.drift writes it
    drift: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a planned time, as it is written."""

    planned_at: float
    outcome: FiringOutcome
    next_at: float  # the planned time after it
    job_id: str | None = None
    reason: str | None = None
    # what was looked at in vain, and is not looked at again: the key of another job's outcomes
    taken: bytes | None = None
