"""A door refuses with the one exception that routes raise for their callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.exceptions import HTTPException

__all__ = ["INVALID_REQUEST", "Refused", "not_found", "not_json"]

INVALID_REQUEST = "invalid_request_error"


class Refused(HTTPException):
    """Answered with ``status`` and ``message``, in the shape that clients of the path know.

    ``code`` is for programs, ``param`` names the field, ``kind`` is OpenAI's word for the sort of
    error, ``problems`` is each field that is wrong, where problem details tell them. (A framework
    that reads
    a body lets an HTTPException through, and would answer any other exception itself.)
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = INVALID_REQUEST,
        headers: Mapping[str, str] | None = None,
        problems: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.status, self.message, self.code, self.param, self.kind = (
            status,
            message,
            code,
            param,
            kind,
        )
        self.problems = tuple(problems)


def not_found(what: str, name: str) -> Refused:
    """Return a 404, the same for an id that never was and for one of another tenant."""
    return Refused(404, f"No such {what}: {name[:80]!r}", code="not_found", param="id")


def not_json() -> Refused:
    """Return the 415 of a body whose type is another one."""
    message = "The body has to be JSON: send the header `Content-Type: application/json`."
    return Refused(415, message, code="unsupported_content_type")
