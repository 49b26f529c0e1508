"""Where a job comes from, when no person submitted it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_ledger.model import Job


def started_by_line(job: Job) -> str:
    """One sentence; empty for a job that was submitted by hand or by a service."""
    from penstock_cli.show.text import safe
    from penstock_producer.schedules.marks import started_by

    found = started_by(job)
    if found is None:
        return ""
    name, planned = found
    return f"started by schedule {safe(name)} for {planned}"
