"""The specs of live jobs, each parsed once per change."""

from __future__ import annotations

from collections.abc import Collection

from penstock_ledger.model import Job
from penstock_producer.job.spec import JobSpec


class Specs:
    """The parsed specs, for the control thread. A job's digest changes whenever its spec does."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, JobSpec]] = {}  # job -> digest, spec

    def of(self, job: Job) -> JobSpec:
        known = self._known.get(job.job_id)
        if known is None or known[0] != job.digest:
            known = self._known[job.job_id] = (job.digest, JobSpec.accepted(job.spec))
        return known[1]

    def keep_only(self, live: Collection[str]) -> None:
        self._known = {job_id: known for job_id, known in self._known.items() if job_id in live}
