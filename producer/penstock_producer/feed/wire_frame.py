"""The parts of a message: the constant bytes around an item, and the checks of what it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from penstock_producer.errors import BadMessage, seen
from penstock_producer.job.endpoints import check_path
from penstock_producer.rows import id_fault

__all__ = [
    "AIMED_VERSION",
    "CALLS_HEADER",
    "FED_HEADER",
    "MESSAGE_VERSION",
    "STREAM_HEADER",
    "TASK_NAME",
    "URGENT_HEADER",
    "door_of",
    "frame_of",
]

# the door whose caller reads the answer as it comes, as ``keys.passed_to`` takes it
STREAM_HEADER = "x-penstock-stream"
_DOOR = re.compile(r"[0-9a-f]{1,32}")
SECONDS_MAX = 2**40  # of times in messages: far beyond any clock
MAX_REF_CHARS = 1024  # a byte range, a row's number, or a document id
SAFE_ID = re.compile(r"[A-Za-z0-9_.@-]{1,128}", re.ASCII)


def door_of(headers: Mapping[str, Any]) -> str | None:
    """Return the door whose caller reads the answer as it comes. Headers come from outside."""
    door = headers.get(STREAM_HEADER)
    return door if isinstance(door, str) and _DOOR.fullmatch(door) is not None else None


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


TASK_NAME = "penstock.item"
MESSAGE_VERSION = 1
GENERATION_HEADER = "x-penstock-gen"
# of a message with an `endpoint`, which workers of earlier releases do not know: they park it
AIMED_VERSION = 2
# requests sent for the item in earlier attempts; absent in a message that is new
CALLS_HEADER = "x-penstock-calls"
# true in messages that wait at the consuming end; absent in all others
URGENT_HEADER = "x-penstock-urgent"
# Unix seconds, rounded down to 10, when the item first came into a queue
FED_HEADER = "x-penstock-fed"
ORIGIN = "penstock"
_FRAMES_KEPT = 256  # (job, generation, queue, retries, calls, urgent, fed, endpoint) combinations


class Frame(NamedTuple):
    """The parts of a message that are equal for all documents of one feed."""

    kwargs: bytes
    before_id: bytes
    before_repr: bytes
    before_correlation: bytes
    before_tag: bytes


@lru_cache(maxsize=_FRAMES_KEPT)
def frame_of(
    job_id: str,
    generation: int,
    queue: str,
    retries: int,
    calls: int,
    urgent: bool,
    fed: int | None,
    endpoint: str | None,
) -> Frame:
    quoted = orjson.dumps
    version = b"%d" % MESSAGE_VERSION
    if endpoint is not None:
        version = b'%d,"endpoint":%b' % (AIMED_VERSION, quoted(endpoint))
    return Frame(
        kwargs=b'[[],{"v":%b,"job":%b,"gen":%d,"doc":' % (version, quoted(job_id), generation),
        before_id=b',"content-encoding":"utf-8","content-type":"application/json",'
        b'"headers":{"lang":"py","task":%b,"id":' % quoted(TASK_NAME),
        before_repr=b',"root_id":%b,"parent_id":null,"group":null,"retries":%d,"argsrepr":"()","kwargsrepr":'
        % (quoted(job_id), retries),
        before_correlation=b',"origin":%b,%b:%d%b},"properties":{"correlation_id":'
        % (
            quoted(ORIGIN),
            quoted(GENERATION_HEADER),
            generation,
            (b",%b:%d" % (quoted(CALLS_HEADER), calls) if calls else b"")
            + (b",%b:true" % quoted(URGENT_HEADER) if urgent else b"")
            + (b",%b:%d" % (quoted(FED_HEADER), fed) if fed is not None else b""),
        ),
        before_tag=b',"delivery_mode":2,"delivery_info":{"exchange":"","routing_key":%b},"priority":0,"delivery_tag":'
        % quoted(queue),
    )
