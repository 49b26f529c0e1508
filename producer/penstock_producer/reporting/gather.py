"""The account of a job out of the ledger's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock_ledger import BatchFigures, LaneMoves, OutcomeStore, Provenance
from penstock_producer.reporting.account import Report, build

if TYPE_CHECKING:
    from penstock_ledger import Database
    from penstock_ledger.model import Counts, Job

__all__ = ["gathered"]


def gathered(
    database: Database,
    job: Job,
    *,
    stats: Mapping[str, int],
    seconds: float | None = None,
    counts: Counts | None = None,
    sizes: bool = False,
) -> Report:
    """Gather the report of a job from the ledger.

    ``sizes``: how long prompts were, for which every row of the job is read.

    ``stats``: the counters of the job in Redis; empty where it does not run. ``seconds`` of work
    where they were measured, ``counts`` where they were read just now.
    """
    outcomes = OutcomeStore(database)
    with database.one_read():
        return build(
            job,
            outcomes.counts(job.job_id) if counts is None else counts,
            stats=stats,
            seconds=seconds,
            made_with=Provenance(database).of(job.job_id),
            moves=LaneMoves(database).of(job.job_id) if job.moves else [],
            lanes=outcomes.by_lane(job.job_id),
            created=BatchFigures(database).created(job.job_id),
            sizes=outcomes.prompt_sizes(job.job_id) if sizes else None,
            unread=BatchFigures(database).unread(job.job_id),
        )
