"""Accounts of jobs whose tenant has a budget: what SQL knows of the tenant's month is brought to
Redis, where calls reserve.

A job that has not ended counts in Redis by what it has spent and reserved; all others of the month
count by their costs in SQL.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import redis

from penstock_ledger import keys
from penstock_ledger.door_stores.tenant_costs import TenantBudgets, TenantCosts
from penstock_ledger.in_redis.budget_book import ENDED_MAX, Account, BudgetBook, TenantSeen
from penstock_ledger.model import Job
from penstock_ledger.sql.database import Database
from penstock_ledger.stores.month_costs import Month, month_of

__all__ = ["TenantAccounts", "tenant_of_job"]

MICRO: Final = 1_000_000
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
        self._read_at: dict[
            str, float
        ] = {}  # monotonic times of the latest looks into SQL, by account

    def budget_of(self, job: Job) -> float | None:
        """US dollars that the tenant of this job may spend in a month; None for no bound."""
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
        """``BudgetBook.look`` at a job whose tenant may spend ``tenant_usd`` in the month of the
        job. Raises redis.RedisError."""
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
