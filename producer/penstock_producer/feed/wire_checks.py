"""What a message may hold: each check returns the value, or raises BadMessage with what it is and
must be."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from penstock_producer.doc_ids import id_fault
from penstock_producer.errors import BadMessage, seen
from penstock_producer.job.endpoints import check_path

SECONDS_MAX = 2**40  # of times in messages: far beyond any clock
MAX_REF_CHARS = 1024  # a byte range, a row's number, or a document id
SAFE_ID = re.compile(r"[A-Za-z0-9_.@-]{1,128}", re.ASCII)


def job(value: Any) -> str:
    if not isinstance(value, str) or SAFE_ID.fullmatch(value) is None:
        raise BadMessage(
            f"kwargs.job is {seen(value)}; it must be the id of a job, such as job_2f5k7c3q"
        )
    return value


def doc(value: Any) -> str:
    fault = (
        id_fault(value)
        if isinstance(value, str)
        else (f"It is {type(value).__name__}, not text.", "")
    )
    if fault is not None:
        raise BadMessage(f"kwargs.doc is {seen(value)}, which is not a document id. {fault[0]}")
    return str(value)


def ref(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_REF_CHARS or not value.isprintable():
        raise BadMessage(
            f"kwargs.ref is {seen(value)}; it must be a position, 1 to {MAX_REF_CHARS} printable "
            "characters"
        )
    return value


def endpoint(value: Any) -> str:
    try:
        return check_path(value if isinstance(value, str) else "")
    except ValueError as error:
        raise BadMessage(f"kwargs.endpoint is {seen(value)}; {error}") from None


def number(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadMessage(f"{name} is {seen(value)}; it must be an integer from {least} to {most}")
    return value


def body(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # integers beyond 64 bit, from another producer than Penstock's
        pass
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadMessage(
            f"kwargs.body is not a JSON object: {type(error).__name__}: {error}"
        ) from error
