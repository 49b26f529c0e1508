"""What a replay of the job of a batch changes, and what it does not."""

from __future__ import annotations

from penstock_ledger import Database, DoorBatchStore
from penstock_ledger.model import Job

__all__ = ["batch_note"]


def batch_note(database: Database, job: Job) -> str | None:
    """None for a job that belongs to no batch, and for one whose batch will write its files later.

    Blocks."""
    batch = DoorBatchStore(database).get(job.job_key)
    if batch is None or batch.job_id != job.job_id or not batch.state.final:
        return None
    what = (
        "its results and counts"
        if batch.of_anthropic
        else "its output and error files, its counts and its state"
    )
    return (
        f"Batch {batch.batch_id} has ended: {what} stay as they are. The new outcomes: GET "
        f"/v1/jobs/{job.job_id}/results"
    )
