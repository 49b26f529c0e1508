"""The results of a message batch, a line for each request: from the ledger, or from what was sent
where no job came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain
from typing import Any

import orjson

from penstock_gateway.backend import Backend
from penstock_gateway.batches.failed import NotReached, why_failed
from penstock_gateway.batches.figures import CANCELLED, DEADLINE, ended_by_deadline
from penstock_gateway.batches.specs import input_path, spec_of_batch
from penstock_gateway.refused import Refused
from penstock_ledger import DoorBatch, DoorBatchState, JobNotFound, JobStore, OutcomeStore
from penstock_ledger.model import DeadLetter, Job, JobState, Result
from penstock_producer.outputs import on_one_line
from penstock_producer.sources import Document, open_source

__all__ = ["result_lines"]


def result_lines(backend: Backend, batch: DoorBatch) -> Iterator[bytes]:
    """Raises Refused where there is nothing to read any more."""
    if batch.job_id is None:
        path = input_path(backend, batch)
        if path is None:
            raise Refused(404, f"{batch.batch_id} has no available results.", code="not_found")
        return _of_what_was_sent(backend, batch, path)
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
    """Of a job that failed as a whole.

    A job that was made to run again since has no more of them."""
    if job.state is not JobState.FAILED:
        return
    result = _errored(why_failed(job))
    for doc_id in NotReached(backend, batch, job).ids():
        yield _written(doc_id, result)


def _line(batch: DoorBatch, job: Job, outcome: Result | DeadLetter) -> bytes:
    if isinstance(outcome, Result):
        return _written(
            outcome.key.doc_id,
            {"type": "succeeded", "message": orjson.Fragment(on_one_line(outcome.body))},
        )
    if outcome.reason in (CANCELLED, DEADLINE):
        late = DoorBatchState.CANCELLING not in batch.times and ended_by_deadline(job)
        return _written(outcome.key.doc_id, {"type": "expired" if late else "canceled"})
    return _written(outcome.key.doc_id, {"type": "errored", "error": _error(job, outcome)})


def _error(job: Job, letter: DeadLetter) -> Any:
    """The provider's own error where it gave one; of a refused request its line, without the place
    where the file lies here."""
    with contextlib.suppress(
        orjson.JSONDecodeError, orjson.JSONEncodeError
    ):  # the latter: too deep to be written again
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


def _of_what_was_sent(backend: Backend, batch: DoorBatch, path: str) -> Iterator[bytes]:
    """Of a batch that was cancelled, or has failed, before it was a job."""
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
