"""A span as plain data, and its attribute names. ``sink.py`` turns it into OpenTelemetry's.

Attributes follow OpenTelemetry's semantic conventions for messaging and for generative AI; what
those have no word for starts with `penstock.`. No attribute ever holds a prompt, a document, an
answer, or the words of an error.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock_ledger.model import ItemKey
from penstock_producer.feed.tracing import SpanContext
from penstock_producer.feed.wire import item_tag

SYSTEM: Final = "celery"  # the messaging system; the broker behind it may be any of Celery's
TEXT_CHARS: Final = 256  # of an id or a model's name: they come from outside

Value = str | int | float | bool | list[str]

_ids = random.Random()  # span ids but for roots: OpenTelemetry asks for random, not for secret


class Kind(Enum):
    """The kinds of spans, by the names of OpenTelemetry's SpanKind."""

    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"
    CLIENT = "CLIENT"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span. Times in nanoseconds since 1970."""

    name: str
    kind: Kind
    context: SpanContext
    parent: SpanContext | None
    began_ns: int
    ended_ns: int
    attributes: dict[str, Value]
    error: bool = False
    links: list[SpanContext] = field(default_factory=list)


def child_of(context: SpanContext) -> SpanContext:
    """Make a new span of the same trace."""
    return SpanContext(context.trace_id, _ids.getrandbits(64) or 1)


def short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - 1] + "…"


def message_attributes(operation: str, queue: str, key: ItemKey) -> dict[str, Value]:
    """Return the attributes of every span about a message."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "messaging.message.id": item_tag(key),
        "penstock.job.id": key.job_id,
        "penstock.generation": key.generation,
        "penstock.document.id": short(key.doc_id),
    }
