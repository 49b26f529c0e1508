"""A job balances when SQL has one outcome for every document.

A job where this cannot become true ends with a reason."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import NamedTuple

from penstock_ledger import JobStore, OutcomeStore
from penstock_ledger.model import Counts, Job, JobState
from penstock_ledger.reasons import By, Code, Reason

log = logging.getLogger(__name__)

# readings of a whole source without one more outcome: a fourth would not help, either
REWINDS_MAX = 3


class Unbalanced(NamedTuple):
    """Counts that reading the source again cannot put right."""

    state: JobState  # the new state of a running job
    reason: Reason


class Balance:
    """Checks a job's counts once all is read and nothing under way, on the control thread."""

    def __init__(self, jobs: JobStore, outcomes: OutcomeStore) -> None:
        self._jobs = jobs
        self._outcomes = outcomes
        # job -> outcomes at its last rewind, rewinds without a new one
        self._rewound: dict[str, tuple[int, int]] = {}

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._rewound = {job_id: seen for job_id, seen in self._rewound.items() if job_id in live}

    def close(self, job: Job) -> Counts | Unbalanced | None:
        """Return the counts of a job that has every outcome, or why the job must fail.

        None: something was lost, and its feeds read everything again."""
        assert job.total is not None, "an open job has no number of documents to compare with"
        counts = self._outcomes.counts(job.job_id)
        if _sum(counts) > job.total:
            counts = self._outcomes.recount(job.job_id)  # row by row, to be sure before a job fails
        if _sum(counts) == job.total:
            self._rewound.pop(job.job_id, None)
            self._outcomes.mend_retries(job.job_id)
            return counts
        too_many = _sum(counts) > job.total
        if too_many and self._is_read_for_cancel(job):
            return Unbalanced(JobState.FAILED, _too_many(job, _sum(counts)))
        return self._rewind(job, _sum(counts))

    def _is_read_for_cancel(self, job: Job) -> bool:
        """Return whether a cancelled job has been read again, to write off what was fed.

        True of all other jobs, which need not be read again for that."""
        return job.state is not JobState.CANCELLING or job.job_id in self._rewound

    def _rewind(self, job: Job, found: int) -> Unbalanced | None:
        before, rewinds = self._rewound.get(job.job_id, (-1, 0))
        rewinds = rewinds + 1 if found == before else 1
        if rewinds > REWINDS_MAX:
            self._rewound.pop(job.job_id, None)
            return Unbalanced(JobState.PAUSED, _too_few(job, found))
        if not self._jobs.rewind_feeds(job.job_id, generation=job.generation):
            return None  # it was replayed since it was looked at, or has ended
        self._rewound[job.job_id] = (found, rewinds)
        if job.state is JobState.CANCELLING and before < 0:
            log.info("job %s is cancelled: what was fed is read again to write it off", job.job_id)
            return None
        log.warning(
            "job %s: everything is read and nothing is under way, but %d of %s outcomes are there; "
            "reading it again (%d of %d)",
            job.job_id,
            found,
            job.total,
            rewinds,
            REWINDS_MAX,
        )
        return None


def _too_many(job: Job, found: int) -> Reason:
    detail = (
        f"{found} outcomes for {job.total} documents: something other than this "
        "job's feed has put items into its queue. What is stored stays readable; find "
        "out who can write to Redis or RabbitMQ, then submit the source again "
        "under another key"
    )
    return Reason(Code.TOO_MANY_OUTCOMES, By.CONTROL, {"detail": detail})


def _too_few(job: Job, found: int) -> Reason:
    detail = (
        f"everything was read {REWINDS_MAX + 1} times and only {found} of "
        f"{job.total} documents have an outcome. To resume the job reads it again, to "
        "cancel it writes off what is missing; please report this with the log of the control loop"
    )
    return Reason(Code.TOO_FEW_OUTCOMES, By.CONTROL, {"detail": detail})


def _sum(counts: Counts) -> int:
    return counts.succeeded + counts.dead
