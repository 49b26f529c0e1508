"""One dead letter: why it failed, what was asked and answered, and the request to be corrected."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.dashboard.foreign import MOST_CHARS, json_text, prompt_of, shown
from penstock_gateway.dashboard.letters_view import LetterRow
from penstock_gateway.dashboard.one_job import head_of
from penstock_gateway.dashboard.pages import page
from penstock_gateway.dashboard.viewer import Viewer
from penstock_gateway.for_tenants import told_of
from penstock_gateway.refused import Refused, not_found
from penstock_ledger import DeadLetter, Job
from penstock_producer.reporting.advice import on_page
from penstock_producer.reporting.fixes import FIXES
from penstock_producer.reporting.text import count, counted, one_line
from penstock_producer.reporting.words import moment

__all__ = ["EDIT_MAX", "letter_of", "letter_page"]

EDIT_MAX: Final = MOST_CHARS  # bytes of a request that is edited in a browser


async def letter_page(
    request: Request,
    viewer: Viewer,
    job: Job,
    doc_id: str,
    *,
    refused: Refused | None = None,
    typed: str | None = None,
) -> Response:
    """Show one letter; ``refused`` says what is wrong with ``typed``, which the form has again.

    Raises Refused for no such letter."""

    def read() -> tuple[DeadLetter, int]:
        return letter_of(viewer, job, doc_id), viewer.desk.outcomes.counts(job.job_id).dead

    letter, dead = await viewer.backend.run(read)
    values = _values(job, letter) | ({} if typed is None else {"body": typed})
    return page(
        "letter.html.jinja",
        viewer,
        request,
        status=200 if refused is None else refused.status,
        job=head_of(job, dead),
        fault="" if refused is None else refused.message,
        **values,
    )


def letter_of(viewer: Viewer, job: Job, doc_id: str) -> DeadLetter:
    """Return the visible dead letter of a document. Raises Refused where there is none."""
    outcome = viewer.desk.outcomes.get(job.job_id, doc_id)
    if not isinstance(outcome, DeadLetter):
        raise not_found("dead letter", doc_id)
    return outcome


def _values(job: Job, letter: DeadLetter) -> dict[str, Any]:
    row = LetterRow(
        letter.key.doc_id,
        one_line(letter.key.doc_id, 512),
        letter.reason,
        count(letter.attempts),
        "" if letter.status_code is None else str(letter.status_code),
        "",
        bool(letter.request),
    )
    tries = "1 try" if letter.attempts == 1 else f"{count(letter.attempts)} tries"
    facts = [tries, counted(letter.calls, "call"), f"generation {letter.key.generation}"]
    if letter.line:
        facts.append(f"line {count(letter.line)} of the source")
    if letter.created_at is not None:
        facts.append(moment(letter.created_at))
    return {
        "letter": row,
        "error": shown(told_of(job, letter.last_error)),
        "facts": " · ".join(facts),
        "fix": on_page(FIXES.get(letter.reason, "")),
        "prompt": prompt_of(letter.request) if letter.request else [],
        "response": shown(json_text(letter.response)),
        "body": json_text(letter.request) if len(letter.request) <= EDIT_MAX else None,
    }
