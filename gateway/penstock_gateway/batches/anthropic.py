"""`/v1/messages/batches`, as Anthropic's clients call it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Annotated, Any, Final

import orjson
from fastapi import Depends, Header, Query
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.batches.anthropic_body import taken_in
from penstock_gateway.batches.figures import (
    CANCELLED,
    DEADLINE,
    ended_by_deadline,
    with_live_counts,
)
from penstock_gateway.batches.lines import NotReached, in_words_of, why_failed
from penstock_gateway.batches.routes import batch_for, page_of
from penstock_gateway.batches.specs import ANTHROPIC, input_path, spec_of, spec_of_batch
from penstock_gateway.callers.caller import Caller, caller_with, whose
from penstock_gateway.files.store import FileStore
from penstock_gateway.middleware import new_id
from penstock_gateway.news import News
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_gateway.webhook_delivery import URL_MAX
from penstock_gateway.webhooks import call_back, check_receiver
from penstock_ledger import (
    BatchesAsked,
    DoorBatch,
    DoorBatchState,
    DoorBatchStore,
    JobNotFound,
    JobStore,
    NewDoorBatch,
    OutcomeStore,
    Whose,
)
from penstock_ledger.model import DeadLetter, Job, JobState, Result
from penstock_producer import SpecError
from penstock_producer.job.endpoints import MESSAGES
from penstock_producer.outputs import on_one_line
from penstock_producer.reporting.advice import over_http
from penstock_producer.sources import Document, open_source

__all__ = ["result_lines", "serialize_batch"]

PATH: Final = "/v1/messages/batches"
_ENDS: Final = ("succeeded", "errored", "canceled", "expired")


def serialize_batch(batch: DoorBatch, counts: Mapping[str, int], origin: str) -> dict[str, Any]:
    """Return the object; ``origin`` is this server as its caller has addressed it."""
    over = [batch.times[state] for state in DoorBatchState if state.final and state in batch.times]
    ended = {name: counts.get(name, 0) for name in _ENDS}
    cancelled_at = batch.times.get(DoorBatchState.CANCELLING)
    return {
        "id": batch.batch_id,
        "type": "message_batch",
        "processing_status": _status(batch),
        "request_counts": {
            "processing": max(0, counts.get("total", 0) - sum(ended.values())),
            **ended,
        },
        "created_at": _rfc3339(batch.created_at),
        "expires_at": _rfc3339(batch.expires_at),
        "ended_at": _rfc3339(over[0]) if over else None,
        "cancel_initiated_at": None if cancelled_at is None else _rfc3339(cancelled_at),
        "archived_at": None,
        "results_url": f"{origin}{PATH}/{batch.batch_id}/results" if over else None,
    }


def _status(batch: DoorBatch) -> str:
    if batch.state.final:
        return "ended"
    return "canceling" if batch.state is DoorBatchState.CANCELLING else "in_progress"


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def result_lines(backend: Backend, batch: DoorBatch) -> Iterator[bytes]:
    """Yield the lines of the results.

    Raises Refused where there is nothing to read any more.
    """
    if batch.job_id is None:
        path = input_path(backend, batch)
        if path is None:
            raise Refused(404, f"{batch.batch_id} has no available results.", code="not_found")
        return _inputs_file(backend, batch, path)
    try:
        job = JobStore(backend.database).get(batch.job_id)
    except JobNotFound:
        raise Refused(
            404, f"{batch.batch_id} has no available results.", code="not_found"
        ) from None
    # As they were when it ended, whatever was replayed since.
    outcomes = OutcomeStore(backend.database).as_of(
        job.job_id, batch.counts.get("generation", job.generation)
    )
    lines = (_line(batch, job, outcome) for outcome in outcomes)
    return (
        chain(lines, _not_reached(backend, batch, job))
        if batch.state is DoorBatchState.FAILED
        else lines
    )


def _not_reached(backend: Backend, batch: DoorBatch, job: Job) -> Iterator[bytes]:
    """Yield the lines of requests that were not reached, of a job that failed as a whole.

    A job that was made to run again since has no more of them.
    """
    if job.state is not JobState.FAILED:
        return
    result = _errored(why_failed(job))
    for doc_id in NotReached(backend, batch, job).ids():
        yield _written(doc_id, result)


def _line(batch: DoorBatch, job: Job, outcome: Result | DeadLetter) -> bytes:
    if isinstance(outcome, Result):
        return _written(
            outcome.key.doc_id,
            {"type": "succeeded", "message": orjson.Fragment(_message(batch, job, outcome))},
        )
    if outcome.reason in (CANCELLED, DEADLINE):
        late = DoorBatchState.CANCELLING not in batch.times and ended_by_deadline(job)
        return _written(outcome.key.doc_id, {"type": "expired" if late else "canceled"})
    return _written(outcome.key.doc_id, {"type": "errored", "error": _error(job, outcome)})


def _message(batch: DoorBatch, job: Job, result: Result) -> bytes:
    return on_one_line(in_words_of(batch, job, result).body)


def _error(job: Job, letter: DeadLetter) -> Any:
    """Return the provider's own error where it gave one.

    Of a refused request its line, without the place where the file lies here."""
    # the latter: too deep to be written again
    with contextlib.suppress(orjson.JSONDecodeError, orjson.JSONEncodeError):
        given = orjson.loads(letter.response or b"")
        if (
            isinstance(given, dict)
            and given.get("type") == "error"
            and isinstance(given.get("error"), dict)
        ):
            theirs = {
                "type": "error",
                "error": given["error"],
                "request_id": given.get("request_id"),
            }
            return orjson.Fragment(orjson.dumps(theirs))
    code = letter.status_code
    is_theirs = letter.line is not None or (code is not None and 400 <= code < 500)
    kind = (
        "invalid_request_error"
        if is_theirs
        else "timeout_error"
        if letter.reason == "timeout"
        else "api_error"
    )
    message = letter.last_error.removeprefix(f"{job.source.get('uri')} ")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _inputs_file(backend: Backend, batch: DoorBatch, path: str) -> Iterator[bytes]:
    """Yield the lines of a batch that was cancelled, or has failed, before it was a job."""
    spec = spec_of_batch(backend.settings, batch, batch.window_s)
    result = _errored(batch.errors[0]["message"]) if batch.errors else {"type": "canceled"}
    for row in open_source(path, spec, backend.settings).documents({}):
        name = row.doc_id if isinstance(row, Document) else row.doc_id or ""
        yield _written(name, result)


def _errored(message: str) -> dict[str, Any]:
    error = {"type": "api_error", "message": message}
    return {"type": "errored", "error": {"type": "error", "error": error, "request_id": None}}


def _written(custom_id: str, result: dict[str, Any]) -> bytes:
    return orjson.dumps(
        {"custom_id": custom_id, "result": result}, option=orjson.OPT_APPEND_NEWLINE
    )


router = Router(tags=["messages"])

PAGE, PAGE_MAX = 20, 1000
JSONL: Final = "application/x-jsonl"
CALLBACK: Final = "x-penstock-callback-url"  # a header, as the body is that of Anthropic's API

Reader = Annotated[Caller, Depends(caller_with("read"))]
Writer = Annotated[Caller, Depends(caller_with("write"))]
Edge = Annotated[str | None, Query(max_length=100)]


@router.post(PATH, operation_id="create_message_batch")
async def create(
    request: Request,
    caller: Writer,
    callback_url: Annotated[
        str | None,
        Header(alias=CALLBACK, max_length=URL_MAX, description="Where its events are sent."),
    ] = None,
) -> JSONResponse:
    """Create a batch, whose shape is checked at once.

    What is wrong with a request itself is that request's result."""
    backend, batch_id = backend_of(request), new_id("msgbatch")
    if callback_url is not None:
        await check_receiver(backend, callback_url, CALLBACK)
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
    headers = await backend.run(call_back, backend, batch_id, batch.tenant, callback_url)
    backend.part(News).tell()
    return JSONResponse(serialize_batch(batch, batch.counts, _origin(request)), headers=headers)


