"""The table `meta` has facts about this database as a whole, and the steps that jobs have taken."""

from __future__ import annotations

import secrets
import uuid
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection, select

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import meta

_EPOCH = "epoch"
_SESSION_SECRET = "session_secret"  # noqa: S105  # the name of a row


class Meta:
    """Facts about this database: its epoch is the sentinel that Redis holds for it.

    A Redis without it has lost what it held."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def epoch(self) -> str:
        """Return the epoch; the first caller creates it."""
        return self._made_once(_EPOCH, uuid.uuid4().hex)

    def session_secret(self) -> str:
        """Return what the HTTP doors sign sessions with, all processes the same."""
        return self._made_once(_SESSION_SECRET, secrets.token_urlsafe(32))

    def _made_once(self, name: str, new: str) -> str:
        return self._read(name) or self._db.write(
            lambda connection: self._create(connection, name, new)
        )

    def _read(self, name: str) -> str | None:
        query = select(meta.c.value).where(meta.c.name == name)
        return self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())

    def _create(self, connection: Connection, name: str, value: str) -> str:
        connection.execute(
            self._db.insert(meta).values(name=name, value=value).on_conflict_do_nothing()
        )
        return str(connection.execute(select(meta.c.value).where(meta.c.name == name)).scalar_one())


STEPS_READ: Final = 9  # of one job, more than one may have
_NAME: Final = "step:{}:{}"  # the job's id, and the number of the step; a purge deletes them


class StepTaken(NamedTuple):
    """A step by which a job has given way to its deadline or budget."""

    number: int  # from 1 on, as in the job's spec
    at: float  # Unix seconds
    of: str  # deadline or budget
    share: float  # that had come when it was noticed, at least


class StepsTaken:
    """Steps of all jobs: an entry each, which is never taken back.

    The first process that sees that the moment of a step has come writes it; all others, and those
    that come later, read it. Purging the job deletes its entries."""

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


def _names(job_id: str) -> list[str]:
    return [_NAME.format(job_id, number) for number in range(1, STEPS_READ + 1)]
