"""The jobs of provider batches allow them to go on, as the latest look has it, and to spend.

What a batch may cost is reserved in the budget of its job before it is created, beside the calls of
other lanes. What is spent is given with each reservation, as SQL has it: it counts what documents
cost that wait for another batch, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

import redis

from penstock_ledger import (
    BOUNDLESS,
    Account,
    BudgetBook,
    Job,
    JobNotFound,
    JobState,
    JobStore,
    OutcomeStore,
    ProviderBatch,
    ProviderBatchStore,
    RedisLedger,
    StepsTaken,
    TenantAccounts,
    month_of,
    tenant_of_job,
)
from penstock_ledger.reasons import Reason
from penstock_producer.job.lanes import packs
from penstock_producer.job.spec import JobSpec
from penstock_producer.prices import spent_budget, spent_tenant_budget
from penstock_workers.errors import PricesMissing
from penstock_workers.item.job_view import JobView
from penstock_workers.item.run.reading import JobBook


class Standing(Enum):
    """The actions that a job lets its batches do."""

    RUNS = "runs"
    # its job goes on in another lane: what is at the provider is cancelled, and what was answered
    # is kept
    LEAVES = "leaves"
    WAITS = "waits"  # paused: nothing new goes to the provider; what is there is collected
    # cancelled, failed or purged: what is at the provider is cancelled, and what was answered is
    # kept
    ENDS = "ends"


class Jobs:
    """The jobs of the lane as this worker knows them, on the event loop."""

    def __init__(self, jobs: JobStore, hot: RedisLedger, views: JobBook, steps: StepsTaken) -> None:
        self._jobs, self._hot, self._views, self._steps = jobs, hot, views, steps
        self._live: dict[str, Job] = {}
        self._turns: dict[str, asyncio.Event] = {}
        self._specs: dict[str, tuple[str, JobSpec]] = {}
        self._left: Mapping[str, float] = {}
        self._moved: Collection[str] = ()

    def note(
        self,
        live: Collection[Job],
        left: Mapping[str, float] | None = None,
        moved: Collection[str] = (),
    ) -> None:
        """Take all jobs that are not over from a look.

        ``left``: when those that have ever left the lane did so last; ``moved``: those that have
        ever left any lane."""
        self._left, self._moved = left or {}, moved
        self._know({job.job_id: job for job in live})
        self._specs = {job_id: spec for job_id, spec in self._specs.items() if job_id in self._live}

    def spec(self, job: Job) -> JobSpec:
        known = self._specs.get(job.job_id)
        if known is None or known[0] != job.digest:
            known = self._specs[job.job_id] = (job.digest, JobSpec.accepted(job.spec))
        return known[1]

    def standing(self, job_id: str, packed_at: float | None = None) -> Standing:
        """Return where a job stands, for a batch that was packed at ``packed_at``.

        One from before its job left the lane is given up, even where the job has come back: its
        documents may be elsewhere.
        """
        job = self._live.get(job_id)
        if job is None or job.state is JobState.CANCELLING:
            return Standing.ENDS
        if self.has_left(job_id, packed_at):
            return Standing.LEAVES
        return Standing.WAITS if job.state is JobState.PAUSED else Standing.RUNS

    def has_left(self, job_id: str, packed_at: float | None = None) -> bool:
        """Return whether a live job is in another lane, or was since ``packed_at``."""
        job = self._live.get(job_id)
        if job is None:
            return False
        return not packs(job.lane) or (
            packed_at is not None and packed_at < self._left.get(job_id, 0.0)
        )

    def has_moved(self, job_id: str) -> bool:
        """Return whether a job has ever left a lane, this one or another."""
        return job_id in self._moved

    def turn(self, job_id: str) -> asyncio.Event:
        """Set as soon as its standing is another one than now."""
        return self._turns.setdefault(job_id, asyncio.Event())

    def _know(self, live: dict[str, Job]) -> None:
        before = {job_id: self.standing(job_id) for job_id in self._turns}
        self._live = live
        for job_id, was in before.items():
            if self.standing(job_id) is not was:
                self._turns.pop(job_id).set()
            elif job_id not in live:
                del self._turns[job_id]  # it is over, and stays so

    async def look_again(self, job_id: str) -> Standing:
        """Read a job anew, and return its standing."""
        job: Job | None = None
        with contextlib.suppress(JobNotFound):
            job = await asyncio.to_thread(self._jobs.get, job_id)
        self._know(
            self._besides(job_id)
            | ({job_id: job} if job is not None and not job.state.final else {})
        )
        return self.standing(job_id)

    async def look_if_new(self, job_id: str) -> None:
        """Read a job that the latest look did not have.

        It may be over, or younger than that look, and then nothing of it may be cancelled."""
        if job_id not in self._live:
            await self.look_again(job_id)

    def poll_s(self, job_id: str) -> float | None:
        """Return how often the job wants its batches looked at.

        None: as the worker's settings have it."""
        job = self._live.get(job_id)
        return None if job is None else self.spec(job).batch_poll_s

    async def get(self, job_id: str) -> Job | None:
        """Return the job; None for one that was purged."""
        if job_id in self._live:
            return self._live[job_id]
        try:
            return await asyncio.to_thread(self._jobs.get, job_id)
        except JobNotFound:
            return None

    async def view(self, job_id: str, endpoint: str) -> JobView | None:
        """As documents of a batch see it; None for a job that was purged."""
        job = await self.get(job_id)
        if job is None:
            return None
        return await self._views.get(
            job_id, None if endpoint == self.spec(job).endpoint else endpoint
        )

    async def step(self, job_id: str) -> int:
        """Return the latest step of its `degrade` that a job has taken; 0 before the first."""
        job = self._live.get(job_id)
        if job is None or not self.spec(job).degrade:
            return 0
        return await asyncio.to_thread(self._steps.latest, job_id)

    async def stop(
        self, job_id: str, to: JobState, why: Reason, resume_at: float | None = None
    ) -> None:
        """Pause or fail a running job.

        ``resume_at``: when a pause ends by itself."""
        moved = await asyncio.to_thread(
            lambda: self._jobs.set_state(
                job_id, to, why=why, expect={JobState.RUNNING}, resume_at=resume_at
            )
        )
        if moved:
            await asyncio.to_thread(self._hot.set_job_state, job_id, to)
            job = self._live.get(job_id)
            goes_on = {} if job is None or to.final else {job_id: replace(job, state=to)}
            self._know(self._besides(job_id) | goes_on)

    def _besides(self, job_id: str) -> dict[str, Job]:
        return {name: job for name, job in self._live.items() if name != job_id}


