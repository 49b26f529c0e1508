"""Where a job comes from, when it is not a source that was submitted by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["from_job_line", "started_by_line"]

if TYPE_CHECKING:
    from penstock_ledger.model import Job


def from_job_line(job: Job) -> str:
    """Return one sentence on the job whose outcomes this one reads.

    It is empty for a job with a source of its own.
    """
    from penstock_producer.reporting.text import one_line, safe

    if job.source.get("kind") != "job":
        return ""
    where = " and ".join(job.source["where"])
    chosen = f", where {one_line(where)}" if where else ""
    last, skipped = job.source["generation"], job.source.get("after_generation", 0)
    generations = (
        f"of generation {skipped + 1} to {last}" if skipped else f"up to generation {last}"
    )
    return f"over the outcomes of job {safe(job.source['job_key'])}, {generations}{chosen}"


def started_by_line(job: Job) -> str:
    """Return one sentence; empty for a job that was submitted by hand or by a service."""
    from penstock_producer.reporting.text import safe
    from penstock_producer.schedules.marks import started_by

    found = started_by(job)
    if found is None:
        return ""
    name, planned = found
    return f"started by schedule {safe(name)} for {planned}"
