"""An exception becomes an envelope in the form that clients of the path read.

One table says of each exception of the producer, the ledger or the framework which answer it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import orjson
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock_gateway.refused import INVALID_REQUEST, Refused, not_json
from penstock_gateway.render import error_page
from penstock_ledger import (
    BatchLost,
    DatabaseUnavailable,
    DatabaseUnusable,
    FeedLost,
    FilesTaken,
    JobClosed,
    JobConflict,
    JobError,
    JobNotFound,
    JobNotReplayable,
    LedgerError,
    NothingToReplay,
    OutcomesHeldBack,
    PenstockError,
    PlaceLost,
    RedisForgot,
    RedisUnfit,
    ScheduleExists,
    ScheduleNotFound,
    SchemaError,
    SchemaMissing,
    SchemaTooNew,
    SpoolConflict,
    TablesInUse,
    TooManySchedules,
    Trouble,
    trouble_of,
)
from penstock_producer import (
    ContentError,
    InvalidDocument,
    JobCancelled,
    JobRefused,
    ProducerError,
    Refusal,
    ScheduleError,
    SettingsError,
    SinkError,
    SinkTaken,
    SinkUnfit,
    SourceChanged,
    SourceError,
    SourceForbidden,
    SourceUnavailable,
    SpecError,
    TemplateError,
    TooManyBadRows,
)
from penstock_producer.reporting.advice import over_http

__all__ = [
    "ERRORS",
    "answer_to",
    "anthropic_error",
    "is_problem_path",
    "openai_error",
    "refused_for",
]

_ANTHROPIC: Final = "/v1/messages"
_PROBLEMS: Final = (
    "/v1/jobs",
    "/v1/webhooks",
    "/v1/keys",
    "/v1/schedules",
    "/v1/notifications",
    "/v1/limits",
)
_PAGES: Final = "/ui"
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_PHRASES: Final[Mapping[int, str]] = {int(status): status.phrase for status in HTTPStatus}


def answer_to(refused: Refused, path: str, request_id: str) -> Response:
    """Return the answer for an error, in the form that clients of the path read."""
    if path == "/" or _is_below(path, _PAGES):
        return error_page(refused.status, refused.message, request_id, refused.headers)
    if is_anthropic_path(path):
        return _json(refused, anthropic_error(refused, request_id))
    if is_problem_path(path):
        return _json(refused, _problem(refused, request_id), "application/problem+json")
    return _json(refused, openai_error(refused))


def is_anthropic_path(path: str) -> bool:
    """Return whether errors of this path are as Anthropic has them."""
    return _is_below(path, _ANTHROPIC)


def is_problem_path(path: str) -> bool:
    """Return whether errors of this path are problem details."""
    return any(_is_below(path, place) for place in _PROBLEMS)


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def openai_error(refused: Refused) -> dict[str, Any]:
    kind = "server_error" if refused.status >= 500 else refused.kind
    return {
        "error": {
            "message": refused.message,
            "type": kind,
            "param": refused.param,
            "code": refused.code,
        }
    }


def anthropic_error(refused: Refused, request_id: str) -> dict[str, Any]:
    default = "invalid_request_error" if refused.status < 500 else "api_error"
    kind = _ANTHROPIC_TYPES.get(refused.status, default)
    return {
        "type": "error",
        "error": {"type": kind, "message": refused.message},
        "request_id": request_id,
    }


def _problem(refused: Refused, request_id: str) -> dict[str, Any]:
    told = {
        "type": "about:blank",
        "title": _PHRASES.get(refused.status, "Error"),
        "status": refused.status,
        "detail": refused.message,
        "code": refused.code,
        "param": refused.param,
        "request_id": request_id,
        "errors": list(refused.problems) or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _json(refused: Refused, body: dict[str, Any], media_type: str = "application/json") -> Response:
    return Response(orjson.dumps(body), refused.status, refused.headers, media_type)


RETRY_AFTER_S: Final = 5
PROBLEMS_MAX: Final = 100  # that one answer lists; a spec has fewer fields


class Row(NamedTuple):
    status: int
    code: str  # for programs


_AWAY: Final = Row(503, "service_unavailable")
_FAULT: Final = Row(500, "internal_error")  # of the server's operator

# Every error that the producer and the ledger export; of others that are derived from them, the
# nearest counts.
ERRORS: Final[Mapping[type[PenstockError], Row]] = {
    SpecError: Row(400, "invalid_value"),
    TemplateError: Row(400, "invalid_value"),
    ContentError: Row(400, "invalid_content"),
    SourceError: Row(400, "invalid_source"),
    SourceUnavailable: Row(400, "source_unavailable"),
    SourceForbidden: Row(400, "source_forbidden"),
    SourceChanged: Row(409, "source_changed"),
    TooManyBadRows: Row(400, "too_many_bad_rows"),
    InvalidDocument: Row(400, "invalid_document"),
    SinkError: Row(400, "invalid_sink"),
    SinkUnfit: Row(400, "invalid_sink"),
    SinkTaken: Row(409, "sink_taken"),
    ScheduleError: Row(400, "invalid_schedule"),
    PlaceLost: Row(400, "invalid_cursor"),
    JobNotFound: Row(404, "not_found"),
    ScheduleNotFound: Row(404, "not_found"),
    JobError: Row(409, "job_conflict"),
    JobConflict: Row(409, "job_conflict"),
    JobClosed: Row(409, "job_closed"),
    JobCancelled: Row(409, "job_cancelled"),
    JobRefused: Row(409, "job_state"),
    JobNotReplayable: Row(409, "not_replayable"),
    NothingToReplay: Row(409, "nothing_to_replay"),
    SpoolConflict: Row(409, "document_conflict"),
    FilesTaken: Row(409, "files_taken"),
    ScheduleExists: Row(409, "schedule_exists"),
    TooManySchedules: Row(409, "too_many_schedules"),
    OutcomesHeldBack: _AWAY,
    DatabaseUnavailable: _AWAY,
    RedisForgot: _AWAY,
    TablesInUse: _AWAY,
    # None of these is for a caller to change.
    BatchLost: _FAULT,
    FeedLost: _FAULT,
    RedisUnfit: _FAULT,
    DatabaseUnusable: _FAULT,
    SchemaError: _FAULT,
    SchemaMissing: _FAULT,
    SchemaTooNew: _FAULT,
    SettingsError: _FAULT,
    LedgerError: _FAULT,
    ProducerError: _FAULT,
    PenstockError: _FAULT,
}


def refused_for(error: Exception, write: Callable[[str], str] = over_http) -> Refused:
    """Return what the caller is answered; ``write`` puts its advice into the caller's words."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, PenstockError):
        return _of_penstock(error, write)
    # no room, or locked by others
    if isinstance(error, DBAPIError) and trouble_of(error) is Trouble.AWAY:
        return _away(_AWAY.code)
    if isinstance(error, RequestValidationError):
        return _of_validation(error.errors())
    if isinstance(error, HTTPException) and (error.status_code, error.detail) == (
        404,
        HTTPStatus.NOT_FOUND.phrase,
    ):
        return Refused(
            404,
            "Nothing is served at this address: GET /openapi.json lists what is.",
            code="unknown_url",
        )
    if isinstance(error, HTTPException):
        return Refused(error.status_code, str(error.detail), headers=error.headers)
    return Refused(
        500, "the server has failed at this request; its log says more", code="internal_error"
    )


