"""The report of a job in the forms of `penstock report`: JSON, text, Markdown or one HTML page."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Header, Query, Request
from starlette.responses import Response

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.jobs.listing import report_of
from penstock_gateway.jobs.names import Reader, find_job, reading
from penstock_gateway.routing import Router
from penstock_ledger import OutcomeStore
from penstock_ledger.lone_surrogates import replace_surrogates
from penstock_ledger.model import Job
from penstock_ledger.texts import Command, Run
from penstock_producer.reporting.advice import command_line
from penstock_producer.reporting.forms import markdown, page, plain_text
from penstock_producer.reporting.timeline import timeline_of

router = Router(prefix="/v1/jobs", tags=["jobs"])

Form = Literal["json", "text", "markdown", "html"]

_TYPES: Final[dict[Form, str]] = {
    "json": "application/json",
    "text": "text/plain",
    "markdown": "text/markdown",
    "html": "text/html",
}
_READ_ALL: Final[tuple[Form, ...]] = ("markdown", "html")  # every row of a job, for its timeline
_EXAMPLE: Final[dict[str, Any]] = {
    "job": "tickets-2026-11-21",
    "state": "completed",
    "total": 1000,
    "succeeded": 994,
    "dead": 6,
    "cost_usd": 0.046864,
    "seconds": 212.6,
    "dead_by_reason": {"bad_request": 6},
}
_TEXT: Final = "99.4 % succeeded, 1.2 % after retry, 0.6 % dead  (994 + 6 of 1,000 documents)\n"
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": (
            "The account of the job, as `report.json` has it, or in the form that was asked for."
        ),
        "content": {
            "application/json": {"schema": {"type": "object"}, "example": _EXAMPLE},
            "text/plain": {"schema": {"type": "string"}, "example": _TEXT},
            "text/markdown": {
                "schema": {"type": "string"},
                "example": "# Report of job tickets-2026-11-21\n",
            },
            "text/html": {"schema": {"type": "string"}, "example": "<!doctype html>\n"},
        },
    }
}
# The page has a policy of its own, too, which allows its one style sheet. It is foreign text on the
# address of the doors.
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "sandbox"
    ),
    "x-content-type-options": "nosniff",
    "vary": "accept",
}


@router.get(
    "/{job}/report", operation_id="read_job_report", response_class=Response, responses=_ANSWERS
)
async def report(
    request: Request,
    job: str,
    caller: Reader,
    form: Annotated[
        Form | None,
        Query(
            alias="format", description="The form of the report; it goes before the header Accept."
        ),
    ] = None,
    accept: Annotated[
        str, Header(description="One of the types of the report; JSON where it names none.")
    ] = "",
) -> Response:
    """Return the account of a job: its outcomes, what it cost, each lane, and what was saved."""
    backend, asked = backend_of(request), form or _accepted(accept)

    def look() -> bytes:
        return _written(backend, find_job(backend, caller, job), asked)

    if asked in _READ_ALL:
        async with reading(backend, caller):
            written = await backend.run(look)
    else:
        written = await backend.run(look)
    return Response(written, media_type=_TYPES[asked], headers=_HEADERS)


def _written(backend: Backend, job: Job, form: Form) -> bytes:
    found, command = (
        report_of(backend, job, sizes=form in _READ_ALL),
        command_line(Run(Command.DEAD_LETTERS, (job.job_id,))),
    )
    if form == "json":
        return orjson.dumps(found.to_json())
    if form == "text":
        text = plain_text(found, dlq_command=command)
    else:
        timeline, write = (
            timeline_of(OutcomeStore(backend.database), job),
            markdown if form == "markdown" else page,
        )
        text = write(found, timeline, dlq_command=command, now=time.time())
    return replace_surrogates(text).encode()


def _accepted(header: str) -> Form:
    """Return the form that the header wants most, JSON among equals."""
    best: tuple[float, Form] = (0.0, "json")
    for part in header.lower().split(","):
        named, *parameters = (word.strip() for word in part.split(";"))
        form: Form | None = next((form for form, kind in _TYPES.items() if kind == named), None)
        weight = _weight(parameters)
        if form is not None and (weight > best[0] or (weight == best[0] and form == "json")):
            best = (weight, form)
    return best[1]


def _weight(parameters: list[str]) -> float:
    given = next((one[2:] for one in parameters if one.startswith("q=")), "1")
    try:
        return min(1.0, max(0.0, float(given)))
    except ValueError:
        return 0.0
