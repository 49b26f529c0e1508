"""Dead letters: the list, one of them with its request, and all of them as lines.

Each shape of a request or an answer has an example for the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictStr
from starlette.responses import Response, StreamingResponse

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import dead_letter_for
from penstock_gateway.jobs.listing import decoded, encoded
from penstock_gateway.jobs.names import Reader, find_job
from penstock_gateway.jobs.results import NDJSON, streamed, with_cursor
from penstock_gateway.refused import not_found
from penstock_gateway.routing import Router
from penstock_ledger import OutcomeStore
from penstock_ledger.model import DeadLetter, Job
from penstock_producer.accepting.sampling import input_line
from penstock_producer.outputs import error_line

__all__ = ["Replay", "Replayed"]

DOCS_MAX: Final = 10_000  # ids that one replay names

_LETTER: Final[dict[str, Any]] = {
    "doc_id": "ticket-17",
    "generation": 1,
    "reason": "bad_request",
    "attempts": 1,
    "calls": 1,
    "status_code": 400,
    "last_error": "Invalid 'max_tokens': integer below minimum value.",
    "line": None,
    "created_at": 1763740931.4,
    "endpoint": None,
}

router = Router(prefix="/v1/jobs", tags=["jobs"])

PAGE_MAX: Final = 200  # of one answer

_EXAMPLE: Final = (
    '{"id":"batch_req_5d0f…","custom_id":"ticket-17","response":{"status_code":400,"request_id":null,'
    '"body":{"error":{"message":"Invalid '
    'max_tokens"}}},"error":null,"penstock":{"reason":"bad_request","attempts":1},'
    '"cursor":"WzEsInRpY2tldC0xNyJd"}\n'
)
_LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One dead letter per line, with a cursor.",
        "content": {NDJSON: {"schema": {"type": "string"}, "example": _EXAMPLE}},
    }
}


def _like(example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class Replay(BaseModel):
    """The dead letters to try again, and the changes to them."""

    model_config = _like({"reason": "bad_request", "overrides": {"set": {"max_tokens": 128}}})

    reason: Annotated[StrictStr, Field(min_length=1, max_length=200)] | None = None
    doc_ids: Annotated[list[StrictStr], Field(min_length=1, max_length=DOCS_MAX)] | None = None
    overrides: dict[str, Any] = Field(default_factory=dict)


class Replayed(BaseModel):
    model_config = _like({"object": "replay", "documents": 6, "generation": 2})

    object: Literal["replay"] = "replay"
    documents: int
    generation: int
    note: str | None = Field(
        None,
        description="What becomes of a batch's files, and where the new outcomes are read.",
    )


class DeadLetterResponse(BaseModel):
    """A document that has failed for good."""

    model_config = _like(_LETTER)

    doc_id: str
    generation: int
    reason: str
    attempts: int
    calls: int
    status_code: int | None
    last_error: str
    line: int | None = Field(
        description="The line in the source of a row that was refused at submit."
    )
    created_at: float | None
    endpoint: str | None = Field(
        default=None, description="The path of its request, where that is not the job's."
    )


class DeadLetterView(DeadLetterResponse):
    """The same with the request that was sent, and the last answer to it."""

    model_config = _like(
        _LETTER
        | {
            "request": {
                "model": "gpt-x",
                "messages": [{"role": "user", "content": "Summarise: …"}],
                "max_tokens": 0,
            },
            "response": {"error": {"message": "Invalid 'max_tokens'"}},
        }
    )

    request: Any = None
    response: Any = None


class DeadLetterList(BaseModel):
    model_config = _like({"object": "list", "data": [_LETTER], "next": None})

    object: Literal["list"] = "list"
    data: list[DeadLetterResponse]
    next: str | None


@router.get("/{job}/dead-letters", operation_id="list_dead_letters")
async def list_dead_letters(
    request: Request,
    job: str,
    caller: Reader,
    reason: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="Only dead letters with this reason."),
    ] = None,
    generation: Annotated[
        int | None,
        Query(
            ge=1,
            le=2**31 - 1,
            description="Only dead letters of this generation, replayed ones included.",
        ),
    ] = None,
    cursor: Annotated[
        str | None, Query(max_length=2_000, description="`next` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
) -> DeadLetterList:
    """List the dead letters of a job, without their requests."""
    backend = backend_of(request)
    after = None if cursor is None else decoded(cursor, int)

    def look() -> DeadLetterList:
        found = find_job(backend, caller, job)
        letters = OutcomeStore(backend.database).dead_letters(
            found.job_id, reason=reason, generation=generation, after=after, page=limit + 1
        )
        shown = list(islice(letters, limit + 1))
        more = len(shown) > limit
        last = shown[limit - 1].key if more else None
        return DeadLetterList(
            data=[
                DeadLetterResponse(**dead_letter_for(found, letter).to_json())
                for letter in shown[:limit]
            ],
            next=None if last is None else encoded(last.generation, last.doc_id),
        )

    return await backend.run(look)


@router.get(
    "/{job}/dead-letter-lines",
    operation_id="export_dead_letters",
    response_class=Response,
    responses=_LINES,
)
async def export_dead_letters(
    request: Request,
    job: str,
    caller: Reader,
    form: Annotated[
        Literal["errors", "requests"],
        Query(
            description=(
                "errors: lines of `errors.jsonl`. requests: lines that can be submitted again."
            )
        ),
    ] = "errors",
    reason: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="Only dead letters with this reason."),
    ] = None,
    after: Annotated[
        str | None,
        Query(max_length=2_000, description="The cursor of the last line that you have read."),
    ] = None,
    limit: Annotated[
        int | None, Query(ge=1, le=10**9, description="At most this many lines.")
    ] = None,
) -> StreamingResponse:
    """Stream the dead letters of a job, as errors or as requests to submit again.

    The errors are lines of `errors.jsonl`. All come by generation and document id, each with a
    `cursor`: the last one as `after` goes on there. Rows that never became a request are among
    `errors` only.
    """
    backend = backend_of(request)
    behind = None if after is None else decoded(after, int)

    def begin() -> Iterator[bytes]:
        found = find_job(backend, caller, job)
        letters = OutcomeStore(backend.database).dead_letters(
            found.job_id, reason=reason, after=behind
        )
        if form == "requests":
            letters = (letter for letter in letters if letter.replayable)
        endpoint = str(found.spec["endpoint"])
        return (
            _exported(found, letter, endpoint if form == "requests" else None) for letter in letters
        )

    return await streamed(backend, begin, limit)


@router.get("/{job}/dead-letters/{doc_id:path}", operation_id="retrieve_dead_letter")
async def show_dead_letter(
    request: Request, job: str, doc_id: str, caller: Reader
) -> DeadLetterView:
    """Show one dead letter: its error, its request and the last answer to it."""
    backend = backend_of(request)

    def look() -> DeadLetterView:
        return _letter(backend, find_job(backend, caller, job), doc_id)

    return await backend.run(look)


def _letter(backend: Backend, job: Job, doc_id: str) -> DeadLetterView:
    found = OutcomeStore(backend.database).get(job.job_id, doc_id)
    if not isinstance(found, DeadLetter):
        raise not_found("dead letter", doc_id)
    return DeadLetterView(
        **dead_letter_for(job, found).to_json(),
        request=_readable(found.request),
        response=_readable(found.response),
    )


def _exported(job: Job, letter: DeadLetter, endpoint: str | None) -> bytes:
    """Return a line of `errors.jsonl`; with an ``endpoint`` a line of input."""
    if endpoint is None:
        line = error_line(dead_letter_for(job, letter))
    else:
        line = input_line(letter.key.doc_id, letter.request, letter.endpoint or endpoint)
    return with_cursor(line, encoded(letter.key.generation, letter.key.doc_id))


def _readable(body: bytes | None) -> Any:
    """Return JSON as JSON, anything else as text, nothing as null.

    JSON too deep to be written again is text as well.
    """
    if not body:
        return None
    try:
        found = orjson.loads(body)
        orjson.dumps(found)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return body.decode("utf-8", "replace")
    return found