def _of_penstock(error: PenstockError, write: Callable[[str], str]) -> Refused:
    status, code = next(ERRORS[kind] for kind in type(error).__mro__ if kind in ERRORS)
    if status == 500:
        return Refused(500, "the server cannot do this now; its log says why", code=code)
    if status == 503:
        return _away(code)
    if isinstance(error, SpecError) and error.problems:
        first = error.problems[0]
        message = write(error.public_message)
        return Refused(
            400,
            message,
            code=first.code,
            param=_dotted(first.pointer),
            problems=_told(error, write),
        )
    if isinstance(error, ContentError):
        return Refused(400, write(error.public_message), code=error.code)
    if isinstance(error, JobRefused):
        return _of_job(error)
    if isinstance(error, JobNotFound):
        return Refused(404, f"No such job: {error.name[:80]!r}", code=code, param="job")
    return Refused(status, write(error.public_message), code=code)


def _of_job(error: JobRefused) -> Refused:
    """Return the refusal of an operation, in the codes that clients know."""
    known = error.code in (Refusal.NEEDED, Refusal.OPEN_BATCHES)
    message = error.about("the job")
    if error.code is Refusal.OPEN_BATCHES:
        message += (
            ". Wait for it, or let the operator forget them with leave_batches=true and cancel "
            "them at the provider"
        )
    return Refused(409, message, code=str(error.code) if known else ERRORS[JobRefused].code)


def _away(code: str) -> Refused:
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return Refused(
        503, "a server behind this one does not answer; try again", code=code, headers=headers
    )


def _told(error: SpecError, write: Callable[[str], str]) -> list[dict[str, str]]:
    """Return each problem.

    Without the value that was seen where that may be a prompt or a part of a document."""
    return [
        {
            "code": problem.code,
            "pointer": problem.pointer,
            "message": write(problem.message) if problem.is_public else "the value is refused",
            "fix": write(problem.fix),
        }
        for problem in error.problems[:PROBLEMS_MAX]
    ]


def _dotted(pointer: str) -> str | None:
    return ".".join(pointer.split("/")[1:]) or None


def _of_validation(faults: Any) -> Refused:
    """Return the first field that the framework refuses, without the value that was given."""
    first = faults[0] if faults else {}
    place = [str(part) for part in first.get("loc", ())]
    param = ".".join(place[1:]) or None
    if first.get("type") == "json_invalid":
        return Refused(400, "The body is not valid JSON.", code="invalid_json")
    # the framework hands on a body as it came where its type is not JSON
    if place == ["body"] and isinstance(first.get("input"), bytes):
        return not_json()
    code = "missing_required_parameter" if first.get("type") == "missing" else "invalid_value"
    where = f"{param}: " if param else ""
    return Refused(
        400,
        f"{where}{first.get('msg', 'the request is not valid')}",
        code=code,
        param=param,
        kind=INVALID_REQUEST,
    )
