"""Results as a stream, in the order in which they were stored: JSON lines or a table.

Each JSON line says where to go on behind it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import quote

import orjson
from fastapi import Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller, dead_letter_for
from penstock_gateway.jobs.names import Reader, find_job, reading, shown_key
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger.model import Job, Result
from penstock_producer.errors import SinkError, SourceError
from penstock_producer.job.sinks import TableFormat, columns_problem, form_named, media_types
from penstock_producer.job.spec import MAX_KEEP_CHARS, RowOrder
from penstock_producer.outputs import error_line, output_line
from penstock_producer.sources.kept import ALL
from penstock_producer.tables.columns import Table, as_json
from penstock_producer.tables.reading import Committed
from penstock_producer.tables.with_source import reading_of, table_pieces

router = Router(prefix="/v1/jobs", tags=["jobs"])
log = logging.getLogger(__name__)

TABLES: Final = media_types()
STATE: Final = "x-penstock-job-state"
LINES_TOGETHER: Final = 100  # read in one turn of a thread, and no more than the next line beyond
BYTES_TOGETHER: Final = 256 * 1024
NDJSON: Final = "application/x-ndjson"

_CSV_EXAMPLE: Final = "id,status,…\r\nticket-17,succeeded,…\r\n"
_EXAMPLE: Final = (
    '{"id":"batch_req_5d0f…","custom_id":"ticket-17","response":{"status_code":200,"request_id":"req_1",'
    '"body":{"choices":[{"message":{"content":"A parcel is '
    'late."}}]}},"error":null,"cursor":"WzEsImpvYl9…"}\n'
)


@router.get(
    "/{job}/results",
    response_class=Response,
    responses={
        200: {
            "description": "One outcome per line, as OpenAI's batches write them, with a cursor.",
            "content": {
                NDJSON: {"schema": {"type": "string"}, "example": _EXAMPLE},
                TABLES["csv"]: {"schema": {"type": "string"}, "example": _CSV_EXAMPLE},
                TABLES["parquet"]: {
                    "schema": {"type": "string", "format": "binary"},
                    "example": "PAR1…PAR1",
                },
                TABLES["xlsx"]: {
                    "schema": {"type": "string", "format": "binary"},
                    "example": "PK…",
                },
            },
        },
        409: {"description": "The source has changed since, and a table has its columns."},
        501: {"description": "What writes this form of table is not installed on the server."},
    },
    operation_id="read_job_results",
)
async def results(
    request: Request,
    job: str,
    caller: Reader,
    after: Annotated[
        str | None,
        Query(max_length=2_000, description="The cursor of the last line that you have read."),
    ] = None,
    dead_letters: Annotated[bool, Query(description="Whether dead letters are included.")] = True,
    limit: Annotated[
        int | None, Query(ge=1, le=10**9, description="At most this many lines.")
    ] = None,
    form: Annotated[
        Literal["jsonl", "rows", TableFormat],
        Query(
            description=(
                "jsonl: OpenAI's lines; rows: a line for each row of the table; tables have a row "
                "for each outcome, dead letters included."
            )
        ),
    ] = "jsonl",
    escape_formulas: Annotated[
        bool, Query(description="CSV: put an apostrophe before texts that a spreadsheet would run.")
    ] = False,
    keep_columns: Annotated[
        str,
        Query(
            max_length=MAX_KEEP_CHARS,
            description="Tables: columns of the source: all, none, or names, as a,b.",
        ),
    ] = ALL,
    order: Annotated[
        RowOrder,
        Query(description="Tables: rows as in the source, or the answers alone, as they came."),
    ] = "source",
) -> StreamingResponse:
    """Stream what a job has stored, also while it runs.

    The stream ends with what was there when it began; `x-penstock-job-state` says whether the job
    had ended by then. Keep the `cursor` of the last line and give it as `after` to get only what is
    new. A table has no cursors: it is read whole.
    """
    backend = backend_of(request)
    if form != "jsonl" and form != "rows":
        if after is not None or limit is not None or not dead_letters:
            raise Refused(
                400,
                "after, limit and dead_letters go with form=jsonl and rows: leave them out, a "
                f"table as {form} is whole",
                code="invalid_value",
                param="form",
            )
        if escape_formulas and form != "csv":
            raise Refused(
                400,
                "escape_formulas goes with form=csv",
                code="invalid_value",
                param="escape_formulas",
            )
        if problem := columns_problem(keep_columns, order):
            raise Refused(400, "; ".join(problem), code="invalid_value", param="keep_columns")
        how = _How(form, keep_columns, order, escape_formulas)
        return await _table(backend, caller, job, how)
    state = ""

    def begin() -> Iterator[bytes]:
        nonlocal state
        found = find_job(backend, caller, job)
        state = str(found.state)
        outcomes = backend.producer.outcomes(found.job_id, after=after, dead_letters=dead_letters)
        if form == "rows":
            table = Table(found.spec)
            return (_row(found, table, one) for one in outcomes)
        return (_line(found, one) for one in outcomes)

    answer = await streamed(backend, begin, limit)
    answer.headers[STATE] = state
    return answer


class _How(NamedTuple):
    """The form that a table is asked for."""

    form: TableFormat
    keep: str
    order: RowOrder
    escape_formulas: bool


async def _table(backend: Backend, caller: Caller, job: str, how: _How) -> StreamingResponse:
    """Stream a table as `penstock results` writes it.

    A batch of rows is in memory, so that each takes one of the readings of its tenant.
    """

    def begin() -> tuple[Job, Iterator[bytes]]:
        found = find_job(backend, caller, job)
        try:
            form_named(how.form)
        except SinkError as error:
            raise Refused(501, str(error), code="form_unavailable") from None
        try:
            rows = reading_of(
                backend.database,
                found,
                backend.settings,
                keep=how.keep,
                order=how.order,
                form=how.form,
                letter=partial(dead_letter_for, found),
            )
            made = table_pieces(rows, rows.columns, how.form, escape_formulas=how.escape_formulas)
            return found, chain([next(made)], made)
        except SinkError as error:
            raise _refused(error) from None

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reading(backend, caller))
        found, pieces = await backend.run(begin)
        kept = stack.pop_all()
    name = quote(f"{shown_key(found) or found.job_id}.{how.form}", safe="")
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        STATE: str(found.state),
    }
    return _Whole(_pieces(backend, pieces), media_type=TABLES[how.form], headers=headers, held=kept)


def _refused(error: SinkError) -> Refused:
    """Return the refusal of a table, which says no path of the server."""
    cause = error.__cause__
    if isinstance(cause, SourceError) and cause.code == "missing_column":
        return Refused(400, str(cause), code="invalid_value", param="keep_columns")
    log.warning("a table of results was refused: %s", error)
    return Refused(
        409,
        "a table has the columns and the order of the job's source, which cannot be read now; take "
        "the answers alone (order=done), or have the operator look at the log",
        code="source_unreadable",
    )


class _Whole(StreamingResponse):
    """Ends what it holds also where its caller has gone before the first piece."""

    def __init__(self, pieces: AsyncIterator[bytes], *, held: AsyncExitStack, **more: Any) -> None:
        super().__init__(pieces, **more)
        self._its = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._its:
            await super().__call__(scope, receive, send)


async def streamed(
    backend: Backend, begin: Callable[[], Iterator[bytes]], limit: int | None
) -> StreamingResponse:
    """Stream the lines of ``begin``, which looks for the job first.

    Its errors, and those of the first line, are raised before the stream begins.
    """

    def first() -> Iterator[bytes]:
        lines = begin()
        some = lines if limit is None else islice(lines, limit)
        return chain(list(islice(some, 1)), some)

    return StreamingResponse(_pieces(backend, await backend.run(first)), media_type=NDJSON)


def with_cursor(line: bytes, cursor: str) -> bytes:
    """Return a line of JSON with the cursor that goes on behind it."""
    return line.rstrip()[:-1] + b',"cursor":' + orjson.dumps(cursor) + b"}\n"


async def _pieces(backend: Backend, lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces, each read once the one before is taken.

    When the reader goes, nothing is open.
    """
    while piece := await backend.run(_next_piece, lines):
        yield piece


def _next_piece(lines: Iterator[bytes]) -> bytes:
    piece = bytearray()
    for number, line in enumerate(lines, 1):
        piece += line
        if number >= LINES_TOGETHER or len(piece) >= BYTES_TOGETHER:
            break
    return bytes(piece)


def _row(job: Job, table: Table, committed: Committed) -> bytes:
    outcome = committed.outcome
    told = outcome if isinstance(outcome, Result) else dead_letter_for(job, outcome)
    names = [column.name for column in table.columns]
    line = orjson.dumps(dict(zip(names, map(as_json, table.row(told)), strict=True)))
    return with_cursor(line, committed.cursor)


def _line(job: Job, committed: Committed) -> bytes:
    outcome = committed.outcome
    line = (
        output_line(outcome)
        if isinstance(outcome, Result)
        else error_line(dead_letter_for(job, outcome))
    )
    return with_cursor(line, committed.cursor)
