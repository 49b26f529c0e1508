"""What a closing screen says when no document succeeded and all failed in the same way: that has one cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_cli.show.text import argument, count, one_line

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_cli.show.report import Report
    from penstock_ledger.model import Job

SHOWN_CHARS = 300  # of the provider's words


def advice(ledger: Books, job: Job, report: Report, *, url: str | None = None, again: str | None = None) -> list[str]:
    """Lines for people; none where the documents failed in several ways, or one has succeeded.

    A job of few documents ends before a wrong address can be distinguished from wrong documents, so its end has to say it.
    ``url`` is the provider's where it is known, ``again`` the command that works on what was replayed.
    """
    from penstock_workers.item.failures import ASTRAY
    from penstock_workers.item.run.runs import to_check

    if report.succeeded or len(report.dead_by_reason) != 1:
        return []
    letter = next(ledger.outcomes.dead_letters(job.job_id, page=1), None)
    if letter is None:
        return []
    status = f"{letter.status_code}, " if letter.status_code is not None else ""
    documents = "the document" if report.dead == 1 else f"all {count(report.dead)} documents"
    said = one_line(letter.last_error, SHOWN_CHARS)
    failed = "failed alike" if report.dead > 1 else "failed"
    alike = [f"{documents} {failed} ({status}{letter.reason}): {said}"]
    if letter.reason not in ASTRAY:
        return alike
    check = to_check(letter.reason, job.spec.get("provider", "default"), url)
    replay = f"when that is put right, send them again:  penstock dlq replay {argument(job.job_key)}{ledger.option()}"
    return [*alike, check, replay, *([f"and after that, corrected:  {again}"] if again else [])]
