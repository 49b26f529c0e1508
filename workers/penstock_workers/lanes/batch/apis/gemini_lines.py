"""Lines of Gemini's batch files: requests that are sent, and responses that are read."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from penstock_producer.job.endpoints import GENERATE
from penstock_workers.lanes.batch.apis.output_lines import Line
from penstock_workers.lanes.batch.apis.reading import (
    LineReader,
    as_it_came,
    identifier,
    mapping,
    request_object,
    said,
)
from penstock_workers.lanes.batch.provider import BadLine, BatchAnswer, LineTooLong, UnreadableLine

STATUSES: Final = {
    2: 500,
    3: 400,
    4: 504,
    5: 404,
    6: 409,
    7: 403,
    8: 429,
    9: 400,
    10: 409,
    11: 400,
    12: 501,
    13: 500,
    14: 503,
    15: 500,
    16: 401,
}
"""HTTP statuses of the codes of google.rpc.Code, which an operation's errors carry."""


CANCELLED: Final = 1  # of google.rpc.Code


class _Answer(msgspec.Struct):
    key: str
    response: msgspec.Raw = msgspec.Raw(b"")
    error: Any = None
    status: Any = None  # an error, too, in outputs of older batches


_answers: Final = LineReader(_Answer)


def write_line(custom_id: str, endpoint: str, body: bytes, most_bytes: int) -> bytes:
    """Raises BadLine and LineTooLong.

    The model is the batch's: a request that names it says so only to Penstock."""
    if endpoint != GENERATE:
        raise BadLine(
            f"Gemini's batches take requests to {GENERATE}, and this one is for {endpoint}"
        )
    request = request_object(body)
    request.pop("model", None)
    line = orjson.dumps({"key": custom_id, "request": request}) + b"\n"
    if len(line) > most_bytes:
        raise LineTooLong(
            f"the request has {len(line)} bytes, and a line of a batch may have {most_bytes}"
        )
    return line


def read_line(output: str, line: Line) -> BatchAnswer | UnreadableLine:
    try:
        answer = _answers.read(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        return UnreadableLine(output, line.number, f"no response of a batch: {said(str(fault))}")
    if identifier(answer.key) is None:
        return UnreadableLine(output, line.number, "its key is empty or no usable name")
    response = as_it_came(answer.response, line.text)
    if response.startswith(b"{"):
        return BatchAnswer(answer.key, 200, response)
    error = mapping(answer.error) or mapping(answer.status)
    if error.get("code") == CANCELLED:
        return BatchAnswer(
            answer.key, None, b"", error="batch_cancelled", message=said(error.get("message"))
        )
    if not error:
        return UnreadableLine(output, line.number, "it has neither a response nor an error")
    return BatchAnswer(
        answer.key,
        _status(error.get("code")),
        orjson.dumps({"error": error}),
        error=said(error.get("status")) or "error",
        message=said(error.get("message")),
    )


def _status(code: object) -> int:
    if isinstance(code, int) and not isinstance(code, bool):
        return code if 400 <= code <= 599 else STATUSES.get(code, 500)
    return 500
