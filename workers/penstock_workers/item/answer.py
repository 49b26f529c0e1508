"""What came back from one try of inference, before it has a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from penstock_ledger.redaction import redact_bytes, redact_excerpt
from penstock_ledger.vectors import MAGIC
from penstock_workers.item.answer_memory import Room


class Answer(Struct, frozen=True):
    """A complete HTTP answer (or its in-process equal).

    ``body`` is raw; nothing has looked inside yet."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    latency_ms: int
    room: Room | None = None  # that a large body takes; None for small ones
    # the body is vectors that the lane itself has packed (penstock_ledger.vectors), and no JSON
    packed: bool = False


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The try ended without a complete answer.

    ``failure`` is one of the names in item/run/fates.py: `timeout`, `connect_failed`,
    `connection_lost`, `answer_too_large`, … ``sent`` tells whether the provider may have seen, and
    billed, the request.
    """

    failure: str
    detail: str
    latency_ms: int
    sent: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)


Tried = Answer | NoAnswer


def kept(status: int, body: bytes) -> bytes:
    """Return what is kept of a body: an answer byte for byte as it came, and a refusal, which is
    only words, without secrets."""
    return body if status == 200 else redact_bytes(body)


def excerpt(body: bytes | None, size: int) -> bytes | None:
    """Return the beginning of an answer that came to nothing, for a person, without secrets."""
    if body is not None and body.startswith(MAGIC):
        return b"(vectors, %d bytes)" % len(body)
    return redact_excerpt(body, size) if body else None
