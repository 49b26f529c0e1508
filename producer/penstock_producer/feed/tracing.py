"""One item is one trace: its ids, whether it is traced, and the header that says so.

Nothing here needs OpenTelemetry.

The ids are a digest of the item's key. So every process knows them without asking, and a message
that is fed again, given back, retried or taken over by another worker stays in its trace. Whether
an item is traced follows from its trace id, as with OpenTelemetry's TraceIdRatioBased, and travels
in the W3C header of the message.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from penstock_ledger.model import ItemKey

__all__ = [
    "TRACEPARENT_HEADER",
    "Sampler",
    "SpanContext",
    "parse_traceparent",
    "trace_of",
    "traceparent",
]

TRACEPARENT_HEADER = "traceparent"  # https://www.w3.org/TR/trace-context/
# digests of the documents that a feeder publishes at a time; each is asked for twice
_TRACES_KEPT = 5_000
_LOWER_64 = (1 << 64) - 1
_SAMPLED = 0x01
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class SpanContext(NamedTuple):
    """Names one span of one trace."""

    trace_id: int  # 128 bits
    span_id: int  # 64 bits


class SendSpans(Protocol):
    """The part of a feeder's tracing that asks about its items."""

    def header(self, key: ItemKey) -> str | None:
        """Return the item's ``traceparent``; None when it is not traced."""
        ...

    def sent(
        self, keys: Sequence[ItemKey], queue: str, began_ns: int, *, again: bool = False
    ) -> None:
        """Note that these items were published, in one call that began then.

        ``again``: they had been lost.
        """


@lru_cache(maxsize=_TRACES_KEPT)
def trace_of(key: ItemKey) -> SpanContext:
    """Return the trace of an item, and the span that is its root: that of its publishing."""
    job_id, generation, doc_id = key
    digest = hashlib.blake2b(
        f"{job_id}\0{generation}\0{doc_id}".encode(), digest_size=24, person=b"penstock-trace"
    )
    drawn = digest.digest()
    return SpanContext(int.from_bytes(drawn[:16], "big"), int.from_bytes(drawn[16:], "big"))


class Sampler:
    """The choice of the traces that are taken.

    Processes with the same share take the same ones, and a larger share takes those and more."""

    def __init__(self, share: float) -> None:
        self._bound = round(share * (_LOWER_64 + 1))

    def takes(self, trace_id: int) -> bool:
        return trace_id & _LOWER_64 < self._bound


def traceparent(context: SpanContext) -> str:
    """Return the header of a span that is sampled."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{_SAMPLED:02x}"


def parse_traceparent(header: object) -> tuple[SpanContext, bool] | None:
    """Return the span and whether it is sampled; None for any other text.

    Headers come from outside.
    """
    found = _TRACEPARENT.fullmatch(header) if isinstance(header, str) else None
    if found is None:
        return None
    context = SpanContext(int(found[1], 16), int(found[2], 16))
    return (context, bool(int(found[3], 16) & _SAMPLED)) if all(context) else None


def callers_span() -> str | None:
    """Return the ``traceparent`` of the span in which this is called.

    None unless the program uses OpenTelemetry and has one open.
    """
    # a program with an open span has imported it
    loaded: Any = sys.modules.get("opentelemetry.trace")
    if loaded is None:
        return None
    context = loaded.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
