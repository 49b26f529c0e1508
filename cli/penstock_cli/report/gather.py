"""The account of a job out of the ledger of a command, and the exit status that goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock_cli.errors import EXIT_DEAD_LETTERS, EXIT_FAILED, EXIT_OK
from penstock_producer.reporting.gather import gathered

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_producer.reporting.account import Report


def report_of(
    ledger: Books, job: Job, *, stats: Mapping[str, int] | None = None, seconds: float | None = None
) -> Report:
    """``stats`` and ``seconds`` where the caller knows better than the ledger."""
    return gathered(
        ledger.database,
        job,
        stats=ledger.stats(job) if stats is None else stats,
        seconds=ledger.seconds(job) if seconds is None else seconds,
        sizes=True,
    )


def exit_status(report: Report) -> int:
    """0 all succeeded, 3 finished with dead letters, 1 anything else."""
    if report.state != "completed":
        return EXIT_FAILED
    return EXIT_DEAD_LETTERS if report.dead else EXIT_OK
