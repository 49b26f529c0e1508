"""What jobs have cost, by the calendar month (UTC) in which they were accepted; what is kept of those that are purged."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, delete, func, select

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import paid_beside, purged_costs, tallies

__all__ = ["Month", "cost_of", "keep_costs", "month_of", "sum_of"]


class Month(NamedTuple):
    name: str  # as 2026-11
    began: float  # Unix seconds
    ends: float  # the first moment that is not in it


def month_of(now: float) -> Month:
    """The calendar month in UTC that a moment (Unix seconds) lies in."""
    day = datetime.datetime.fromtimestamp(now, datetime.UTC)
    first = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (first + datetime.timedelta(days=32)).replace(day=1)
    return Month(f"{first:%Y-%m}", first.timestamp(), after.timestamp())


def keep_costs(db: Database, connection: Connection, tenant: str, month: Month, job_id: str) -> None:
    """Of a job that is being purged: what it has cost stays counted for its tenant. Doing it again changes nothing."""
    cost = 0
    for table in (tallies, paid_beside):
        gone = delete(table).where(table.c.job_id == job_id).returning(table.c.cost_microusd)
        cost += sum(connection.execute(gone).scalars())
    if cost:
        values = {"tenant": tenant, "month": month.name, "cost_microusd": cost}
        insert = db.insert(purged_costs).values(values)
        more = {"cost_microusd": purged_costs.c.cost_microusd + insert.excluded.cost_microusd}
        connection.execute(insert.on_conflict_do_update(index_elements=["tenant", "month"], set_=more))


def cost_of(connection: Connection, names: Collection[str]) -> int:
    """Of these jobs together, without what was kept of them when they were purged."""
    sums = [select(sum_of(table)).where(table.c.job_id.in_(names)) for table in (tallies, paid_beside)]
    return sum(int(connection.execute(query).scalar_one()) for query in sums)


def sum_of(table: Table) -> ColumnElement[int]:
    return func.coalesce(func.sum(table.c.cost_microusd), 0)
