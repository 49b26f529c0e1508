"""The parts of item messages that are equal for many documents, built once: names of the task and
its headers, versions."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import orjson

__all__ = [
    "AIMED_VERSION",
    "CALLS_HEADER",
    "FED_HEADER",
    "MESSAGE_VERSION",
    "TASK_NAME",
    "URGENT_HEADER",
    "Frame",
    "frame_of",
]

TASK_NAME = "penstock.item"
MESSAGE_VERSION = 1
GENERATION_HEADER = "x-penstock-gen"
# of a message with an `endpoint`, which workers of earlier releases do not know: they park it
AIMED_VERSION = 2
# requests sent for the item in earlier attempts; absent in a message that is new
CALLS_HEADER = "x-penstock-calls"
URGENT_HEADER = (
    "x-penstock-urgent"  # true in messages that wait at the consuming end; absent in all others
)
FED_HEADER = (
    "x-penstock-fed"  # Unix seconds, rounded down to 10, when the item first came into a queue
)
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
