"""Dead letters: the list, and one of them with its request."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Query, Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.jobs.cursors import decoded, encoded
from penstock_gateway.jobs.names import Reader, find_job
from penstock_gateway.jobs.shapes import Letter, LetterList, LetterShown
from penstock_gateway.refused import not_found
from penstock_ledger import OutcomeStore
from penstock_ledger.model import DeadLetter

router = APIRouter()

PAGE_MAX: Final = 200  # of one answer


@router.get("/{job}/dead-letters", operation_id="list_dead_letters")
async def list_letters(
    request: Request,
    job: str,
    caller: Reader,
    reason: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Only those with this reason.")
    ] = None,
    generation: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="Only those of this generation, replayed ones included.")
    ] = None,
    cursor: Annotated[str | None, Query(max_length=2_000, description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
) -> LetterList:
    """List the dead letters of a job, without their requests."""
    backend = backend_of(request)
    after = None if cursor is None else decoded(cursor, int)

    def look() -> LetterList:
        found = find_job(backend, caller, job)
        letters = OutcomeStore(backend.database).dead_letters(
            found.job_id, reason=reason, generation=generation, after=after, page=limit + 1
        )
        shown = list(islice(letters, limit + 1))
        more = len(shown) > limit
        last = shown[limit - 1].key if more else None
        return LetterList(
            data=[LetterShown(**_fields(letter)) for letter in shown[:limit]],
            next=None if last is None else encoded(last.generation, last.doc_id),
        )

    return await backend.run(look)


@router.get("/{job}/dead-letters/{doc_id:path}", operation_id="retrieve_dead_letter")
async def show_letter(request: Request, job: str, doc_id: str, caller: Reader) -> Letter:
    """Show one dead letter: its error, its request and the last answer to it."""
    backend = backend_of(request)

    def look() -> Letter:
        return _letter(backend, find_job(backend, caller, job).job_id, doc_id)

    return await backend.run(look)


def _letter(backend: Backend, job_id: str, doc_id: str) -> Letter:
    found = OutcomeStore(backend.database).get(job_id, doc_id)
    if not isinstance(found, DeadLetter):
        raise not_found("dead letter", doc_id)
    return Letter(**_fields(found), request=_readable(found.request), response=_readable(found.response))


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        "doc_id": letter.key.doc_id, "generation": letter.key.generation, "reason": letter.reason,
        "attempts": letter.attempts, "calls": letter.calls, "status_code": letter.status_code,
        "last_error": letter.last_error, "line": letter.line, "created_at": letter.created_at,
    }  # fmt: skip


def _readable(body: bytes | None) -> Any:
    """JSON as JSON, anything else as text, nothing as null."""
    if not body:
        return None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")
