"""Looking at jobs: the list, one of them, and how callers see it.

A cursor says where a page ends, as one text that a caller gives back.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import orjson
import redis
from fastapi import Query, Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller, error_for, pause_for, shown_source
from penstock_gateway.jobs import schemas
from penstock_gateway.jobs.names import Reader, find_job, shown_key, tenant_of
from penstock_gateway.jobs.schemas import JobDetails, JobList
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import BatchFigures, BatchSum, JobPages, JobPlace, OutcomeStore
from penstock_ledger.model import Counts, Job, JobState
from penstock_producer.reporting.account import Report, gathered
from penstock_producer.reporting.money import money_of
from penstock_producer.reporting.reasons import held_by_tenant, standing_of, waits

_MICRO: Final = 1_000_000
# Of a source: not keys of rows, places in packed files and the like, which are for readers.
_SOURCE: Final = ("kind", "uri", "size", "sha256", "etag", "job_id", "generation", "where")


def counted(backend: Backend, job: Job) -> schemas.JobResponse:
    """Return a job with its counts. Blocks."""
    return serialize_job(job, OutcomeStore(backend.database).counts(job.job_id))


def serialize_job(job: Job, counts: Counts) -> schemas.JobResponse:
    return schemas.JobResponse(**_fields(job, counts))


def detailed(backend: Backend, job: Job) -> schemas.JobDetails:
    """Return a job with its counts and its details. Blocks."""
    # before the transaction, which Redis must not hold up
    stats, waits_for = (_stats(backend, job), _waits_for(backend, job))
    waiting = _waits(backend, job)
    with backend.database.one_read():
        batches = BatchFigures(backend.database).sums(job.job_id)
        counts = OutcomeStore(backend.database).counts(job.job_id)
        report = gathered(backend.database, job, stats=stats, counts=counts)
    left, rate = remaining(job, counts), report.items_per_second
    fields = _fields(job, counts)
    fields["usage"]["cost_usd"] = report.cost_usd
    return schemas.JobDetails(
        **fields,
        waits_for=waits_for,
        waits=waiting,
        batch_troubles=_batch_troubles(job, batches),
        unread=_unread(batches),
        items_per_second=rate,
        eta_s=round(left / rate, 1) if left and rate > 0 and not job.state.final else None,
        retries=report.retries,
        rate_limited=report.rate_limited,
        retried_by_reason=report.retried_by_reason,
        lanes=report.lanes,
        started_by=job.source.get("started_by"),
        source=_source(job),
        spec={name: value for name, value in job.spec.items() if value is not None},
    )


def _batch_troubles(job: Job, batches: Sequence[BatchSum]) -> list[schemas.BatchTroubleResponse]:
    return [
        schemas.BatchTroubleResponse(
            provider=one.provider,
            batches=number,
            **trouble._replace(said=error_for(job, trouble.said))._asdict(),
        )
        for one in batches
        for number, trouble in one.troubles
    ]


def _unread(batches: Sequence[BatchSum]) -> schemas.UnreadResponse | None:
    with_unread = [one for one in batches if one.unread]
    if not with_unread:
        return None
    costs = [one.unread_microusd for one in with_unread if one.unread_microusd is not None]
    cost_usd = round(sum(costs) / _MICRO, 6) if len(costs) == len(with_unread) else None
    return schemas.UnreadResponse(answers=sum(one.unread for one in with_unread), cost_usd=cost_usd)


def report_of(backend: Backend, job: Job, *, sizes: bool = False) -> Report:
    """Return the report of the job; with ``sizes`` it reads every row. Blocks."""
    return gathered(backend.database, job, stats=_stats(backend, job), sizes=sizes)


def remaining(job: Job, counts: Counts) -> int | None:
    """Return how many documents have no outcome; None while an open job is not sealed."""
    return None if job.total is None else max(0, job.total - counts.succeeded - counts.dead)


def _source(job: Job) -> dict[str, Any]:
    shown: dict[str, Any] = {name: job.source[name] for name in _SOURCE if name in job.source}
    return shown | {"uri": shown_source(job)} if "uri" in shown else shown


def _stats(backend: Backend, job: Job) -> Mapping[str, int]:
    """Return the counts that only the queue has; nothing where Redis does not answer."""
    try:
        return backend.fleet.stats(job.job_id)
    except redis.RedisError:
        return {}


def _waits_for(backend: Backend, job: Job) -> str | None:
    if job.state is not JobState.RUNNING or tenant_of(job) is None:
        return None
    try:
        return held_by_tenant(job, backend.fleet.budgets.seen(job.job_id))
    except redis.RedisError:
        return None


def _waits(backend: Backend, job: Job) -> list[schemas.WaitResponse]:
    if job.state is not JobState.RUNNING:
        return []
    try:
        standing = standing_of(backend.fleet, backend.database, job, backend.fleet.workers())
    except redis.RedisError:
        return []
    return [
        schemas.WaitResponse(code=wait.code, params=dict(wait.params), message=wait.said)
        for wait in waits(standing)
    ]


def _fields(job: Job, counts: Counts) -> dict[str, Any]:
    pause = pause_for(job)
    return {
        "id": job.job_id,
        "job": shown_key(job),
        "tenant": tenant_of(job),
        "state": str(job.state),
        "reason": (error_for(job, job.reason) or None) if pause is None else pause["message"],
        "pause": pause,
        "resume_at": job.resume_at,
        "generation": job.generation,
        "lane": job.lane,
        "open": job.total is None and not job.state.final,
        "created_at": job.created_at,
        "finished_at": job.finished_at,
        "counts": {
            "total": job.total,
            "succeeded": counts.succeeded,
            "succeeded_after_retry": counts.succeeded_after_retry,
            "dead": counts.dead,
            "remaining": remaining(job, counts),
            "dead_by_reason": counts.dead_by_reason,
        },
        "usage": {
            "calls": counts.calls,
            "prompt_tokens": counts.prompt_tokens,
            "completion_tokens": counts.completion_tokens,
            "cost_usd": money_of(counts).usd,
        },
    }


__all__ = ["counted", "decoded", "encoded", "remaining", "report_of", "serialize_job"]

_CHARS_MAX: Final = 2_000  # an id of a document has at most 512 bytes

router = Router(prefix="/v1/jobs", tags=["jobs"])

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
