"""The account of a job out of the ledger's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock_ledger import BatchFigures, LaneMoves, OutcomeStore, Provenance
from penstock_producer.reporting.account import Report, build

if TYPE_CHECKING:
    from penstock_ledger import Database
    from penstock_ledger.model import Job

__all__ = ["gathered"]


def gathered(database: Database, job: Job, *, stats: Mapping[str, int], seconds: float | None = None) -> Report:
    """``stats``: the counters of the job in Redis; empty where it does not run. ``seconds`` of work where they were
    measured."""
    outcomes = OutcomeStore(database)
    return build(
        job,
        outcomes.counts(job.job_id),
        stats=stats,
        seconds=seconds,
        made_with=Provenance(database).of(job.job_id),
        moves=LaneMoves(database).of(job.job_id) if job.moves else [],
        lanes=outcomes.by_lane(job.job_id),
        created=BatchFigures(database).created(job.job_id),
    )
