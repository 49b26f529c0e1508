"""Rows that have a cursor and one leader at a time: feeds, and the shards of feeds that are split.

A lease runs on the database's clock. The fence grows with every change of owner and with every
rewind, so a feeder that was frozen in between cannot move the cursor afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Table, bindparam, select, update

from penstock_ledger.model import JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import jobs

Name = tuple[str | int, ...]  # of a row: the values of its key


class Moved(NamedTuple):
    """Where a cursor goes, and that of whom."""

    owner: str
    fence: int
    cursor: str  # JSON
    exhausted: bool


class Leases:
    """The statements for one table, built once: putting one together costs more than what the
    database does with it."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._key = [column.name for column in table.primary_key.columns]
        its = [table.c[name] == bindparam(f"its_{name}") for name in self._key]
        led = [*its, table.c.owner == bindparam("by"), table.c.fence == bindparam("its_fence")]
        self._locked = select(table).where(*its).with_for_update()
        self._lease = (
            update(table)
            .where(*its)
            .values(
                owner=bindparam("by"), lease_until=bindparam("to"), fence=bindparam("new_fence")
            )
        )
        self._advance = (
            update(table).where(*led).values(cursor=bindparam("to"), exhausted=bindparam("read"))
        )
        self._release = update(table).where(*led).values(owner=None, lease_until=None)

    def lease(
        self,
        connection: Connection,
        database: Database,
        names: Sequence[Name],
        owner: str,
        ttl_s: float,
    ) -> Iterator[tuple[Row[Any], int]]:
        """Become or stay the leader; the rows as they were, and their fences from now on.

        Rows that another process leads, or that do not exist, are left out."""
        for name in sorted(names):  # in one order, so that two processes do not wait for each other
            row = connection.execute(self._locked, self._its(name)).one_or_none()
            if row is None:
                continue
            now = database.now(connection)
            if row.owner not in (None, owner) and row.lease_until > now:
                continue
            fence = row.fence if row.owner == owner else row.fence + 1
            connection.execute(
                self._lease, self._its(name) | {"by": owner, "to": now + ttl_s, "new_fence": fence}
            )
            yield row, fence

    def renew(self, connection: Connection, database: Database, owner: str, ttl_s: float) -> None:
        """Stay the leader of what ``owner`` leads in jobs that run or are cancelled."""
        now, columns = database.clock(), self._table.c
        of_live = select(jobs.c.job_id).where(
            jobs.c.state.in_((JobState.RUNNING, JobState.CANCELLING))
        )
        connection.execute(
            update(self._table)
            .where(columns.job_id.in_(of_live))
            .where(columns.owner == owner, columns.lease_until > now)
            .values(lease_until=now + ttl_s)
        )

    def release(self, connection: Connection, name: Name, owner: str, fence: int) -> None:
        """Nothing happens when ``owner`` no longer leads it."""
        connection.execute(self._release, self._its(name) | {"by": owner, "its_fence": fence})

    def advance(self, connection: Connection, name: Name, to: Moved) -> bool:
        """False when another process leads it, or it was rewound."""
        values = {"by": to.owner, "its_fence": to.fence, "to": to.cursor, "read": to.exhausted}
        return connection.execute(self._advance, self._its(name) | values).rowcount == 1

    def rewind(self, connection: Connection, job_id: str, cursor: Any) -> None:
        """All rows of a job start at ``cursor`` again (a text or a column), and their leaders must
        lease them anew."""
        columns = self._table.c
        back = {
            "exhausted": False,
            "owner": None,
            "lease_until": None,
            "fence": columns.fence + 1,
            "cursor": cursor,
        }
        connection.execute(update(self._table).where(columns.job_id == job_id).values(back))

    def _its(self, name: Name) -> dict[str, Any]:
        return {f"its_{column}": value for column, value in zip(self._key, name, strict=True)}
