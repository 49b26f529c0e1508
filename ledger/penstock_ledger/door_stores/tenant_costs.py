"""What a tenant's jobs have cost, out of sums that are kept with their outcomes, and what they may
cost in a month.

A job belongs to the calendar month (UTC) in which it was accepted, however long it runs: so bills
have it, and `penstock costs`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Connection, func, select

from penstock_ledger.door_stores.api_keys import budget_of_keys
from penstock_ledger.model import JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import api_keys, jobs, purged_costs
from penstock_ledger.stores.account import cost_of_jobs, cost_of_tenant
from penstock_ledger.stores.month_costs import Month

__all__ = ["TenantBudgets", "TenantCosts"]

MICRO: Final = 1_000_000
CHUNK: Final = 500  # job ids in one query


class TenantBudgets:
    """US dollars that a tenant's jobs of a month may cost.

    The newest valid key of the tenant that names a budget says so, for all of its keys; where none
    is valid any more, the last one that was made does."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def of(self, tenant: str | None) -> float | None:
        """None for a tenant without a budget."""
        return None if tenant is None else self._read(api_keys.c.tenant == tenant).get(tenant)

    def all(self) -> dict[str, float]:
        """Of every tenant that has one."""
        return self._read(api_keys.c.tenant.is_not(None))

    def _read(self, which: ColumnElement[bool]) -> dict[str, float]:
        return self._db.read(lambda connection: budget_of_keys(connection, which))


class TenantCosts:
    def __init__(self, db: Database) -> None:
        self._db = db

    def usd_of(self, tenant: str, month: Month) -> float:
        """Of jobs that were accepted in this month, those that were purged since among them."""
        return self._db.read(lambda connection: _all(connection, tenant, month)) / MICRO

    def besides(
        self, tenant: str, month: Month, known: Collection[str], *, most: int | None = None
    ) -> tuple[int, list[str]]:
        """Those of ``known`` (job ids) that have ended, or were purged, ``most`` at a time; and
        what the jobs of the month have cost, in millionths of a dollar, without the others of
        ``known``. Never less than it was when it was asked for."""

        def look(connection: Connection) -> tuple[int, list[str]]:
            names = sorted(known)
            live = frozenset[str]().union(*(_live(connection, chunk) for chunk in _chunks(names)))
            ended = [name for name in names if name not in live][:most]
            others = sorted(set(names) - set(ended))
            cost = sum(cost_of_jobs(connection, chunk) for chunk in _chunks(others))
            return _all(connection, tenant, month) - cost, ended

        return self._db.read(look)


def _all(connection: Connection, tenant: str, month: Month) -> int:
    purged = select(func.coalesce(func.sum(purged_costs.c.cost_microusd), 0)).where(
        purged_costs.c.tenant == tenant, purged_costs.c.month == month.name
    )
    known = cost_of_tenant(connection, tenant, month.began, month.ends)
    # What a process of the release before purges meanwhile counts twice, and never not.
    return known + int(connection.execute(purged).scalar_one())


def _live(connection: Connection, names: Collection[str]) -> frozenset[str]:
    """Those of these jobs that have not ended."""
    ended = [state for state in JobState if state.final]
    query = select(jobs.c.job_id).where(jobs.c.job_id.in_(names), jobs.c.state.not_in(ended))
    return frozenset(connection.execute(query).scalars())


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + CHUNK] for start in range(0, len(names), CHUNK))
