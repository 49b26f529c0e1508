"""A schedule is due at times, and then reads its files, or the outcomes of other jobs.

A cron expression in a time zone, as Unix seconds. What cron does when clocks change, as Debian's
does: a fixed time that does not exist that day (02:30 where 02:00 becomes 03:00) counts at the
first moment after the gap, and a fixed time that comes twice counts the first time only.
Expressions that begin with `*` in minute or hour go by real time: `*/30 * * * *` comes every half
hour, through gap and repetition."""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import cronsim
import orjson
from cronsim import CronSimError

from penstock_ledger import CatchUp, Job, Schedule
from penstock_producer.errors import ScheduleError, seen
from penstock_producer.pins import STARTED_BY

__all__ = [
    "CATCH_UP_MAX",
    "EVENTS",
    "NEW_FILES",
    "ON_TIME_S",
    "OUTCOMES_OF",
    "SOURCE",
    "WEBHOOK",
    "Due",
    "OutcomesOf",
    "Timetable",
    "due",
    "is_of",
    "job_key",
    "mark",
    "shown_source",
    "started_by",
    "taken_key",
]


CRON_MAX_CHARS: Final = 200
CRON_FIELDS: Final = 5
MINUTE_S: Final = 60.0  # no two planned times are closer
LOOKED_AT_ONCE: Final = 1_000  # planned times; of a longer sleep the second half is looked at first
FORMAT: Final = "%Y-%m-%d %H:%M"


class Timetable:
    """Raises ScheduleError for an expression or a zone that cannot be used."""

    def __init__(self, cron: str, timezone: str) -> None:
        self.cron = " ".join(cron.split())
        self._zone = _zone(timezone)
        if len(self.cron.split()) != CRON_FIELDS or len(self.cron) > CRON_MAX_CHARS:
            raise ScheduleError(
                f"{seen(cron)} is not a cron expression: write five fields (minute, hour, day of "
                "month, month, day of "
                'week), such as "0 1 * * *" for every night at one'
            )
        try:
            first = next(cronsim.CronSim(self.cron, datetime(2026, 1, 1, tzinfo=UTC)), None)
        # what the parser meets with odd fields
        except (CronSimError, AssertionError, ValueError) as error:
            raise ScheduleError(
                f"the cron expression {seen(cron)} is refused: {error}; correct that field"
            ) from None
        if first is None:
            raise ScheduleError(
                f"the cron expression {seen(cron)} names a day that never comes; correct day and "
                "month"
            )

    def after(self, at: float) -> float:
        """Return the first planned time later than ``at``."""
        return next(self._from(at))

    def latest(self, first: float, until: float, most: int) -> list[float]:
        """Return the last planned times from ``first`` to ``until``, at most ``most``.

        ``first`` is one of them; the oldest comes first.
        """
        found: deque[float] = deque([first], maxlen=most)  # those up to ``begin``
        # the answer begins between them: what lies there is halved by each look
        begin, end = (first, until)
        start = begin
        while True:
            some: deque[float] = deque(maxlen=most)
            is_last = self._look(start, until, some)
            if is_last and (start == begin or len(some) == most):
                return [*found, *some][-most:]
            if is_last:
                end = start  # too few behind it
            else:
                begin = some[-1]
                found.extend(some)
            start = (begin + end) / 2 if end - begin > MINUTE_S else begin

    def _look(self, start: float, until: float, found: deque[float]) -> bool:
        """Note the planned times after ``start``; return whether these are all to ``until``.

        No more than LOOKED_AT_ONCE are noted.
        """
        for planned in itertools.islice(self._from(start), LOOKED_AT_ONCE):
            if planned > until:
                return True
            found.append(planned)
        return False

    def shown(self, at: float) -> str:
        """Return a time as people read it, in the schedule's own zone."""
        moment = datetime.fromtimestamp(at, self._zone)
        return f"{moment:{FORMAT}} {moment:%Z}"

    def _from(self, at: float) -> Iterator[float]:
        for moment in cronsim.CronSim(self.cron, datetime.fromtimestamp(at, self._zone)):
            planned = moment.timestamp()
            # within an hour that comes twice, the first answer may be an hour too early
            if planned > at:
                yield planned


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    # a folder of the database, a path, not a text
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise ScheduleError(
            f"the time zone {seen(name)} is not known here; write one such as Europe/Berlin or UTC "
            "(where the system has no zones at all: pip install tzdata)"
        ) from None


# a start as late as this is not a missed one: a control process was replaced meanwhile
ON_TIME_S: Final = 300.0
CATCH_UP_MAX: Final = 24  # missed times that `all` starts a job for, the latest: a day of hours


@dataclass(frozen=True, slots=True)
class Due:
    """The next step of a schedule whose ``next_at`` has come."""

    start: bool  # the job of ``next_at``; else ``next_at``, and all before ``then``, are missed
    then: float  # what is planned after this step


def due(timetable: Timetable, policy: CatchUp, next_at: float, now: float) -> Due:
    """Return what is due once ``next_at`` has come: its job, or a skip of what was missed."""
    kept = _kept(timetable, policy, next_at, now)
    if not kept:
        return Due(start=False, then=timetable.after(now))
    if kept[0] > next_at:
        return Due(start=False, then=kept[0])
    return Due(start=True, then=timetable.after(next_at))


def _kept(timetable: Timetable, policy: CatchUp, next_at: float, now: float) -> list[float]:
    """Return the times, of those that have come, whose jobs are to start."""
    match policy:
        case CatchUp.ALL:
            return timetable.latest(next_at, now, CATCH_UP_MAX)
        case CatchUp.ONCE:
            return timetable.latest(next_at, now, 1)
        case CatchUp.SKIP:
            return [
                planned
                for planned in timetable.latest(next_at, now, 1)
                if now - planned <= ON_TIME_S
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
