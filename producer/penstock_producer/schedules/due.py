"""What is to be done about the planned times that have come: a pure function of timetable, policy
and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock_ledger import CatchUp
from penstock_producer.schedules.timetable import Timetable

__all__ = ["CATCH_UP_MAX", "ON_TIME_S", "Due", "due"]

ON_TIME_S: Final = (
    300.0  # a start as late as this is not a missed one: a control process was replaced meanwhile
)
CATCH_UP_MAX: Final = 24  # missed times that `all` starts a job for, the latest: a day of hours


@dataclass(frozen=True, slots=True)
class Due:
    """The next step of a schedule whose ``next_at`` has come."""

    start: bool  # the job of ``next_at``; else ``next_at``, and all before ``then``, are missed
    then: float  # what is planned after this step


def due(timetable: Timetable, policy: CatchUp, next_at: float, now: float) -> Due:
    """``next_at`` has come: start its job, or skip it and what else was missed."""
    kept = _kept(timetable, policy, next_at, now)
    if not kept:
        return Due(start=False, then=timetable.after(now))
    if kept[0] > next_at:
        return Due(start=False, then=kept[0])
    return Due(start=True, then=timetable.after(next_at))


def _kept(timetable: Timetable, policy: CatchUp, next_at: float, now: float) -> list[float]:
    """The times, of those that have come, whose jobs are to start."""
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
