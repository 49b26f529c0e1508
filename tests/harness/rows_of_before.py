"""Rows of jobs as a process of an earlier release leaves them: a reason in words alone."""

from __future__ import annotations

from sqlalchemy import update

from penstock_ledger import Database
from penstock_ledger.sql.tables import jobs


def paused_before(database: Database, job_id: str, reason: str) -> None:
    """Pause a job as such a process does."""
    row = update(jobs).where(jobs.c.job_id == job_id)
    values = row.values(state="paused", reason=reason, pause=None, resume_at=None)
    database.write(lambda connection: connection.execute(values))
