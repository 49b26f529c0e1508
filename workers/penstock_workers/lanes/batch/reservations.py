"""What provider batches may cost, in the budget of their job: reserved before each is created,
beside the calls of other lanes.

What is spent is given with each reservation, as SQL has it: it counts what documents cost that wait
for another batch, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import redis

from penstock_ledger import (
    BOUNDLESS,
    Account,
    BudgetBook,
    Job,
    OutcomeStore,
    ProviderBatch,
    ProviderBatchStore,
    TenantAccounts,
    month_of,
    tenant_of_job,
)
from penstock_producer.prices.spent_budget import spent_budget, spent_tenant_budget
from penstock_workers.errors import PricesMissing

MICROUSD: Final = 1_000_000  # in a dollar
TRIES: Final = 3  # of giving Redis a budget: it is lost between two calls once in a while


class Room(NamedTuple):
    """The answer of an account."""

    is_reserved: bool
    account: Account
    is_tenants: bool  # whether the tenant's budget is the one with less room

    @property
    def may_grow(self) -> bool:
        """Whether something is under way that may leave some of what is reserved for it."""
        tenant = self.account.tenant
        return bool(
            tenant.reserved if self.is_tenants and tenant is not None else self.account.reserved
        )


class Reservations:
    """Called in threads."""

    def __init__(
        self,
        book: BudgetBook,
        batches: ProviderBatchStore,
        outcomes: OutcomeStore,
        tenants: TenantAccounts,
    ) -> None:
        self._book, self._batches, self._outcomes, self._tenants = book, batches, outcomes, tenants

    def bound(self, job: Job, budget_usd: float | None) -> bool:
        """Whether the job, or its tenant, has a budget."""
        return budget_usd is not None or self._tenants.budget_of(job) is not None

    def reserve(self, job: Job, batch: ProviderBatch, budget_usd: float | None) -> Room | None:
        """What the batch may cost; doing it again changes nothing.

        None where neither the job nor its tenant has a budget. Raises redis.RedisError, and
        PricesMissing where the tenant has one and the price is not known."""
        tenant_usd = self._tenants.budget_of(job)
        if budget_usd is None and tenant_usd is None:
            return None
        if tenant_usd is not None and not batch.may_cost_microusd:
            raise PricesMissing(batch.provider, batch.model, tenant_usd, tenant_of_job(job))
        budget = BOUNDLESS if budget_usd is None else round(budget_usd * MICROUSD)
        spent = self._batches.spent(job.job_id)
        for _ in range(TRIES):
            found = self._book.reserve_batch(
                job.job_id, budget, batch.tag, batch.may_cost_microusd, spent=spent
            )
            if found is not None and (found[1].tenant is not None) == (tenant_usd is not None):
                return Room(*found, is_tenants=_is_tenants(found[1], budget))
            self._look(job, budget, tenant_usd, spent)
        raise redis.ConnectionError("Redis forgets a job's budget as soon as it has it")

    def _look(self, job: Job, budget: int, tenant_usd: float | None, spent: int) -> None:
        batches = self._batches.may_cost(job.job_id)
        if tenant_usd is None:
            self._book.look(job.job_id, budget, spent=spent, batches=batches)
        else:
            self._tenants.look(job, budget, tenant_usd, spent=spent, batches=batches)

    def end(self, batch: ProviderBatch) -> None:
        """Nothing of it is at the provider any more."""
        self._book.end_batch(batch.job_id, batch.tag, spent=self._batches.spent(batch.job_id))

    def why(self, job: Job, budget_usd: float | None, room: Room, batch: ProviderBatch) -> str:
        """The job pauses before this batch."""
        counts = self._outcomes.counts(job.job_id)
        finished = counts.succeeded + counts.dead
        left = None if job.total is None else max(0, job.total - finished)
        mean_usd = counts.cost_microusd / MICROUSD / finished if finished else None
        next_usd, next_is = (
            batch.may_cost_microusd / MICROUSD,
            f"the next batch of {batch.requests} documents",
        )
        tenant = room.account.tenant
        if tenant is not None and (room.is_tenants or budget_usd is None):
            return spent_tenant_budget(
                str(tenant_of_job(job)),
                month_of(job.created_at).name,
                budget_usd=tenant.budget / MICROUSD,
                spent_usd=tenant.spent / MICROUSD,
                left=left,
                mean_usd=mean_usd,
                next_usd=next_usd,
                next_is=next_is,
                next_documents=batch.requests,
            )
        assert budget_usd is not None, "a budget that is not the tenant's is the job's own"
        return spent_budget(
            job.job_key,
            budget_usd=budget_usd,
            spent_usd=room.account.spent / MICROUSD,
            left=left,
            mean_usd=mean_usd,
            next_usd=next_usd,
            next_is=next_is,
            next_documents=batch.requests,
        )


def _is_tenants(account: Account, budget: int) -> bool:
    tenant = account.tenant
    return tenant is not None and tenant.budget - tenant.committed < budget - account.committed
