"""The spans of a settled item, from the marks of its attempt: `process`, and in it `wait`, the call
to the model, `settle`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import time_ns

from penstock_producer.feed.tracing import (
    TRACEPARENT_HEADER,
    Sampler,
    SpanContext,
    parse_traceparent,
    trace_of,
)
from penstock_workers.item.attempt import Attempt, Item, Marks, Settled
from penstock_workers.item.outcome import (
    Dead,
    Outcome,
    Parked,
    Released,
    Retry,
    Skipped,
    Unreadable,
)
from penstock_workers.lanes.registry import lane_row
from penstock_workers.tracing.model_call import ModelCalls
from penstock_workers.tracing.spans import Kind, Span, Value, child_of, message_attributes

NS_PER_MS = 1_000_000
UNNAMED = "_OTHER"  # OpenTelemetry's word for an error without a name
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class ItemTraces:
    """Makes the spans of those items of a worker that are traced. Used on the item loop."""

    def __init__(
        self, share: float, lane: str, calls: ModelCalls, put: Callable[[Iterable[Span]], None]
    ) -> None:
        self._sampler = Sampler(share)
        self._admitted_by = lane_row(lane).waits_for
        self._calls = calls
        self._put = put

    def settled(self, group: Sequence[Settled]) -> None:
        """These items are durable and acknowledged: hand over the spans of those that are
        traced."""
        now_ns = time_ns()
        for item, outcome in group:
            if (
                isinstance(item, Item)
                and item.marks is not None
                and (roots := self._roots(item)) is not None
            ):
                self._put(self._spans(item, item.marks, roots, outcome, now_ns, len(group)))

    def _roots(self, item: Item) -> tuple[SpanContext, SpanContext | None] | None:
        """The root of an item's trace, and the span above `process`; None for an item that is not
        traced.

        The feeder that sent an item has decided, and its message says so: then the sending is the
        span above. Where the message says nothing, because another share holds there, the share of
        this worker decides and there is none above.
        """
        root = trace_of(item.key)
        header = parse_traceparent(item.delivery.headers.get(TRACEPARENT_HEADER))
        if header is not None and header[1]:
            return root, root
        return (root, None) if self._sampler.takes(root.trace_id) else None

    def _spans(
        self,
        item: Item,
        marks: Marks,
        roots: tuple[SpanContext, SpanContext | None],
        outcome: Outcome,
        now_ns: int,
        group: int,
    ) -> Iterator[Span]:
        root, parent = roots
        process = child_of(root)
        yield self._wait(marks, process)
        if isinstance(item, Attempt) and "called" in marks:
            yield self._calls.span(item, marks, child_of(process), process)
        settle: dict[str, Value] = {"penstock.settle.items": group}
        yield Span(
            "settle", Kind.INTERNAL, child_of(process), process, marks["decided"], now_ns, settle
        )
        yield Span(
            f"process {item.delivery.queue}",
            Kind.CONSUMER,
            process,
            parent,
            marks["claimed"],
            now_ns,
            _attributes(item, outcome),
            error=_failed(outcome),
        )

    def _wait(self, marks: Marks, process: SpanContext) -> Span:
        """From the claim to the item's turn: for a slot, then for the quota or for room in the
        engine."""
        began_ns, decided_ns = marks["claimed"], marks["decided"]
        ended_ns = marks.get("admitted", decided_ns)
        slot_ns = marks.get("seated", decided_ns) - began_ns
        turn_ns = ended_ns - marks.get("prepared", ended_ns)
        attributes: dict[str, Value] = {
            "penstock.wait.for": self._admitted_by
            if self._admitted_by and turn_ns > slot_ns
            else "slot",
            "penstock.wait.slot_ms": slot_ns / NS_PER_MS,
        }
        if self._admitted_by and "prepared" in marks:
            attributes[f"penstock.wait.{self._admitted_by}_ms"] = turn_ns / NS_PER_MS
        return Span(
            "wait", Kind.INTERNAL, child_of(process), process, began_ns, ended_ns, attributes
        )


def _attributes(item: Item, outcome: Outcome) -> dict[str, Value]:
    attributes = message_attributes("process", item.delivery.queue, item.key)
    attributes["penstock.attempt"] = item.number
    attributes["penstock.outcome"] = type(outcome).__name__.lower()
    attributes["penstock.redelivered"] = item.delivery.redelivered
    if isinstance(item, Attempt) and item.crashes:
        attributes["penstock.crashes"] = item.crashes
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
    return isinstance(outcome, Retry | Dead | Unreadable) or (
        isinstance(outcome, Parked) and outcome.pauses
    )


def _reason(outcome: Outcome) -> str | None:
    """The failure's name, without its details, which may quote a document."""
    match outcome:
        case Dead(letter):
            return letter.reason
        case Retry(error=said) | Parked(why=said) | Released(why=said) | Skipped(why=said):
            name = said.partition(":")[0]
            return name if _NAME.fullmatch(name) else None
    return None
