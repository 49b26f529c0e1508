"""The item message: a Celery protocol-2 JSON task message in kombu's Redis envelope, hand-built.

It is constant bytes around an item. What differs from `apply_async`, on purpose: headers that would
be null are left out, the body is JSON text instead of base64, the repr headers never hold a prompt,
and the delivery tag is the task id. The last one makes the tag of an item the same wherever its
message is built, so a republished duplicate can be recognised before it is claimed twice. A
contract test compares every field with what the installed Celery sends."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from penstock_ledger.model import COUNT_MAX, ItemKey
from penstock_producer.errors import BadMessage, UnknownMessageVersion, seen
from penstock_producer.feed import wire
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.tracing import TRACEPARENT_HEADER
from penstock_producer.job.endpoints import check_path
from penstock_producer.rows import id_fault

__all__ = [
    "AIMED_VERSION",
    "CALLS_HEADER",
    "FED_HEADER",
    "MESSAGE_VERSION",
    "SPENT_HEADER",
    "STREAM_HEADER",
    "TASK_NAME",
    "URGENT_HEADER",
    "Frame",
    "ItemMessage",
    "decode_item",
    "door_of",
    "encode_item",
    "frame_of",
    "item_tag",
    "queue_name",
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


# what earlier attempts used up: the fields of `Spent`, in workers' item/spent.py
SPENT_HEADER = "x-penstock-spent"
RETRIES_HEADER = "retries"  # Celery's own: attempts that counted
# Above this a message carries the document's position instead of its body: a window of 20,000
# messages then stays below 320 MB of Redis whatever the documents are.
MAX_INLINE_BODY_BYTES = 16 * 1024
_MAX_REPR_DOC_CHARS = 64  # what Flower shows of a document id

_HEADER_MAX = {
    RETRIES_HEADER: COUNT_MAX,
    CALLS_HEADER: COUNT_MAX,
    FED_HEADER: wire.SECONDS_MAX,
}
_TRACEPARENT = b',"%b":%%b' % TRACEPARENT_HEADER.encode()
_STREAM = b',"%b":%%b' % STREAM_HEADER.encode()
_SPENT = b',"%b":%%b' % SPENT_HEADER.encode()
_EMBED = b'},{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]'


class ItemMessage(NamedTuple):
    """What a worker needs to know of one item. Exactly one of ``body`` and ``ref`` is set."""

    key: ItemKey
    body: bytes | None  # the provider's request body, JSON
    ref: str | None  # position in the source, for bodies above 16 KiB
    endpoint: str | None = None  # the path that it is for, where that is not the job's


def item_tag(key: ItemKey) -> str:
    """Return the Celery task id and kombu delivery tag of an item.

    It is readable when the document id is safe, a digest otherwise.
    """
    job_id, generation, doc_id = key
    if wire.SAFE_ID.fullmatch(doc_id) is None or doc_id.startswith("sha256-"):
        doc_id = "sha256-" + hashlib.sha256(doc_id.encode()).hexdigest()
    tag = f"{job_id}:{doc_id}"
    return tag if generation == 1 else f"{tag}~g{generation}"


def encode_item(
    key: ItemKey,
    *,
    queue: str,
    body: bytes | None,
    ref: str | None,
    retries: int = 0,
    calls: int = 0,
    urgent: bool = False,
    fed: int | None = None,
    trace: str | None = None,
    spent: Sequence[int] | None = None,
    endpoint: str | None = None,
    stream: str | None = None,
) -> bytes:
    """Return the raw message to LPUSH.

    ``body`` must be valid JSON: it is embedded as it is, not parsed again.

    ``retries`` are attempts that counted, ``calls`` all requests that were sent; ``fed`` as
    ``fed_now`` gives it; ``trace`` is the `traceparent` of an item that is traced; ``spent`` is
    what answers cost that the job refused, for ``SPENT_HEADER``; ``endpoint`` is the path of an
    item that is not for the job's; ``stream`` is the door whose caller reads the answer as it
    comes, for ``STREAM_HEADER``.

    Raises ValueError unless exactly one of ``body`` and ``ref`` is given.
    """
    if (body is None) == (ref is None):
        raise ValueError(f"item {key}: give either body or ref, not both and not neither")
    job_id, generation, doc_id = key
    tag = item_tag(key)
    frame = frame_of(job_id, generation, queue, retries, calls, urgent, fed, endpoint)
    payload = b'"body":' + body if body is not None else b'"ref":' + orjson.dumps(ref)
    text = b"".join((frame.kwargs, orjson.dumps(doc_id), b",", payload, _EMBED))
    quoted_tag = orjson.dumps(tag)
    more = b"" if trace is None else _TRACEPARENT % orjson.dumps(trace)
    if spent is not None and any(spent):
        more += _SPENT % orjson.dumps([*spent])
    if stream is not None:
        more += _STREAM % orjson.dumps(stream)
    return b"".join(
        (
            b'{"body":',
            orjson.dumps(text.decode()),
            frame.before_id,
            quoted_tag,
            more,
            frame.before_repr,
            orjson.dumps(f"<{job_id} {doc_id[:_MAX_REPR_DOC_CHARS]}>"),
            frame.before_correlation,
            quoted_tag,
            frame.before_tag,
            quoted_tag,
            b"}}",
        )
    )


def fed_now() -> int:
    """Return the time for ``FED_HEADER``, rounded: many messages share what is built once."""
    return int(time.time()) // 10 * 10


def decode_item(kwargs: Any, headers: Mapping[str, Any]) -> ItemMessage:
    """Return the item named by a task message that Celery has parsed, of any shape.

    Raises UnknownMessageVersion for another version and BadMessage for anything else that is not of
    the promised shape: ids that no database takes, numbers beyond what is possible, a body that is
    not a JSON object.
    """
    if not isinstance(kwargs, dict):
        raise BadMessage(f"kwargs is {seen(kwargs)}; it must be a JSON object")
    version = kwargs.get("v")
    if version is None:
        raise BadMessage(
            f"kwargs without a version `v`: {seen(list(kwargs))}; send items through "
            "penstock_producer"
        )
    if isinstance(version, bool) or version not in (MESSAGE_VERSION, AIMED_VERSION):
        raise UnknownMessageVersion(version)
    endpoint = wire.endpoint(kwargs.get("endpoint")) if version == AIMED_VERSION else None
    for name, most in _HEADER_MAX.items():
        if headers.get(name) is not None:
            wire.number(f"headers.{name}", headers[name], 0, most)
    key = ItemKey(
        wire.job(kwargs.get("job")),
        wire.number("kwargs.gen", kwargs.get("gen"), 1, COUNT_MAX),
        wire.doc(kwargs.get("doc")),
    )
    body, ref = kwargs.get("body"), kwargs.get("ref")
    if ref is not None and body is None:
        return ItemMessage(key, None, wire.ref(ref), endpoint)
    if ref is not None or not isinstance(body, dict):
        raise BadMessage(
            f"item {key}: body={seen(body)}, ref={seen(ref)}; a message holds a JSON object or a "
            "ref"
        )
    return ItemMessage(key, wire.body(body), None, endpoint)
