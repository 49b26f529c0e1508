"""Looking at jobs: the list, and one of them.

A cursor says where a page ends, as one text that a caller gives back.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated, Any, Final

import orjson
from fastapi import Query, Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.names import Reader, find_job
from penstock_gateway.jobs.schemas import JobDetails, JobList
from penstock_gateway.jobs.serialized import detailed, serialize_job
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import JobPages, JobPlace
from penstock_ledger.model import Job, JobState

__all__ = ["decoded", "encoded"]

_CHARS_MAX: Final = 2_000  # an id of a document has at most 512 bytes

router = Router()

PAGE_MAX: Final = 200  # jobs of one answer


def encoded(*parts: float | str) -> str:
    return urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


def decoded(cursor: str, first: type[int] | type[float]) -> tuple[Any, str]:
    """Return the number and the text that a cursor holds.

    Raises Refused for a text that is no such cursor.
    """
    try:
        number, name = orjson.loads(
            urlsafe_b64decode(cursor[:_CHARS_MAX] + "=" * (-len(cursor) % 4))
        )
    except (ValueError, TypeError):
        raise _unknown() from None
    if type(number) is not first or not isinstance(name, str) or not -(2**53) < number < 2**53:
        raise _unknown()
    return number, name


def _unknown() -> Refused:
    return Refused(
        400,
        "the cursor is not one that a list has returned; begin without one",
        code="invalid_cursor",
        param="cursor",
    )


@router.get("", operation_id="list_jobs")
async def list_jobs(
    request: Request,
    caller: Reader,
    state: Annotated[list[JobState] | None, Query(description="Only jobs in these states.")] = None,
    search: Annotated[
        str, Query(max_length=200, description="Part of a key or id, in capitals or not.")
    ] = "",
    cursor: Annotated[
        str | None, Query(max_length=500, description="`next` or `previous` of another page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
) -> JobList:
    """List jobs, newest first."""
    backend = backend_of(request)
    return await backend.run(_page, backend, caller, state, search, cursor, limit)


@router.get("/{job}", operation_id="retrieve_job")
async def show(request: Request, job: str, caller: Reader) -> JobDetails:
    """Show one job: counts, rates, lanes, cost, and why it waits where it does."""
    backend = backend_of(request)

    def look() -> JobDetails:
        return detailed(backend, find_job(backend, caller, job))

    return await backend.run(look)


def _page(
    backend: Backend,
    caller: Caller,
    states: list[JobState] | None,
    search: str,
    cursor: str | None,
    limit: int,
) -> JobList:
    side, _, place = (cursor or "").partition(".")
    where = JobPlace(*decoded(place, float)) if cursor is not None else None
    page = JobPages(backend.database).page(
        tenants=None if "admin" in caller.scopes else [caller.tenant],
        states=states,
        search=search,
        before=None if side == _NEWER else where,
        after=where if side == _NEWER else None,
        limit=limit,
    )
    shown = [serialize_job(job, counts) for job, counts in page.jobs]
    edges = [job for job, _ in page.jobs]
    return JobList(
        data=shown,
        next=_cursor(_OLDER, edges[-1]) if edges and page.older else None,
        previous=_cursor(_NEWER, edges[0]) if edges and page.newer else None,
    )


_OLDER: Final = "o"
_NEWER: Final = "n"


def _cursor(side: str, job: Job) -> str:
    return f"{side}.{encoded(job.created_at, job.job_id)}"
