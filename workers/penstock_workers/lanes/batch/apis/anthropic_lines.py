"""Requests and results of Anthropic's Message Batches, line by line."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import orjson

from penstock_ledger.lone_surrogates import parse_json
from penstock_producer.job.endpoints import MESSAGES
from penstock_workers.lanes.batch.apis.output_lines import Line
from penstock_workers.lanes.batch.apis.reading import (
    LineReader,
    as_it_came,
    identifier,
    mapping,
    request_body,
    said,
)
from penstock_workers.lanes.batch.provider import (
    BadLine,
    BatchAnswer,
    BatchLimits,
    LineTooLong,
    UnreadableLine,
)

PREFIX: Final = b'{"custom_id":"'  # what each packed line begins with: the mark is put behind it
MARK_CHARS: Final = 8
STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Of an errored request, which has no status in a batch: what it would have had in real time."""
ENDS: Final = {"canceled": "batch_cancelled", "expired": "batch_expired"}


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


class Read(NamedTuple):
    """An answer, and the mark of the batch that stood before its custom id; "" where none stood
    there."""

    mark: str
    answer: BatchAnswer


_lines: Final = LineReader(_Line)


def write_line(custom_id: str, endpoint: str, body: bytes, limits: BatchLimits) -> bytes:
    """Raises BadLine and LineTooLong."""
    if endpoint != MESSAGES:
        raise BadLine(
            f"Anthropic's batches take requests to {MESSAGES}, and this one is for {endpoint}"
        )
    if not 0 < len(custom_id) <= limits.id_chars:
        raise BadLine(
            f"the custom id has {len(custom_id)} characters, and may have 1 to {limits.id_chars}"
        )
    line = b"".join((PREFIX, custom_id.encode(), b'","params":', request_body(body), b"}\n"))
    if len(line) > limits.line_bytes:
        raise LineTooLong(f"the request has {len(line)} bytes, and may have {limits.line_bytes}")
    return line


def read_line(output: str, line: Line) -> Read | UnreadableLine:
    try:
        found = _lines.read(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return UnreadableLine(output, line.number, f"no result of a batch: {said(str(error))}")
    mark, custom_id = parted(found.custom_id)
    if identifier(custom_id) is None:
        return UnreadableLine(output, line.number, "its custom_id is empty or no usable name")
    try:
        answer = _answer(custom_id, found.result, line.text)
    except orjson.JSONDecodeError as error:
        return UnreadableLine(output, line.number, f"its error cannot be read: {error}")
    if answer is None:
        return UnreadableLine(
            output,
            line.number,
            f"a result of the type {said(found.result.type)!r}, or without its content",
        )
    return Read(mark, answer)


def parted(marked: str) -> tuple[str, str]:
    """The mark of its batch, and the custom id behind it."""
    mark, hyphen, custom_id = marked.partition("-")
    return (mark, custom_id) if hyphen and len(mark) == MARK_CHARS else ("", marked)


def _answer(custom_id: str, result: _Result, text: bytes) -> BatchAnswer | None:
    message, error = as_it_came(result.message, text), as_it_came(result.error, text)
    if result.type == "succeeded" and message.startswith(b"{"):
        return BatchAnswer(custom_id, 200, message)
    if result.type == "errored" and error.startswith(b"{"):
        return _errored(custom_id, error)
    end = ENDS.get(result.type)
    return None if end is None else BatchAnswer(custom_id, None, b"", error=end)


def _errored(custom_id: str, body: bytes) -> BatchAnswer:
    envelope = parse_json(body)
    inner = mapping(envelope.get("error"))
    code = said(inner.get("type")) or "api_error"
    status = STATUSES.get(code, 500)
    return BatchAnswer(
        custom_id,
        status,
        body,
        identifier(envelope.get("request_id")),
        code,
        said(inner.get("message")),
    )
