"""From the notes of a settled item to its spans: `process`, and in it `wait`, the call to the model, and `settle`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import time_ns

from penstock_producer.tracing import TRACEPARENT_HEADER, Sampler, SpanContext, parse_traceparent, trace_of
from penstock_workers.item.flight import Flight
from penstock_workers.item.outcome import Dead, Outcome, Parked, Released, Retry, Skipped, Unreadable
from penstock_workers.item.shelves import Settled
from penstock_workers.tracing.model_call import ModelCalls
from penstock_workers.tracing.notes import Notes
from penstock_workers.tracing.spans import Kind, Span, Value, child_of, message_attributes

NS_PER_MS = 1_000_000
UNNAMED = "_OTHER"  # OpenTelemetry's word for an error without a name
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ADMITTED_BY = {"api": "quota", "gpu": "room"}  # what an item with a slot still waits for, by lane


class ItemTraces:
    """Decides which items of a worker are traced, and tells of them once they are settled. Used on the item loop."""

    def __init__(self, share: float, lane: str, calls: ModelCalls, put: Callable[[Iterable[Span]], None]) -> None:
        self._sampler = Sampler(share)
        self._admitted_by = _ADMITTED_BY.get(lane)
        self._calls = calls
        self._put = put

    def begin(self, flight: Flight, claimed_ns: int) -> Notes | None:
        """None for an item that is not traced, and for a message that names none.

        Who fed an item decides. Where its message says nothing, because another share holds there, the share here does.
        """
        if not hasattr(flight, "message"):
            return None
        told = parse_traceparent(flight.delivery.headers.get(TRACEPARENT_HEADER))
        root = trace_of(flight.key)
        has_root = told is not None and told[1]
        if not has_root and not self._sampler.takes(root.trace_id):
            return None
        return Notes(root, has_root, claimed_ns)

    def settled(self, group: Sequence[Settled]) -> None:
        """These are durable: their traces are told."""
        now_ns = time_ns()
        for flight, outcome in group:
            if flight.notes is not None:
                self._put(self._spans(flight, flight.notes, outcome, now_ns, len(group)))

    def _spans(self, flight: Flight, notes: Notes, outcome: Outcome, now_ns: int, group: int) -> Iterator[Span]:
        process = child_of(notes.root)
        yield self._wait(notes, process)
        if notes.called:
            yield self._calls.span(flight, notes, child_of(process), process)
        settle: dict[str, Value] = {"penstock.settle.items": group}
        yield Span("settle", Kind.INTERNAL, child_of(process), process, notes.judged, now_ns, settle)
        yield Span(
            f"process {flight.delivery.queue}",
            Kind.CONSUMER,
            process,
            notes.root if notes.has_root else None,
            notes.claimed,
            now_ns,
            _attributes(flight, outcome),
            error=_failed(outcome),
        )

    def _wait(self, notes: Notes, process: SpanContext) -> Span:
        """From the claim to the item's turn: for a slot, then for the quota or for room in the engine."""
        ended_ns = notes.admitted or notes.judged
        slot_ns = (notes.seated or notes.judged) - notes.claimed
        turn_ns = ended_ns - notes.asked if notes.asked else 0
        attributes: dict[str, Value] = {
            "penstock.wait.for": self._admitted_by if self._admitted_by and turn_ns > slot_ns else "slot",
            "penstock.wait.slot_ms": slot_ns / NS_PER_MS,
        }
        if self._admitted_by and notes.asked:
            attributes[f"penstock.wait.{self._admitted_by}_ms"] = turn_ns / NS_PER_MS
        return Span("wait", Kind.INTERNAL, child_of(process), process, notes.claimed, ended_ns, attributes)


def _attributes(flight: Flight, outcome: Outcome) -> dict[str, Value]:
    attributes = message_attributes("process", flight.delivery.queue, flight.key)
    attributes["penstock.attempt"] = flight.attempt
    attributes["penstock.outcome"] = type(outcome).__name__.lower()
    attributes["penstock.redelivered"] = flight.delivery.redelivered
    if flight.crashes:
        attributes["penstock.crashes"] = flight.crashes
    if isinstance(outcome, Retry):
        attributes["penstock.retry.after_s"] = outcome.after_s
        attributes["penstock.retry.counted"] = outcome.counted
    reason = _reason(outcome)
    if reason is not None:
        attributes["penstock.reason"] = reason
    if _failed(outcome):
        attributes["error.type"] = reason or UNNAMED
    return attributes


def _failed(outcome: Outcome) -> bool:
    return isinstance(outcome, Retry | Dead | Unreadable) or (isinstance(outcome, Parked) and outcome.pauses)


def _reason(outcome: Outcome) -> str | None:
    """The failure's name. What follows it in a sentence may be a provider's or a hook's, and quote a document."""
    match outcome:
        case Dead(letter):
            return letter.reason
        case Retry(error=said) | Parked(why=said) | Released(why=said) | Skipped(why=said):
            name = said.partition(":")[0]
            return name if _NAME.fullmatch(name) else None
    return None
