"""The item message: a Celery protocol-2 JSON task message in kombu's Redis envelope, hand-built.

What differs from `apply_async`, on purpose: headers that would be null are left out, the body is
JSON text instead of base64, the repr headers never hold a prompt, and the delivery tag is the task
id. The last one makes the tag of an item the same wherever its message is built, so a republished
duplicate can be recognised before it is claimed twice. A contract test compares every field with
what the installed Celery sends.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from penstock_ledger.model import COUNT_MAX, ItemKey
from penstock_producer.errors import BadMessage, UnknownMessageVersion, seen
from penstock_producer.feed import wire_frame
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.tracing import TRACEPARENT_HEADER
from penstock_producer.feed.wire_frame import (
    AIMED_VERSION,
    CALLS_HEADER,
    FED_HEADER,
    MESSAGE_VERSION,
    STREAM_HEADER,
    TASK_NAME,
    URGENT_HEADER,
    door_of,
    frame_of,
)

__all__ = [
    "CALLS_HEADER",
    "FED_HEADER",
    "SPENT_HEADER",
    "STREAM_HEADER",
    "TASK_NAME",
    "URGENT_HEADER",
    "ItemMessage",
    "decode_item",
    "door_of",
    "encode_item",
    "item_tag",
    "queue_name",
]

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
    FED_HEADER: wire_frame.SECONDS_MAX,
}
_TRACEPARENT = b',"%b":%%b' % TRACEPARENT_HEADER.encode()
_STREAM = b',"%b":%%b' % STREAM_HEADER.encode()
_SPENT = b',"%b":%%b' % SPENT_HEADER.encode()
_EMBED = b'},{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]'


class ItemMessage(NamedTuple):
    """A worker's knowledge of one item. Exactly one of ``body`` and ``ref`` is set."""

    key: ItemKey
    body: bytes | None  # the provider's request body, JSON
    ref: str | None  # position in the source, for bodies above 16 KiB
    endpoint: str | None = None  # the path that it is for, where that is not the job's


def item_tag(key: ItemKey) -> str:
    """Return the Celery task id and kombu delivery tag of an item.

    It is readable when the document id is safe, a digest otherwise.
    """
    job_id, generation, doc_id = key
    if wire_frame.SAFE_ID.fullmatch(doc_id) is None or doc_id.startswith("sha256-"):
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
    endpoint = wire_frame.endpoint(kwargs.get("endpoint")) if version == AIMED_VERSION else None
    for name, most in _HEADER_MAX.items():
        if headers.get(name) is not None:
            wire_frame.number(f"headers.{name}", headers[name], 0, most)
    key = ItemKey(
        wire_frame.job(kwargs.get("job")),
        wire_frame.number("kwargs.gen", kwargs.get("gen"), 1, COUNT_MAX),
        wire_frame.doc(kwargs.get("doc")),
    )
    body, ref = kwargs.get("body"), kwargs.get("ref")
    if ref is not None and body is None:
        return ItemMessage(key, None, wire_frame.ref(ref), endpoint)
    if ref is not None or not isinstance(body, dict):
        raise BadMessage(
            f"item {key}: body={seen(body)}, ref={seen(ref)}; a message holds a JSON object or a "
            "ref"
        )
    return ItemMessage(key, wire_frame.body(body), None, endpoint)
