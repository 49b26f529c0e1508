"""The account of a job out of its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock_cli.report.account import Report, build

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job


def report_of(
    ledger: Books, job: Job, *, stats: Mapping[str, int] | None = None, seconds: float | None = None
) -> Report:
    """``stats`` and ``seconds`` where the caller knows better than the ledger."""
    return build(
        job,
        ledger.outcomes.counts(job.job_id),
        stats=ledger.stats(job) if stats is None else stats,
        seconds=ledger.seconds(job) if seconds is None else seconds,
        made_with=ledger.made_with(job),
        moves=ledger.moves(job),
        lanes=ledger.outcomes.by_lane(job.job_id),
        created=ledger.batches_created(job),
    )