@router.get(PATH, operation_id="list_message_batches")
async def page(
    request: Request,
    caller: Reader,
    after_id: Edge = None,
    before_id: Edge = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE,
) -> JSONResponse:
    """List the caller's batches, newest first."""
    if after_id is not None and before_id is not None:
        raise Refused(
            400,
            "Only one of before_id and after_id may be given.",
            code="invalid_value",
            param="before_id",
        )
    backend = backend_of(request)
    wanted = BatchesAsked(ANTHROPIC, limit, whose(caller), after=after_id, before=before_id)
    data, has_more = await backend.run(
        page_of, backend, wanted, partial(serialize_batch, origin=_origin(request)), "after_id"
    )
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
    return JSONResponse(serialize_batch(batch, counts, _origin(request)))


@router.post(PATH + "/{batch_id}/cancel", operation_id="cancel_message_batch")
async def cancel(request: Request, batch_id: str, caller: Writer) -> JSONResponse:
    """Cancel a batch; what is under way still ends, with its result."""
    backend = backend_of(request)
    batch, counts = await backend.run(_cancelled, backend, batch_id, caller)
    return JSONResponse(serialize_batch(batch, counts, _origin(request)))


@router.delete(PATH + "/{batch_id}", operation_id="delete_message_batch")
async def delete(request: Request, batch_id: str, caller: Writer) -> JSONResponse:
    """Return the batch, what was sent, and its results."""
    backend = backend_of(request)
    await backend.run(_deleted, backend, batch_id, caller)
    return JSONResponse({"id": batch_id, "type": "message_batch_deleted"})


@router.get(PATH + "/{batch_id}/results", operation_id="read_message_batch_results")
async def results(request: Request, batch_id: str, caller: Reader) -> StreamingResponse:
    backend = backend_of(request)
    lines = await backend.run(_results, backend, batch_id, caller)
    return StreamingResponse(iterate_in_threadpool(lines), media_type=JSONL)


def _check_provider(backend: Backend, caller: Caller, window_s: float) -> None:
    """Check the provider before a body of some hundred megabytes is read."""
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
        raise Refused(400, over_http(error.public_message), code="unsupported") from None


def _origin(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _figures(store: DoorBatchStore, batch: DoorBatch) -> tuple[DoorBatch, dict[str, int]]:
    return batch, with_live_counts(store, [batch])[0]


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
        with contextlib.suppress(JobNotFound):  # it was purged before
            backend.operations.purge(JobStore(backend.database).get(batch.job_id))
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
