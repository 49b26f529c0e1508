"""What the jobs of a tenant cost in a calendar month, and the sums of it that Redis gets."""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import redis
from sqlalchemy import ColumnElement, Connection, func, select

from penstock_ledger import keys
from penstock_ledger.door_stores.api_keys import budget_of_keys
from penstock_ledger.in_redis.budget_book import ENDED_MAX, Account, BudgetBook, TenantSeen
from penstock_ledger.model import Job, JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import api_keys, jobs, purged_costs
from penstock_ledger.stores.account import cost_of_jobs, cost_of_tenant

__all__ = ["Month", "TenantAccounts", "TenantBudgets", "TenantCosts", "month_of", "tenant_of_job"]


class Month(NamedTuple):
    name: str  # as 2026-11
    began: float  # Unix seconds
    ends: float  # the first moment that is not in it


def month_of(now: float) -> Month:
    """Return the calendar month in UTC that a moment (Unix seconds) lies in."""
    day = datetime.datetime.fromtimestamp(now, datetime.UTC)
    first = day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (first + datetime.timedelta(days=32)).replace(day=1)
    return Month(f"{first:%Y-%m}", first.timestamp(), after.timestamp())


MICRO: Final = 1_000_000
CHUNK: Final = 500  # job ids in one query


class TenantBudgets:
    """US dollars that a tenant's jobs of a month may cost.

    The newest valid key of the tenant that names a budget says so, for all of its keys; where none
    is valid any more, the last one that was made does."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def of(self, tenant: str | None) -> float | None:
        """Return the budget of a tenant; None for one without a budget."""
        return None if tenant is None else self._read(api_keys.c.tenant == tenant).get(tenant)

    def all(self) -> dict[str, float]:
        """Return the budget of every tenant that has one."""
        return self._read(api_keys.c.tenant.is_not(None))

    def _read(self, which: ColumnElement[bool]) -> dict[str, float]:
        return self._db.read(lambda connection: budget_of_keys(connection, which))


class TenantCosts:
    def __init__(self, db: Database) -> None:
        self._db = db

    def usd_of(self, tenant: str, month: Month) -> float:
        """Return what jobs that were accepted in this month have cost, purged ones included."""
        return self._db.read(lambda connection: _all(connection, tenant, month)) / MICRO

    def besides(
        self, tenant: str, month: Month, known: Collection[str], *, most: int | None = None
    ) -> tuple[int, list[str]]:
        """Return those of ``known`` (job ids) that have ended, or were purged, ``most`` at a time.

        And what the jobs of the month have cost, in millionths of a dollar, without the others of
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
    """Return those of these jobs that have not ended."""
    ended = [state for state in JobState if state.final]
    query = select(jobs.c.job_id).where(jobs.c.job_id.in_(names), jobs.c.state.not_in(ended))
    return frozenset(connection.execute(query).scalars())


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + CHUNK] for start in range(0, len(names), CHUNK))


BUDGETS_S: Final = 5.0  # for which the budgets of tenants are remembered
# after which the costs of a tenant's other jobs are read again: purges, and corrections by hand
BASE_S: Final = 30.0
TRIES: Final = 5  # other processes may bring a job of the same tenant meanwhile


class TenantAccounts:
    """Blocks. Of one thread, or of several: what is remembered may then be read once too often."""

    def __init__(self, db: Database, book: BudgetBook) -> None:
        self._budgets, self._costs, self._book = TenantBudgets(db), TenantCosts(db), book
        self._known: dict[str, float] = {}
        self._known_until = 0.0  # monotonic
        # monotonic times of the latest looks into SQL, by account
        self._read_at: dict[str, float] = {}

    def budget_of(self, job: Job) -> float | None:
        """Return US dollars that the job's tenant may spend in a month; None for no bound."""
        tenant = tenant_of_job(job)
        if tenant is None:
            return None
        if time.monotonic() >= self._known_until:
            self._known, self._known_until = self._budgets.all(), time.monotonic() + BUDGETS_S
        return self._known.get(tenant)

    def look(
        self,
        job: Job,
        budget: int,
        tenant_usd: float,
        *,
        spent: int | None = None,
        batches: Mapping[str, int] | None = None,
    ) -> Account:
        """Do ``BudgetBook.look`` at a job whose tenant has a budget in the month of the job.

        That is ``tenant_usd``. Raises redis.RedisError."""
        tenant, month = tenant_of_job(job), month_of(job.created_at)
        assert tenant is not None, "only tenants have budgets"
        name, now = keys.tenant_month(tenant, month.name), time.monotonic()
        seen: TenantSeen | None = None
        for attempt in range(TRIES):
            if attempt or now - self._read_at.get(name, -BASE_S) >= BASE_S:
                seen = self._seen(job, tenant, month, name)
                self._read_at[name] = now
            account = self._book.look_with_tenant(
                job.job_id,
                budget,
                (name, round(tenant_usd * MICRO)),
                seen,
                spent=spent,
                batches=batches,
            )
            if account is not None:
                return account
        raise redis.ConnectionError(
            f"the account of a tenant changes faster than it is read: {name}"
        )

    def _seen(self, job: Job, tenant: str, month: Month, name: str) -> TenantSeen:
        turn, known = self._book.jobs_of_tenant(name)
        base, ended = self._costs.besides(tenant, month, known | {job.job_id}, most=ENDED_MAX)
        return TenantSeen(turn, base, [one for one in ended if one != job.job_id])


def tenant_of_job(job: Job) -> str | None:
    tenant = job.spec.get("tenant")
    return None if tenant is None else str(tenant)
