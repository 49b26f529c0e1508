"""The screen says where documents fail for one reason, and what a person can do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock_producer.reporting.advice import FIXES, on_terminal
from penstock_producer.reporting.text import argument, count, one_line

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Counts, DeadLetter, Job
    from penstock_producer.job.spec import JobSpec
    from penstock_producer.reporting.account import Report


def fix_of(letter: DeadLetter, spec: JobSpec, url: str | None) -> str | None:
    """Return what to do about a failure; None where its own words say all.

    ``url`` is the provider's where it is known.
    """
    from penstock_workers.item.failures import ASTRAY, refuses_format
    from penstock_workers.item.run.runs import other_format, to_check

    if letter.reason in ASTRAY:
        return on_terminal(to_check(letter.reason, spec.provider, url))
    if letter.reason == "schema_mismatch":
        return _about_schema(spec)
    if refuses_format(letter.reason, letter.last_error) and spec.asked_format.format is not None:
        return on_terminal(other_format(spec.provider))
    return on_terminal(FIXES[letter.reason]) if letter.reason in FIXES else None


def _about_schema(spec: JobSpec) -> str:
    asked = spec.asked_format.format
    if asked is None:
        return (
            "nothing tells the model which JSON is wanted: submit with --response-format "
            "json_schema where the provider takes it, or describe the JSON in the prompt"
        )
    if asked["type"] == "json_schema":
        return (
            "the model does not keep to the schema in its requests: describe the JSON in the "
            "prompt, or name another model"
        )
    return (
        "any JSON object was asked for: name its fields in the prompt, or submit with "
        "--response-format json_schema"
    )


SHOWN_CHARS: Final = 300  # of the provider's words
FIRST: Final = 10
"""While a job runs: so many documents that failed alike, and none that succeeded, are no chance."""


def advice(
    ledger: Books, job: Job, report: Report, *, url: str | None = None, again: str | None = None
) -> list[str]:
    """Return lines for people where all documents failed in one way.

    There are none where they failed in several ways, or one has succeeded.

    A job of few documents ends before a wrong address can be distinguished from wrong documents, so
    its end has to say it. ``url`` is the provider's where it is known, ``again`` the command that
    works on what was replayed.
    """
    from penstock_producer.job.spec import JobSpec
    from penstock_workers.item.failures import ASTRAY

    if report.succeeded or len(report.dead_by_reason) != 1:
        return []
    letter = _one(ledger, job)
    if letter is None:
        return []
    documents = "the document" if report.dead == 1 else f"all {count(report.dead)} documents"
    fix = fix_of(letter, JobSpec.accepted(job.spec), url)
    alike = [f"{documents} {_failed(report.dead, letter)}", *([] if fix is None else [fix])]
    if letter.reason not in ASTRAY:
        return alike
    replay = (
        "when that is put right, send them again:  penstock dlq replay "
        f"{argument(job.job_key)}{ledger.option()}"
    )
    return [*alike, replay, *([f"and after that, corrected:  {again}"] if again else [])]


def with_advice(ledger: Books, job: Job, report: Report) -> Report:
    return replace(report, advice=advice(ledger, job, report))


def so_far(ledger: Books, job: Job, counts: Counts) -> str | None:
    """Return one sentence while all first documents of a running job have failed for one reason.

    It is None in every other case.
    """
    from penstock_producer.job.spec import JobSpec

    if counts.succeeded or counts.dead < FIRST or len(counts.dead_by_reason) != 1:
        return None
    letter = _one(ledger, job)
    fix = None if letter is None else fix_of(letter, JobSpec.accepted(job.spec), None)
    if letter is None or fix is None:
        # rows that were refused as they were read, for example: those are said elsewhere
        return None
    return f"the first {count(counts.dead)} documents all {_failed(counts.dead, letter)}; {fix}"


def _one(ledger: Books, job: Job) -> DeadLetter | None:
    return next(ledger.outcomes.dead_letters(job.job_id, page=1), None)


def _failed(dead: int, letter: DeadLetter) -> str:
    status = f"{letter.status_code}, " if letter.status_code is not None else ""
    said = one_line(letter.last_error, SHOWN_CHARS)
    return f"{'failed alike' if dead > 1 else 'failed'} ({status}{letter.reason}): {said}"