MICROUSD: Final = 1_000_000  # in a dollar
TRIES: Final = 3  # of giving Redis a budget: it is lost between two calls once in a while


class Room(NamedTuple):
    """The answer of an account."""

    is_reserved: bool
    account: Account
    is_tenants: bool  # whether the tenant's budget is the one with less room

    @property
    def may_grow(self) -> bool:
        """Return whether something is under way that may leave some of what is reserved for it."""
        tenant = self.account.tenant
        return bool(
            tenant.reserved if self.is_tenants and tenant is not None else self.account.reserved
        )


class Reservations:
    """Reserves what batches may cost, in threads."""

    def __init__(
        self,
        book: BudgetBook,
        batches: ProviderBatchStore,
        outcomes: OutcomeStore,
        tenants: TenantAccounts,
    ) -> None:
        self._book, self._batches, self._outcomes, self._tenants = book, batches, outcomes, tenants

    def bound(self, job: Job, budget_usd: float | None) -> bool:
        """Return whether the job, or its tenant, has a budget."""
        return budget_usd is not None or self._tenants.budget_of(job) is not None

    def reserve(self, job: Job, batch: ProviderBatch, budget_usd: float | None) -> Room | None:
        """Reserve what the batch may cost; doing it again changes nothing.

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
        """End the reservation of a batch: nothing of it is at the provider any more."""
        self._book.end_batch(batch.job_id, batch.tag, spent=self._batches.spent(batch.job_id))

    def why(self, job: Job, budget_usd: float | None, room: Room, batch: ProviderBatch) -> Reason:
        """Return why the job pauses before this batch."""
        counts = self._outcomes.counts(job.job_id)
        finished = counts.succeeded + counts.dead
        left = None if job.total is None else max(0, job.total - finished)
        mean_usd = counts.cost_microusd / MICROUSD / finished if finished else None
        next_usd = batch.may_cost_microusd / MICROUSD
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
                batch_documents=batch.requests,
            )
        assert budget_usd is not None, "a budget that is not the tenant's is the job's own"
        return spent_budget(
            budget_usd=budget_usd,
            spent_usd=room.account.spent / MICROUSD,
            left=left,
            mean_usd=mean_usd,
            next_usd=next_usd,
            batch_documents=batch.requests,
        )


def _is_tenants(account: Account, budget: int) -> bool:
    tenant = account.tenant
    return tenant is not None and tenant.budget - tenant.committed < budget - account.committed
