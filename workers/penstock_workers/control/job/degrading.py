"""A job gives way by the steps of its `degrade`, once a share of its deadline or budget is gone.

The process that sees it first writes the step with its time, and it is never taken back: a restart,
another control process, or more time and money change nothing for what was decided. Workers read it
within seconds, and ask documents by it that begin from then on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from penstock_ledger import StepsTaken, StepTaken
from penstock_ledger.model import Job
from penstock_producer.job.levers import Step
from penstock_producer.job.spec import JobSpec
from penstock_workers.control.job.accounts import MICROUSD, Accounts

log = logging.getLogger(__name__)


class Degrading:
    """Takes the steps of live jobs, on the control thread of any process."""

    def __init__(
        self, steps: StepsTaken, accounts: Accounts, clock: Callable[[], float] = time.time
    ) -> None:
        self._steps, self._accounts, self._clock = steps, accounts, clock
        self._taken: dict[str, set[int]] = {}  # as this process knows them, by job

    def look(self, job: Job, spec: JobSpec) -> None:
        """Take the steps whose moments have come."""
        if not spec.degrade:
            return
        if job.job_id not in self._taken:
            self._taken[job.job_id] = {one.number for one in self._steps.of(job.job_id)}
        for step in spec.steps:
            if step.number not in self._taken[job.job_id]:
                gone = self._gone(job, spec, step)
                if gone >= step.share:
                    self._take(job, step, gone)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._taken = {job_id: taken for job_id, taken in self._taken.items() if job_id in live}

    def _gone(self, job: Job, spec: JobSpec, step: Step) -> float:
        """Return the share of the limit that is gone; 0 for one that was lifted."""
        if step.of == "deadline":
            return (self._clock() - job.created_at) / spec.deadline_s if spec.deadline_s else 0.0
        spent = self._accounts.spent_of(job.job_id) / MICROUSD
        return spent / spec.budget_usd if spec.budget_usd else 0.0

    def _take(self, job: Job, step: Step, gone: float) -> None:
        entry = StepTaken(step.number, self._clock(), step.of, round(gone, 4))
        if self._steps.take(job.job_id, entry):
            log.warning(
                "job %s gives way: documents that begin now are asked with %s, since %s of its %s "
                "is gone",
                job.job_id,
                step.target,
                f"{gone:.0%}",
                step.of,
            )
        self._taken[job.job_id].add(step.number)
