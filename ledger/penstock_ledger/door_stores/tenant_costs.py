"""What a tenant's jobs have cost, out of sums that are kept with their outcomes."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Table, func, select

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import jobs, paid_beside, tallies

__all__ = ["TenantCosts"]

MICRO: Final = 1_000_000


class TenantCosts:
    def __init__(self, db: Database) -> None:
        self._db = db

    def usd_since(self, tenant: str, since: float) -> float:
        """Of jobs that were accepted at or after ``since`` (Unix seconds), and were not purged."""
        return self._db.read(
            lambda connection: sum(_of(connection, table, tenant, since) for table in (tallies, paid_beside)) / MICRO
        )


def _of(connection: Connection, table: Table, tenant: str, since: float) -> int:
    query = (
        select(func.coalesce(func.sum(table.c.cost_microusd), 0))
        .select_from(jobs.join(table, table.c.job_id == jobs.c.job_id))
        .where(jobs.c.tenant == tenant, jobs.c.created_at >= since)
    )
    return int(connection.execute(query).scalar_one())
