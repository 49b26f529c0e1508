"""A job gives way to its deadline or budget by steps, which are noted and never taken back.

The first process that sees that the moment of a step has come writes its entry, in the table
`meta`; all others, and those that come later, read it. Purging the job deletes its entries.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, delete, select

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import meta

__all__ = ["StepTaken", "StepsTaken"]

STEPS_READ: Final = 9  # of one job, more than one may have
_NAME: Final = "step:{}:{}"  # the job's id, and the number of the step


class StepTaken(NamedTuple):
    """A step that a job has taken."""

    number: int  # from 1 on, as in the job's spec
    at: float  # Unix seconds
    of: str  # deadline or budget
    share: float  # that had come when it was noticed, at least


class StepsTaken:
    """Of all jobs."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def take(self, job_id: str, step: StepTaken) -> bool:
        """Note a step; False where it was noted already, which stays as it was."""
        entry = {
            "name": _NAME.format(job_id, step.number),
            "value": orjson.dumps(step._asdict()).decode(),
        }
        first = self._db.insert(meta).values(entry).on_conflict_do_nothing()
        return self._db.write(lambda connection: connection.execute(first).rowcount) == 1

    def latest(self, job_id: str) -> int:
        """Return the number of the last step in the job's spec that was taken; 0 for none."""
        return max((step.number for step in self.of(job_id)), default=0)

    def of(self, job_id: str) -> list[StepTaken]:
        """Return the steps that a job has taken, in the order of its spec."""
        rows = self._db.rows(select(meta.c.value).where(meta.c.name.in_(_names(job_id))))
        found: list[dict[str, Any]] = [orjson.loads(row.value) for row in rows]
        steps = [StepTaken(**{name: one[name] for name in StepTaken._fields}) for one in found]
        return sorted(steps)


def forget_steps(connection: Connection, job_id: str) -> None:
    connection.execute(delete(meta).where(meta.c.name.in_(_names(job_id))))


def _names(job_id: str) -> list[str]:
    return [_NAME.format(job_id, number) for number in range(1, STEPS_READ + 1)]
