"""Keeps the accounts of jobs with a budget right, and says how many of their documents are fed.

A control process gives Redis what SQL knows, and gives back what dead workers had reserved. Fed is
what the rest of the budget pays for at the mean cost so far; that the budget holds is not decided
here: workers reserve what each call may cost before they send it. What is fed beyond the budget
would only wait. Before the first costs are known only a few are fed, since a document may then be
estimated badly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Final

from penstock_ledger import BOUNDLESS, Account, BatchFigures, BudgetBook, TenantAccounts
from penstock_ledger.model import Job

log = logging.getLogger(__name__)

SPENT_S: Final = 5.0
"""Between two looks into SQL for what a job has spent; a worker that died between SQL and Redis has
counted it there only."""
STRAY_S: Final = 20.0
"""Between two looks for reservations of dead workers. Only what both find is given back, since a
worker that starts, or a Redis that was lost, may show one too few. With the lease of a worker that
makes a minute and a half at most."""


class Accounts:
    """The money of jobs and tenants, as the control thread sees it."""

    def __init__(self, book: BudgetBook, batches: BatchFigures, tenants: TenantAccounts) -> None:
        self._book, self._batches, self._tenants = book, batches, tenants
        # monotonic times of the latest looks into SQL, by job
        self._spent_at: dict[str, float] = {}
        # millionths of a dollar, as the latest look found them, by job
        self._known_spent: dict[str, int] = {}
        self._stray_at: dict[str, float] = {}
        self._stray: dict[str, dict[str, str]] = {}  # as the latest look found them
        self._limited: set[str] = set()  # jobs seen with a budget

    def budget_of_tenant(self, job: Job) -> float | None:
        return self._tenants.budget_of(job)

    def look(self, job: Job, budget_usd: float | None, tenant_usd: float | None) -> Account:
        """Return the account of a job, and set its budgets for the workers.

        ``budget_usd`` is the job's own, ``tenant_usd`` that of all jobs of its tenant."""
        job_id = job.job_id
        self._limited.add(job_id)
        now = time.monotonic()
        if not self._book.is_known(job_id):
            return self._look_with_sql(job, budget_usd, tenant_usd)
        spent_now = None
        if now - self._spent_at.get(job_id, -SPENT_S) >= SPENT_S:
            self._spent_at[job_id] = now
            spent_now = self._batches.spent(job_id)
        account = self._look(job, budget_usd, tenant_usd, spent_now)
        # Redis was lost since it said that it knows the job
        if account.spent < self._known_spent.get(job_id, 0):
            return self._look_with_sql(job, budget_usd, tenant_usd)
        self._known_spent[job_id] = account.spent
        if account.reserved:
            self._give_back_strays(job_id, now)
        return account

    def _look_with_sql(
        self, job: Job, budget_usd: float | None, tenant_usd: float | None
    ) -> Account:
        """Bring Redis what SQL knows of the job."""
        job_id = job.job_id
        self._spent_at[job_id] = time.monotonic()
        spent, batches = self._batches.spent(job_id), self._batches.may_cost(job_id)
        account = self._look(job, budget_usd, tenant_usd, spent, batches)
        self._known_spent[job_id] = account.spent
        return account

    def _look(
        self,
        job: Job,
        budget_usd: float | None,
        tenant_usd: float | None,
        spent: int | None,
        batches: Mapping[str, int] | None = None,
    ) -> Account:
        budget = BOUNDLESS if budget_usd is None else round(budget_usd * MICROUSD)
        if tenant_usd is None:
            return self._book.look(job.job_id, budget, spent=spent, batches=batches)
        return self._tenants.look(job, budget, tenant_usd, spent=spent, batches=batches)

    def spent_of(self, job_id: str) -> int:
        """Return what a job with a budget had spent at the latest look, in millionths."""
        return self._known_spent.get(job_id, 0)

    def lift(self, job_id: str, *, some_wait: bool) -> None:
        """Tell workers that the job has no budget, so that they reserve nothing for it.

        ``some_wait`` says that documents of it are parked: they may wait for a budget that another
        process saw.
        """
        if some_wait or job_id in self._limited:
            self._limited.discard(job_id)
            self._book.lift(job_id)

    def free_paused(self, job: Job) -> None:
        """Give back what dead workers have reserved for a paused job.

        Its account is not looked at, and so the reservations would keep other jobs of its tenant
        waiting.
        """
        if self._tenants.budget_of(job) is not None:
            self._give_back_strays(job.job_id, time.monotonic())

    def tried_again(self, job_id: str) -> None:
        self._book.tried_again(job_id)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._limited.intersection_update(live)
        for held in (self._spent_at, self._known_spent, self._stray_at, self._stray):
            for job_id in held.keys() - set(live):
                del held[job_id]

    def _give_back_strays(self, job_id: str, now: float) -> None:
        if now - self._stray_at.get(job_id, -STRAY_S) < STRAY_S:
            return
        self._stray_at[job_id] = now
        found, before = (
            self._book.stray(job_id, self._batches.tags_of(job_id)),
            self._stray.get(job_id, {}),
        )
        self._stray[job_id] = found
        dead = {name: entry for name, entry in found.items() if before.get(name) == entry}
        if dead:
            freed = self._book.give_back(job_id, dead) / MICROUSD
            log.warning(
                "job %s: %d calls or batches were under way in workers that died; what was "
                "reserved for them is given back, and up to %.4f USD may be billed for them that "
                "no account shows",
                job_id,
                len(dead),
                freed,
            )


MICROUSD = 1_000_000
FIRST_DOCUMENTS = 4  # under way at once until the first answers show what a document costs
GROWTH = 2  # at most so many times the finished documents are under way: a mean of few says little


def mean_cost(stats: Mapping[str, int]) -> float | None:
    """Return the USD per document so far; None before any has finished."""
    finished = stats.get("succeeded", 0) or stats.get("dead", 0)
    return stats.get("cost_microusd", 0) / MICROUSD / finished if finished else None


def affordable(left_usd: float, stats: Mapping[str, int], under_way: int) -> int:
    """Return how many documents may be fed beside those under way.

    ``left_usd`` is the budget without what is spent."""
    mean = mean_cost(stats)
    known = max(FIRST_DOCUMENTS, GROWTH * (stats.get("succeeded", 0) + stats.get("dead", 0)))
    # requests that are refused cost nothing, and say nothing
    paid_for = int(left_usd / mean + 1e-9) if mean else known
    return max(0, min(paid_for, known) - under_way)
