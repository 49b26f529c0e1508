"""`/v1/batches`, as OpenAI's clients call it, and what its routes do, in threads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Depends, Query
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.batches.figures import stats_of, with_live_counts
from penstock_gateway.batches.finish import error_lines, never_begun
from penstock_gateway.batches.lines import outputs_of
from penstock_gateway.batches.specs import (
    OPENAI,
    AskedBatch,
    asked_batch,
    place_of,
    spec_of,
    tenant_of_batch,
)
from penstock_gateway.batches.validation import first_model
from penstock_gateway.bodies import object_of
from penstock_gateway.callers.caller import Caller, caller_with, pause_for, whose
from penstock_gateway.files.store import FileStore
from penstock_gateway.middleware import is_id, new_id
from penstock_gateway.news import News
from penstock_gateway.refused import Refused, not_found
from penstock_gateway.routing import Router
from penstock_gateway.webhooks import call_back, check_receiver
from penstock_ledger import (
    BatchesAsked,
    DoorBatch,
    DoorBatchState,
    DoorBatchStore,
    DoorFile,
    JobNotFound,
    JobStore,
    NewDoorBatch,
    OutcomeStore,
)
from penstock_ledger.model import Job
from penstock_producer import JobSpec, SourceError, SpecError
from penstock_producer.reporting.advice import over_http

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


def serialize_batch(
    batch: DoorBatch, counts: Mapping[str, int], job: Job | None = None
) -> dict[str, Any]:
    """Return a batch as OpenAI's clients know it.

    Times that have not come are null; what OpenAI has no field for is under `penstock`."""
    final = batch.state.final
    failed = sum(counts.get(name, 0) for name in ("errored", "canceled", "expired"))
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": window_in_words(batch.window_s),
        "status": str(batch.state),
        "output_file_id": batch.output_file_id if final else None,
        "error_file_id": batch.error_file_id if final else None,
        "created_at": int(batch.created_at),
        "in_progress_at": _at(batch, DoorBatchState.IN_PROGRESS),
        "expires_at": int(batch.expires_at),
        "finalizing_at": _at(batch, DoorBatchState.FINALIZING),
        "completed_at": _at(batch, DoorBatchState.COMPLETED),
        "failed_at": _at(batch, DoorBatchState.FAILED),
        "expired_at": _at(batch, DoorBatchState.EXPIRED),
        "cancelling_at": _at(batch, DoorBatchState.CANCELLING),
        "cancelled_at": _at(batch, DoorBatchState.CANCELLED),
        "request_counts": {
            "total": counts.get("total", 0),
            "completed": counts.get("succeeded", 0),
            "failed": failed,
        },
        "usage": batch.usage,
        "metadata": batch.metadata,
        "penstock": _ours(batch, job),
    }


def window_in_words(seconds: float) -> str:
    """Return the window as it was given, or in a larger unit: 24h stays 24h."""
    whole = round(seconds)
    for unit, size in _UNITS:
        if whole % size == 0 and (unit != "d" or whole > size):
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _at(batch: DoorBatch, state: DoorBatchState) -> int | None:
    at = batch.times.get(state)
    return None if at is None else int(at)


def _ours(batch: DoorBatch, job: Job | None) -> dict[str, Any]:
    ours: dict[str, Any] = {"job_id": batch.job_id}
    if job is not None:  # as where its budget has paused it
        ours |= {"state": str(job.state), "reason": job.reason, "pause": pause_for(job)}
    return ours


_Found = tuple[DoorBatch, dict[str, int], Job | None]


def batch_for(store: DoorBatchStore, kind: str, batch_id: str, caller: Caller) -> DoorBatch:
    """Return the batch that a caller may see.

    Raises Refused, in the same words for an id that never was and for one of another tenant.
    """
    fits = is_id("batch" if kind == OPENAI else "msgbatch", batch_id)
    batch = store.get(batch_id) if fits else None
    if batch is None or batch.kind != kind or not caller.may_see(batch.tenant):
        raise not_found("batch", batch_id)
    return batch


def _live_job(backend: Backend, batch: DoorBatch) -> Job | None:
    """Return the job of a batch that has not ended."""
    if batch.job_id is None or batch.state.final:
        return None
    try:
        return JobStore(backend.database).get(batch.job_id)
    except JobNotFound:
        return None


def created(backend: Backend, asked: AskedBatch, caller: Caller, key: str | None) -> _Found:
    tenant = tenant_of_batch(asked.metadata, caller)
    _check(backend, asked, caller, tenant)
    new = NewDoorBatch(
        batch_id=new_id("batch") if key is None else _id_of(caller, key),
        kind=OPENAI,
        tenant=tenant,
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        window_s=asked.window_s,
        metadata=asked.metadata,
        output_expires_s=asked.output_expires_s,
    )
    store = DoorBatchStore(backend.database)
    batch, is_new = store.add(new)
    if not is_new and not _is_same(batch, new):
        told = (
            "This Idempotency-Key was used for another batch: use one for each, or send the same "
            "body."
        )
        raise Refused(422, told, code="idempotency_key_reused")
    return _figures(backend, store, batch)


def _check(backend: Backend, asked: AskedBatch, caller: Caller, tenant: str | None) -> None:
    """Refuse what can be refused at once.

    A file that is not there is not: the batch fails, as at OpenAI."""
    file = FileStore(backend.settings, backend.database).get(asked.input_file_id, whose(caller))
    if file is not None and file.purpose != "batch":
        told = (
            f"Invalid file: its purpose is {file.purpose!r}, and the input of a batch has the "
            "purpose 'batch'."
        )
        raise Refused(400, told, code="invalid_value", param="input_file_id")
    asked_spec = partial(
        spec_of,
        backend.settings,
        kind=OPENAI,
        tenant=tenant,
        endpoint=asked.endpoint,
        metadata=asked.metadata,
        deadline_s=asked.window_s,
    )
    try:
        spec = asked_spec()
        if file is not None and spec.budget_usd is not None:
            asked_spec(model=_first_model(backend, file, spec))
    except SpecError as error:
        problem = error.problems[0]
        raise Refused(
            400,
            over_http(error.public_message),
            code="invalid_value",
            param=place_of(problem.pointer),
        ) from None


def _first_model(backend: Backend, file: DoorFile, spec: JobSpec) -> str | None:
    """Return what the first line names.

    A file that cannot be read fails the batch, as at OpenAI, and is no matter of its budget."""
    try:
        return first_model(
            FileStore(backend.settings, backend.database).place(file), spec, backend.settings
        )
    except SourceError:
        return None


def _id_of(caller: Caller, key: str) -> str:
    """Return the same id for the same key of the same tenant.

    So a second create finds the batch of the first."""
    return (
        "batch_"
        + hashlib.sha256(f"{caller.tenant or ''}\0{key}".encode("utf-8", "replace")).hexdigest()[
            :40
        ]
    )


def _is_same(batch: DoorBatch, new: NewDoorBatch) -> bool:
    names = ("endpoint", "input_file_id", "window_s", "metadata", "output_expires_s")
    return all(getattr(batch, name) == getattr(new, name) for name in names)


def _figures(backend: Backend, store: DoorBatchStore, batch: DoorBatch) -> _Found:
    return batch, with_live_counts(store, [batch])[0], _live_job(backend, batch)


def looked_at(backend: Backend, batch_id: str, caller: Caller) -> _Found:
    store = DoorBatchStore(backend.database)
    return _figures(backend, store, batch_for(store, OPENAI, batch_id, caller))


def page_of(
    backend: Backend,
    wanted: BatchesAsked,
    serialize: Callable[[DoorBatch, Mapping[str, int]], dict[str, Any]] = serialize_batch,
    after: str = "after",
) -> tuple[list[dict[str, Any]], bool]:
    """Return a page of batches as ``serialize`` writes them, and whether there are more.

    ``after`` is what callers name the parameter that says where it begins. Raises Refused.
    """
    store = DoorBatchStore(backend.database)
    found = store.page(wanted)
    if found is None:
        edge = wanted.after or wanted.before or ""
        raise Refused(400, f"No such batch: {edge[:80]!r}", code="invalid_value", param=after)
    counts = with_live_counts(store, found.batches)
    return list(map(serialize, found.batches, counts)), found.has_more


def cancelled(backend: Backend, batch_id: str, caller: Caller) -> _Found:
    store = DoorBatchStore(backend.database)
    batch = store.cancel(batch_for(store, OPENAI, batch_id, caller).batch_id)
    if batch is None:
        raise not_found("batch", batch_id)
    if batch.state not in (DoorBatchState.CANCELLING, DoorBatchState.CANCELLED):
        told = f"Cannot cancel a batch with status '{batch.state}'."
        raise Refused(409, told, code="invalid_state")
    return _figures(backend, store, batch)


router = Router(tags=["batches"])

PAGE, PAGE_MAX = 20, 100
KEY_MAX: Final = 255  # characters of an Idempotency-Key
JSONL: Final = "application/jsonl"

Reader = Annotated[Caller, Depends(caller_with("read"))]
Writer = Annotated[Caller, Depends(caller_with("write"))]


@router.post("/v1/batches", operation_id="create_batch")
async def create(request: Request, caller: Writer) -> JSONResponse:
    """Create the batch, which is validated from here on.

    Faults of its file are shown by the batch, not refused here."""
    backend = backend_of(request)
    asked = asked_batch(object_of(await request.json()))
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= KEY_MAX:
        raise Refused(
            400, f"An Idempotency-Key has 1 to {KEY_MAX} characters.", code="invalid_value"
        )
    if asked.callback_url is not None:
        await check_receiver(backend, asked.callback_url, "callback_url")
    batch, counts, job = await backend.run(created, backend, asked, caller, key)
    headers = await backend.run(
        call_back, backend, batch.batch_id, batch.tenant, asked.callback_url
    )
    backend.part(News).tell()
    return JSONResponse(serialize_batch(batch, counts, job), headers=headers)


@router.get("/v1/batches", operation_id="list_batches")
async def page(
    request: Request,
    caller: Reader,
    after: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE,
) -> JSONResponse:
    """List the caller's batches, newest first."""
    backend = backend_of(request)
    wanted = BatchesAsked(OPENAI, limit, whose(caller), after=after)
    data, has_more = await backend.run(page_of, backend, wanted)
    ends = (
        {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        if data
        else {"first_id": None, "last_id": None}
    )
    return JSONResponse({"object": "list", "data": data, **ends, "has_more": has_more})


@router.get("/v1/batch/stats", operation_id="show_batch_stats")
async def stats(request: Request, caller: Reader) -> JSONResponse:
    """Add up the caller's newest batches of both APIs: states, requests, and tokens."""
    backend = backend_of(request)
    store = DoorBatchStore(backend.database)
    return JSONResponse(await backend.run(stats_of, store, whose(caller)))


@router.get("/v1/batches/{batch_id}", operation_id="retrieve_batch")
async def retrieve(request: Request, batch_id: str, caller: Reader) -> JSONResponse:
    backend = backend_of(request)
    return JSONResponse(serialize_batch(*await backend.run(looked_at, backend, batch_id, caller)))


@router.post("/v1/batches/{batch_id}/cancel", operation_id="cancel_batch")
async def cancel(request: Request, batch_id: str, caller: Writer) -> JSONResponse:
    """Cancel a batch; what is under way still ends.

    What was not begun is not, and both are in the files of the cancelled batch."""
    backend = backend_of(request)
    return JSONResponse(serialize_batch(*await backend.run(cancelled, backend, batch_id, caller)))


@router.get("/v1/batches/{batch_id}/output", operation_id="read_batch_output")
async def output(
    request: Request, batch_id: str, caller: Reader, partial: bool = False
) -> StreamingResponse:
    """Return the answers so far, as lines; OpenAI has them at the end only, as the output file."""
    return await _lines(backend_of(request), batch_id, caller, partial, errors=False)


@router.get("/v1/batches/{batch_id}/errors", operation_id="read_batch_errors")
async def errors(
    request: Request, batch_id: str, caller: Reader, partial: bool = False
) -> StreamingResponse:
    """Return the errors so far, as lines."""
    return await _lines(backend_of(request), batch_id, caller, partial, errors=True)


async def _lines(
    backend: Backend, batch_id: str, caller: Caller, partial: bool, *, errors: bool
) -> StreamingResponse:
    batch, _, job = await backend.run(looked_at, backend, batch_id, caller)
    if not batch.state.final and not partial:
        told = (
            f"The batch is {batch.state}: wait until it has ended, or add ?partial=true for what "
            "there is."
        )
        raise Refused(409, told, code="incomplete")
    if batch.job_id is None and batch.state is DoorBatchState.CANCELLED:
        lines = await backend.run(never_begun, backend, batch) if errors else iter(())
        return StreamingResponse(
            iterate_in_threadpool(lines), media_type=JSONL, headers={"x-incomplete": "false"}
        )
    if batch.job_id is None or (job is None and not batch.state.final):
        raise Refused(
            409, f"The batch is {batch.state}: nothing was answered yet.", code="incomplete"
        )
    found = await backend.run(JobStore(backend.database).get, batch.job_id)
    lines = (
        error_lines(backend, batch, found)
        if errors
        else outputs_of(OutcomeStore(backend.database), batch, found)
    )
    headers = {"x-incomplete": "false" if batch.state.final else "true"}
    return StreamingResponse(iterate_in_threadpool(lines), media_type=JSONL, headers=headers)
