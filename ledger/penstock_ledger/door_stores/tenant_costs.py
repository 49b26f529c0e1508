"""What a tenant's jobs have cost, out of sums that are kept with their outcomes, and what they may cost in a month.

A job belongs to the calendar month (UTC) in which it was accepted, however long it runs: so bills have it, and `penstock costs`.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection
from typing import Final, NamedTuple

import orjson
from sqlalchemy import ColumnElement, Connection, Table, func, select

from penstock_ledger.model import JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import api_keys, jobs, paid_beside, tallies

__all__ = ["Month", "TenantBudgets", "TenantCosts", "month_of"]

MICRO: Final = 1_000_000
CHUNK: Final = 500  # job ids in one query
_WITHOUT: Final = '%"budget_usd":null%'  # the limits of a key that names no budget


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


class TenantBudgets:
    """US dollars that a tenant's jobs of a month may cost. The newest valid key of the tenant that names a budget says so, for
    all of its keys; where none is valid any more, the last one that was made does."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def of(self, tenant: str | None) -> float | None:
        """None for a tenant without a budget."""
        return None if tenant is None else self._read(api_keys.c.tenant == tenant).get(tenant)

    def all(self) -> dict[str, float]:
        """Of every tenant that has one."""
        return self._read(api_keys.c.tenant.is_not(None))

    def _read(self, which: ColumnElement[bool]) -> dict[str, float]:
        columns = api_keys.c
        query = (
            select(columns.tenant, columns.limits, columns.expires_at, columns.revoked_at)
            .where(which, columns.limits.not_like(_WITHOUT))
            .order_by(columns.created_at, columns.key_id)
        )
        found: dict[bool, dict[str, float]] = {False: {}, True: {}}  # by whether the key is valid
        for row in self._db.read(lambda connection: connection.execute(query).all()):
            budget = orjson.loads(row.limits).get("budget_usd")
            if budget is not None:
                is_valid = row.revoked_at is None and (row.expires_at is None or time.time() < row.expires_at)
                found[is_valid][row.tenant] = float(budget)
        return {**found[False], **found[True]}


class TenantCosts:
    def __init__(self, db: Database) -> None:
        self._db = db

    def usd_of(self, tenant: str, month: Month) -> float:
        """Of jobs that were accepted in this month, and were not purged."""
        return self._db.read(lambda connection: _all(connection, tenant, month)) / MICRO

    def besides(self, tenant: str, month: Month, known: Collection[str]) -> tuple[int, list[str]]:
        """What its jobs of this month have cost, without those of ``known`` (job ids) that have not ended, in millionths of a
        dollar; and those of ``known`` that have ended, or were purged. Never less than it was when it was asked for."""

        def look(connection: Connection) -> tuple[int, list[str]]:
            names, live = sorted(known), dict[str, int]()
            for start in range(0, len(names), CHUNK):
                live.update(_live(connection, names[start : start + CHUNK]))
            return _all(connection, tenant, month) - sum(live.values()), [name for name in names if name not in live]

        return self._db.read(look)


def _all(connection: Connection, tenant: str, month: Month) -> int:
    which = (jobs.c.tenant == tenant, jobs.c.created_at >= month.began, jobs.c.created_at < month.ends)
    total = 0
    for table in (tallies, paid_beside):
        query = select(_sum(table)).select_from(jobs.join(table, table.c.job_id == jobs.c.job_id)).where(*which)
        total += int(connection.execute(query).scalar_one())
    return total


def _live(connection: Connection, names: Collection[str]) -> dict[str, int]:
    """Those of these jobs that have not ended, and what each has cost."""
    ended = [state for state in JobState if state.final]
    query = select(jobs.c.job_id).where(jobs.c.job_id.in_(names), jobs.c.state.not_in(ended))
    found = dict.fromkeys(connection.execute(query).scalars(), 0)
    for table in (tallies, paid_beside):
        sums = select(table.c.job_id, _sum(table)).where(table.c.job_id.in_([*found])).group_by(table.c.job_id)
        for job_id, cost in connection.execute(sums):
            found[job_id] += int(cost)
    return found


def _sum(table: Table) -> ColumnElement[int]:
    return func.coalesce(func.sum(table.c.cost_microusd), 0)
