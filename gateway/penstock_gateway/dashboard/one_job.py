"""The job that a page is about: there for its tenant, and for no other caller."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from penstock_gateway.dashboard.jobs_view import ago
from penstock_gateway.dashboard.viewer import Viewer
from penstock_gateway.refused import not_found
from penstock_ledger import Job, JobNotFound
from penstock_producer.reporting.text import one_line

__all__ = ["JobHead", "head_of", "job_of"]

ID_CHARS = 512


class JobHead(NamedTuple):
    """What stands above each of its pages."""

    job_id: str
    key: str
    state: str
    facts: Sequence[str]
    dead: int


async def job_of(viewer: Viewer, name: str) -> Job:
    """Return a job by its id, or by its key where that has no ``/``, as a batch's id is.

    Raises Refused, with one text for a job that never was and for one of another tenant.
    """
    try:
        job = await viewer.backend.run(viewer.desk.jobs.get, name[:ID_CHARS])
    except JobNotFound:
        raise not_found("job", name) from None
    if not viewer.caller.may_see(job.spec.get("tenant")):
        raise not_found("job", name)
    return job


def head_of(job: Job, dead: int) -> JobHead:
    submitted = f"submitted {ago(job.created_at, time.time())}"
    return JobHead(
        job.job_id,
        one_line(job.job_key, 600),
        str(job.state),
        [f"id {job.job_id}", submitted],
        dead,
    )
