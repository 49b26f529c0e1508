"""Documents of an open job, one or many at once, and its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
from fastapi import Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.names import Writer, find_job
from penstock_gateway.jobs.schemas import NewItem, Pushed, Sealed
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_producer import PushedLine

router = Router()

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
