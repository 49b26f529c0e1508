"""Results as a stream of JSON lines, in the order in which they were stored; each line says where to go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, islice
from typing import Annotated, Final

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.jobs.names import Reader, find_job, told_letter
from penstock_ledger.model import Job, Result
from penstock_producer.outputs import error_line, output_line
from penstock_producer.tables.cursors import Committed

router = APIRouter()

LINES_TOGETHER: Final = 100  # read in one turn of a thread, and no more than the next line beyond
BYTES_TOGETHER: Final = 256 * 1024
NDJSON: Final = "application/x-ndjson"

_EXAMPLE: Final = (
    '{"id":"batch_req_5d0f…","custom_id":"ticket-17","response":{"status_code":200,"request_id":"req_1",'
    '"body":{"choices":[{"message":{"content":"A parcel is late."}}]}},"error":null,"cursor":"WzEsImpvYl9…"}\n'
)


@router.get(
    "/{job}/results",
    response_class=Response,
    responses={
        200: {
            "description": "One outcome per line, as OpenAI's batches write them, with a cursor.",
            "content": {NDJSON: {"schema": {"type": "string"}, "example": _EXAMPLE}},
        }
    },
    operation_id="read_job_results",
)
async def results(
    request: Request,
    job: str,
    caller: Reader,
    after: Annotated[
        str | None, Query(max_length=2_000, description="The cursor of the last line that you have.")
    ] = None,
    dead_letters: Annotated[bool, Query(description="Whether dead letters come, too.")] = True,
    limit: Annotated[int | None, Query(ge=1, le=10**9, description="At most this many lines.")] = None,
) -> StreamingResponse:
    """Stream what a job has stored, also while it runs.

    The stream ends with what was there when it began. Keep the `cursor` of the last line and give it as `after` to get only
    what is new.
    """
    backend = backend_of(request)

    def begin() -> Iterator[bytes]:
        found = find_job(backend, caller, job)
        outcomes = backend.producer.outcomes(found.job_id, after=after, dead_letters=dead_letters)
        return (_line(found, one) for one in outcomes)

    return await streamed(backend, begin, limit)


async def streamed(backend: Backend, begin: Callable[[], Iterator[bytes]], limit: int | None) -> StreamingResponse:
    """The lines of ``begin``, which looks for the job first: its errors, and those of the first line, are said before the
    stream begins."""

    def first() -> Iterator[bytes]:
        lines = begin()
        some = lines if limit is None else islice(lines, limit)
        return chain(list(islice(some, 1)), some)

    return StreamingResponse(_pieces(backend, await backend.run(first)), media_type=NDJSON)


def with_cursor(line: bytes, cursor: str) -> bytes:
    """A line of JSON, with where to go on behind it."""
    return line.rstrip()[:-1] + b',"cursor":' + orjson.dumps(cursor) + b"}\n"


async def _pieces(backend: Backend, lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The next ones are read once a piece is taken; when its reader goes, nothing is open."""
    while piece := await backend.run(_next_piece, lines):
        yield piece


def _next_piece(lines: Iterator[bytes]) -> bytes:
    piece = bytearray()
    for number, line in enumerate(lines, 1):
        piece += line
        if number >= LINES_TOGETHER or len(piece) >= BYTES_TOGETHER:
            break
    return bytes(piece)


def _line(job: Job, committed: Committed) -> bytes:
    outcome = committed.outcome
    line = output_line(outcome) if isinstance(outcome, Result) else error_line(told_letter(job, outcome))
    return with_cursor(line, committed.cursor)
