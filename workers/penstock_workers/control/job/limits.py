"""Stops jobs at their deadline or budget."""

from __future__ import annotations

import time
from collections.abc import Collection

from penstock_ledger import OutcomeStore, RedisLedger
from penstock_ledger.model import Job, JobState
from penstock_producer.job.spec import JobSpec
from penstock_workers.control.job.budget import MICROUSD, affordable, mean_cost
from penstock_workers.control.job.job_states import JobStates


class JobLimits:
    """Belongs to the control thread."""

    def __init__(self, outcomes: OutcomeStore, hot: RedisLedger, states: JobStates) -> None:
        self._outcomes = outcomes
        self._hot = hot
        self._states = states
        self._affordable: dict[str, int | None] = {}  # documents that a job's budget still pays for; None: no bound

    def stop(self, job: Job, spec: JobSpec, under_way: int) -> bool:
        """Whether the job is past a limit, and therefore stopped in this round; ``under_way``: its documents outstanding."""
        if spec.deadline_s is not None and time.time() > job.created_at + spec.deadline_s:
            reason = f"deadline_exceeded: the job is older than its deadline of {spec.deadline_s:g} s"
            return self._states.move(job, JobState.CANCELLING, reason)
        if spec.budget_usd is None:
            self._affordable.pop(job.job_id, None)
            return False
        return self._stop_at_budget(job, spec.budget_usd, under_way)

    def within_budget(self, job: Job, documents: int) -> int:
        """Of so many documents those that the budget pays for; several feeds of one job share that."""
        left = self._affordable.get(job.job_id)
        if left is None:
            return documents
        documents = min(documents, left)
        self._affordable[job.job_id] = left - documents
        return documents

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._affordable = {job_id: left for job_id, left in self._affordable.items() if job_id in live}

    def _stop_at_budget(self, job: Job, budget_usd: float, under_way: int) -> bool:
        """Note what the budget still pays for; pause the job when that is nothing, unless it has all its outcomes."""
        stats = self._hot.stats(job.job_id)
        self._affordable[job.job_id] = affordable(budget_usd, stats, under_way)
        spent = stats.get("cost_microusd", 0) / MICROUSD
        if spent < budget_usd and (under_way or self._affordable[job.job_id] != 0):
            return False
        counts = self._outcomes.counts(job.job_id)
        if counts.succeeded + counts.dead == job.total:
            self._affordable[job.job_id] = None  # no document is left to pay for: the feed reaches its end
            return False
        mean = mean_cost(stats) or 0.0
        reason = (
            f"budget_exhausted: {spent:.4f} of {budget_usd:g} USD are spent, and a document costs about {mean:.4g}; "
            "resume with a higher budget_usd"
        )
        return self._states.move(job, JobState.PAUSED, reason)
