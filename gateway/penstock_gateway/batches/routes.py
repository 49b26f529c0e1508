"""`/v1/batches`, as OpenAI's clients call it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Query
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.batches.calls import cancelled, created, looked_at, page_of, serialize_batch
from penstock_gateway.batches.figures import stats_of
from penstock_gateway.batches.finish import error_lines, never_begun
from penstock_gateway.batches.lines import outputs_of
from penstock_gateway.batches.specs import OPENAI, asked_batch
from penstock_gateway.batches.steps import BatchMade
from penstock_gateway.bodies import object_of
from penstock_gateway.callers.caller import Caller, caller_with, whose
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_gateway.webhooks import call_back, check_receiver
from penstock_ledger import BatchesAsked, DoorBatchState, DoorBatchStore, JobStore, OutcomeStore

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
    backend.part(BatchMade).event.set()
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
