"""What provider batches may cost, in the budget of their job: reserved before each is created, beside the calls of other lanes.

What is spent is given with each reservation, as SQL has it: it counts what documents cost that wait for another batch, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import redis

from penstock_ledger import Account, BudgetBook, Job, OutcomeStore, ProviderBatch, ProviderBatchStore
from penstock_producer.prices.spent_budget import spent_budget

MICROUSD: Final = 1_000_000  # in a dollar
TRIES: Final = 3  # of giving Redis a budget: it is lost between two calls once in a while


class Room(NamedTuple):
    """The answer of an account."""

    is_reserved: bool
    account: Account


class Reservations:
    """Called in threads."""

    def __init__(self, book: BudgetBook, batches: ProviderBatchStore, outcomes: OutcomeStore) -> None:
        self._book, self._batches, self._outcomes = book, batches, outcomes

    def reserve(self, batch: ProviderBatch, budget_usd: float) -> Room:
        """What the batch may cost; doing it again changes nothing. Raises redis.RedisError."""
        job_id, budget = batch.job_id, round(budget_usd * MICROUSD)
        spent = self._batches.spent(job_id)
        for _ in range(TRIES):
            found = self._book.reserve_batch(job_id, budget, batch.tag, batch.may_cost_microusd, spent=spent)
            if found is not None:
                return Room(*found)
            self._book.look(job_id, budget, spent=spent, batches=self._batches.may_cost(job_id))
        raise redis.ConnectionError("Redis forgets a job's budget as soon as it has it")

    def end(self, batch: ProviderBatch) -> None:
        """Nothing of it is at the provider any more."""
        self._book.end_batch(batch.job_id, batch.tag, spent=self._batches.spent(batch.job_id))

    def why(self, job: Job, budget_usd: float, account: Account, batch: ProviderBatch) -> str:
        """The job pauses before this batch."""
        counts = self._outcomes.counts(job.job_id)
        finished = counts.succeeded + counts.dead
        return spent_budget(
            job.job_key,
            budget_usd=budget_usd,
            spent_usd=account.spent / MICROUSD,
            left=None if job.total is None else max(0, job.total - finished),
            mean_usd=counts.cost_microusd / MICROUSD / finished if finished else None,
            next_usd=batch.may_cost_microusd / MICROUSD,
            next_is=f"the next batch of {batch.requests} documents",
        )
