"""Lines of OpenAI's batch files: requests that are sent, and answers that are read."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from penstock_workers.lanes.batch.apis.output_lines import Line
from penstock_workers.lanes.batch.apis.reading import (
    MAX_ID_CHARS,
    LineReader,
    as_it_came,
    identifier,
    mapping,
    request_body,
    said,
)
from penstock_workers.lanes.batch.provider import BatchAnswer, LineTooLong, UnreadableLine


class _Response(msgspec.Struct):
    status_code: Any = None
    request_id: Any = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Answer(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: Any = None


_answers: Final = LineReader(_Answer)


def write_line(custom_id: str, endpoint: str | None, body: bytes, most_bytes: int) -> bytes:
    """``endpoint``: None where the batch names it for all its lines.

    Raises BadLine and LineTooLong."""
    named = {} if endpoint is None else {"method": "POST", "url": endpoint}
    head = orjson.dumps({"custom_id": custom_id, **named})
    line = b"".join((head[:-1], b',"body":', request_body(body), b"}\n"))
    if len(line) > most_bytes:
        raise LineTooLong(
            f"the request has {len(line)} bytes, and a line of a batch may have {most_bytes}"
        )
    return line


def read_line(output: str, line: Line) -> BatchAnswer | UnreadableLine:
    """What OpenAI, vLLM and their relatives write: a response, an error, or (vLLM) both."""
    try:
        answer = _answers.read(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return UnreadableLine(output, line.number, f"no answer of a batch: {said(str(error))}")
    if identifier(answer.custom_id) is None:
        return UnreadableLine(
            output, line.number, f"its custom_id is empty, or no name of {MAX_ID_CHARS} characters"
        )
    code, message = _error(answer.error)
    response = answer.response
    if response is not None and _is_status(response.status_code):
        body = as_it_came(response.body, line.text)
        if body == b"null" and answer.error:
            body = orjson.dumps({"error": answer.error})
        request_id = identifier(response.request_id)
        return BatchAnswer(
            answer.custom_id, response.status_code, body, request_id, code or None, message
        )
    if not answer.error:
        return UnreadableLine(
            output, line.number, "it has neither a response with a status nor an error"
        )
    return BatchAnswer(answer.custom_id, None, b"", error=code or "error", message=message)


def _is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599


def _error(error: object) -> tuple[str, str]:
    if isinstance(error, str):
        return "error", said(error)
    fields = mapping(error)
    code = fields.get("code") or fields.get("type")
    return said(str(code)) if code else "", said(fields.get("message"))
