"""What a schedule over the outcomes of another job reads: `penstock schedule add --from-job J`, or
`--from-schedule S`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from penstock_producer.errors import ScheduleError

__all__ = ["OutcomesOf"]


@dataclass(frozen=True, slots=True)
class OutcomesOf:
    """Instead of a source: the outcomes of a job, or of the newest job of a schedule that has
    ended.

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
