"""Submitting a source, the outcomes of a job, or an open job, and pushing documents into that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import orjson
from fastapi import Header, Query, Request
from starlette.responses import Response

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.listing import counted
from penstock_gateway.jobs.names import Writer, find_job, options_of, reading, source_of, stored_key
from penstock_gateway.jobs.samples import submit_sample
from penstock_gateway.jobs.schemas import (
    JobResponse,
    NewItem,
    NewJob,
    PreviewResponse,
    Pushed,
    RowResponse,
    Sealed,
)
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_gateway.webhooks import call_back, check_receiver
from penstock_ledger import JobNotFound, JobStore
from penstock_ledger.model import Job
from penstock_producer import Preview, PushedLine, SpecError
from penstock_producer.accepting.sampling import preview as opened_preview
from penstock_producer.errors import Problem
from penstock_producer.job.spec import JobSpec
from penstock_producer.reporting.advice import over_http

router = Router(prefix="/v1/jobs", tags=["jobs"])

REQUESTS_MAX: Final = 100  # that a preview shows
PROBLEMS_MAX: Final = 100  # likewise


@router.post(
    "",
    status_code=201,
    responses={200: {"model": JobResponse, "description": "The same job, submitted before."}},
    operation_id="submit_job",
)
async def submit(
    request: Request,
    response: Response,
    given: NewJob,
    caller: Writer,
    idempotency_key: Annotated[
        str | None, Header(description="The job's key, where the body names none.")
    ] = None,
) -> JobResponse:
    """Submit a job.

    The source is read whole and checked before anything is accepted; the answer comes once the job
    is durable. With a key, submitting the same again answers 200 with the same job, and other
    content or options under the key 409.
    """
    backend = backend_of(request)
    key = given.job if given.job is not None else idempotency_key
    options = options_of(given, caller, backend)
    if given.callback_url is not None:
        await check_receiver(backend, given.callback_url, "callback_url")
    async with reading(backend, caller):
        job, is_new = await backend.run(_submitted, backend, caller, given, options, key)
    response.status_code = 201 if is_new else 200
    response.headers["location"] = f"/v1/jobs/{job.job_id}"
    tenant = job.spec.get("tenant")
    response.headers.update(
        await backend.run(call_back, backend, job.job_id, tenant, given.callback_url)
    )
    return await backend.run(counted, backend, job)


@router.post("/estimate", include_in_schema=False)  # as it was called
@router.post("/preview", operation_id="preview_job")
async def preview(
    request: Request,
    given: NewJob,
    caller: Writer,
    requests: Annotated[
        int, Query(ge=1, le=REQUESTS_MAX, description="How many requests to show.")
    ] = 3,
) -> PreviewResponse:
    """Show what a job would send, what is wrong with its rows, and about what it would cost.

    Reads the whole source, as a submit does, or outcomes of a job, and guesses tokens and cost from
    its first documents. Nothing is accepted or called.
    """
    return await previewed(request, given, caller, requests)


async def previewed(
    request: Request,
    given: NewJob,
    caller: Caller,
    number: int,
    write: Callable[[str], str] = over_http,
) -> PreviewResponse:
    """Return the preview of a job with ``number`` requests; ``write`` words what is refused."""
    backend = backend_of(request)
    options = options_of(given, caller, backend)
    if given.open:
        fix = "give source or from_job"
        raise SpecError(
            [Problem("missing_field", "/source", "an open job has no documents yet", fix)]
        )

    def read() -> PreviewResponse:
        return _shown(_previewed(backend, caller, given, options, number), write)

    async with reading(backend, caller):
        return await backend.run(read)


def _submitted(
    backend: Backend, caller: Caller, given: NewJob, options: dict[str, object], key: str | None
) -> tuple[Job, bool]:
    tenant = options.get("tenant")
    job_key = (
        None if key is None else stored_key(None if tenant is None else str(tenant), _checked(key))
    )
    is_new = job_key is None or not _is_known(backend, job_key)
    if given.open:
        return backend.remote.open_job(options, job_key=job_key).job, is_new
    if given.from_job is not None:
        behind = find_job(backend, caller, given.from_job)
        backend.remote_limits.check(JobSpec.from_json(options))
        return backend.producer.submit_from(
            behind.job_id, options, where=given.where, job_key=job_key
        ), is_new
    if given.sample is not None:
        return submit_sample(
            backend, caller, str(given.source), options, given.sample, job_key
        ), is_new
    source = source_of(backend, caller, str(given.source))
    timeout_s = backend.settings.doors.submit_timeout_s
    job = backend.remote.submit(
        source.where, options, job_key=job_key, timeout_s=timeout_s, uploaded=source.uploaded
    )
    return job, is_new


def _previewed(
    backend: Backend, caller: Caller, given: NewJob, options: dict[str, object], number: int
) -> Preview:
    if given.from_job is not None:
        behind, spec = find_job(backend, caller, given.from_job), JobSpec.from_json(options)
        backend.remote_limits.check(spec)
        opened = backend.producer.outcomes_source(behind.job_id, spec, where=given.where)
        return opened_preview(opened, spec, backend.settings.prices, number)
    source = source_of(backend, caller, str(given.source))
    timeout_s = backend.settings.doors.submit_timeout_s
    return backend.remote.preview(
        source.where, options, number, timeout_s=timeout_s, uploaded=source.uploaded
    )


def _shown(found: Preview, write: Callable[[str], str]) -> PreviewResponse:
    refusal = found.refusal()
    return PreviewResponse(
        **found.to_json(),
        refusal=None if refusal is None else write(refusal.public_message),
        problems=[
            RowResponse(
                line=row.shown_line,
                doc_id=row.doc_id,
                code=row.code,
                field=row.field,
                message=write(row.message),
                fix=write(row.fix),
            )
            for row in found.refused[:PROBLEMS_MAX]
        ],
    )


def _checked(key: str) -> str:
    """Return the key. Raises SpecError for one that looks like an id.

    Such a key would hide behind its tenant. The producer refuses what cannot be stored.
    """
    if not key or key.startswith("job_"):
        fix = "give a key of your own, which does not begin with job_"
        raise SpecError([Problem("invalid_value", "/job", "it cannot be the key of a job", fix)])
    return key


def _is_known(backend: Backend, job_key: str) -> bool:
    try:
        JobStore(backend.database).get(job_key)
    except JobNotFound:
        return False
    return True


_LINES: Final = ("application/x-ndjson", "application/jsonl", "application/json-lines")
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": NewItem.model_json_schema(),
            "example": {"id": "ticket-17", "document": {"text": "…"}},
        },
        "application/x-ndjson": {
            "schema": {"type": "string"},
            "example": (
                '{"id":"ticket-17","document":{"text":"…"}}\n'
                '{"id":"ticket-18","document":{"text":"…"}}\n'
            ),
        },
    },
}


@router.post("/{job}/items", openapi_extra={"requestBody": _BODY}, operation_id="push_items")
async def push(request: Request, job: str, caller: Writer) -> Pushed:
    """Push one document as JSON, or up to 10,000 as lines of JSON.

    The answer says what became of each line; what is not refused is durable then. The same again
    changes nothing.
    """
    backend = backend_of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", *_LINES):
        raise Refused(
            415,
            "Send one document as application/json, or lines of JSON as application/x-ndjson.",
            code="unsupported_content_type",
        )
    body = await request.body()
    if kind == "application/json":
        body = await backend.run_sized(len(body), _one_line, await request.json())
    return _told(await backend.run(_push, backend, caller, job, body))


@router.post("/{job}/seal", operation_id="seal_job")
async def seal(request: Request, job: str, caller: Writer) -> Sealed:
    """Say that an open job gets no more documents: it ends once they have. Safe to repeat."""
    backend = backend_of(request)

    def close() -> Sealed:
        found = find_job(backend, caller, job)
        _check_opened_here(backend, found.job_id)
        return Sealed(total=backend.remote.seal(found.job_id))

    return await backend.run(close)


def _push(backend: Backend, caller: Caller, name: str, lines: bytes) -> Sequence[PushedLine]:
    job = find_job(backend, caller, name)
    _check_opened_here(backend, job.job_id)
    return backend.remote.push_lines(job.job_id, lines)


def _check_opened_here(backend: Backend, job_id: str) -> None:
    if backend.settings.doors.push_into == "remote" and not backend.remote.came_from_remote(job_id):
        raise Refused(
            409,
            "the job was opened by a service with access to the database, and the setting "
            "doors.push_into is remote: open a job of your own, or have the operator set it to "
            "any",
            code="not_opened_here",
        )


def _one_line(given: Any) -> bytes:
    """Return an item as a line of input; a number as an id becomes its digits.

    Anything but an object is refused later, as a line, which says why.
    """
    if isinstance(given, dict) and type(given.get("id")) is int:
        given["id"] = str(given["id"])
    return orjson.dumps(given)


def _told(lines: Sequence[PushedLine]) -> Pushed:
    outcomes = [str(line.outcome) for line in lines]
    return Pushed.model_validate(
        {
            "accepted": outcomes.count("accepted"),
            "duplicates": outcomes.count("duplicate"),
            "refused": outcomes.count("refused"),
            "items": [line._asdict() for line in lines],
        }
    )
