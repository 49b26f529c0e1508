"""`/v1/messages/batches`, as Anthropic's clients call it."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, Query
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.batches.calls import batch_for
from penstock_gateway.batches.figures import with_live_counts
from penstock_gateway.batches.specs import ANTHROPIC, spec_of
from penstock_gateway.callers.caller import Caller, caller_with
from penstock_gateway.callers.rows import whose
from penstock_gateway.files.store import FileStore
from penstock_gateway.ids import new_id
from penstock_gateway.messages.intake import taken_in
from penstock_gateway.messages.results import result_lines
from penstock_gateway.messages.shown import PATH, shown
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import BatchesAsked, DoorBatch, DoorBatchStore, NewDoorBatch, Whose, purge_job
from penstock_producer import SpecError
from penstock_producer.job.endpoints import MESSAGES

router = Router(tags=["messages"])

PAGE, PAGE_MAX = 20, 1000
JSONL: Final = "application/x-jsonl"

Reader = Annotated[Caller, Depends(caller_with("read"))]
Writer = Annotated[Caller, Depends(caller_with("write"))]
Edge = Annotated[str | None, Query(max_length=100)]


@router.post(PATH, operation_id="create_message_batch")
async def create(request: Request, caller: Writer) -> JSONResponse:
    """Its shape is checked at once; what is wrong with a request itself is that request's
    result."""
    backend, batch_id = backend_of(request), new_id("msgbatch")
    window_s = backend.settings.gateway.batches.messages_window_s
    _check_provider(backend, caller, window_s)
    file, requests = await taken_in(backend, request.stream(), caller.tenant, batch_id)
    new = NewDoorBatch(
        batch_id=batch_id,
        kind=ANTHROPIC,
        tenant=caller.tenant,
        endpoint=MESSAGES,
        input_file_id=file.file_id,
        window_s=window_s,
        counts={"total": requests},
    )
    batch, _ = await backend.run(DoorBatchStore(backend.database).add, new)
    backend.batch_made.set()
    return JSONResponse(shown(batch, batch.counts, _origin(request)))


@router.get(PATH, operation_id="list_message_batches")
async def page(
    request: Request,
    caller: Reader,
    after_id: Edge = None,
    before_id: Edge = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE,
) -> JSONResponse:
    """The newest first."""
    if after_id is not None and before_id is not None:
        raise Refused(
            400,
            "Only one of before_id and after_id may be given.",
            code="invalid_value",
            param="before_id",
        )
    backend = backend_of(request)
    wanted = BatchesAsked(ANTHROPIC, limit, whose(caller), after=after_id, before=before_id)
    data, has_more = await backend.run(_page, backend, wanted, _origin(request))
    ends = (
        {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        if data
        else {"first_id": None, "last_id": None}
    )
    return JSONResponse({"data": data, **ends, "has_more": has_more})


@router.get(PATH + "/{batch_id}", operation_id="retrieve_message_batch")
async def retrieve(request: Request, batch_id: str, caller: Reader) -> JSONResponse:
    backend = backend_of(request)
    batch, counts = await backend.run(_looked_at, backend, batch_id, caller)
    return JSONResponse(shown(batch, counts, _origin(request)))


@router.post(PATH + "/{batch_id}/cancel", operation_id="cancel_message_batch")
async def cancel(request: Request, batch_id: str, caller: Writer) -> JSONResponse:
    """What is under way still ends, with its result."""
    backend = backend_of(request)
    batch, counts = await backend.run(_cancelled, backend, batch_id, caller)
    return JSONResponse(shown(batch, counts, _origin(request)))


@router.delete(PATH + "/{batch_id}", operation_id="delete_message_batch")
async def delete(request: Request, batch_id: str, caller: Writer) -> JSONResponse:
    """The batch, what was sent, and its results."""
    backend = backend_of(request)
    await backend.run(_deleted, backend, batch_id, caller)
    return JSONResponse({"id": batch_id, "type": "message_batch_deleted"})


@router.get(PATH + "/{batch_id}/results", operation_id="read_message_batch_results")
async def results(request: Request, batch_id: str, caller: Reader) -> StreamingResponse:
    backend = backend_of(request)
    lines = await backend.run(_results, backend, batch_id, caller)
    return StreamingResponse(iterate_in_threadpool(lines), media_type=JSONL)


def _check_provider(backend: Backend, caller: Caller, window_s: float) -> None:
    """Before a body of some hundred megabytes is read."""
    try:
        spec_of(
            backend.settings,
            kind=ANTHROPIC,
            tenant=caller.tenant,
            endpoint=MESSAGES,
            metadata=None,
            deadline_s=window_s,
        )
    except SpecError as error:
        raise Refused(400, error.public_message, code="unsupported") from None


def _origin(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _figures(store: DoorBatchStore, batch: DoorBatch) -> tuple[DoorBatch, dict[str, int]]:
    return batch, with_live_counts(store, [batch])[0]


def _page(backend: Backend, wanted: BatchesAsked, origin: str) -> tuple[list[dict[str, Any]], bool]:
    store = DoorBatchStore(backend.database)
    found = store.page(wanted)
    if found is None:
        edge = wanted.after or wanted.before or ""
        raise Refused(400, f"No such batch: {edge[:80]!r}", code="invalid_value", param="after_id")
    counts = with_live_counts(store, found.batches)
    return [
        shown(batch, one, origin) for batch, one in zip(found.batches, counts, strict=True)
    ], found.has_more


def _looked_at(backend: Backend, batch_id: str, caller: Caller) -> tuple[DoorBatch, dict[str, int]]:
    store = DoorBatchStore(backend.database)
    return _figures(store, batch_for(store, ANTHROPIC, batch_id, caller))


def _cancelled(backend: Backend, batch_id: str, caller: Caller) -> tuple[DoorBatch, dict[str, int]]:
    store = DoorBatchStore(backend.database)
    before = batch_for(store, ANTHROPIC, batch_id, caller)
    batch = store.cancel(batch_id) or before
    if batch.state.final:
        raise Refused(
            400, f"Batch {batch_id} has already ended and cannot be canceled.", code="invalid_state"
        )
    return _figures(store, batch)


def _deleted(backend: Backend, batch_id: str, caller: Caller) -> None:
    store = DoorBatchStore(backend.database)
    batch = batch_for(store, ANTHROPIC, batch_id, caller)
    if not batch.state.final:
        told = f"Batch {batch_id} cannot be deleted while it is in progress; cancel it first."
        raise Refused(400, told, code="invalid_state")
    if batch.job_id is not None:
        purge_job(backend.database, batch.job_id)
    files, its = FileStore(backend.settings, backend.database), Whose(batch.tenant)
    file = files.get(batch.input_file_id, its)
    if file is not None:
        files.delete(file, its)
    store.remove(batch_id)


def _results(backend: Backend, batch_id: str, caller: Caller) -> Any:
    batch = batch_for(DoorBatchStore(backend.database), ANTHROPIC, batch_id, caller)
    if not batch.state.final:
        raise Refused(
            404, f"{batch_id} has no available results: it is in progress.", code="not_found"
        )
    return result_lines(backend, batch)
