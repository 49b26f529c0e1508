"""The spans of a feed: each traced document's being sent, which is the root of its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import time_ns

from penstock_ledger.model import Feed, ItemKey, Job
from penstock_producer.feed.tracing import (
    Sampler,
    SpanContext,
    parse_traceparent,
    trace_of,
    traceparent,
)
from penstock_producer.pins import SUBMITTED_BY
from penstock_workers.tracing.spans import Kind, Span, child_of, message_attributes


class FeedSpans:
    """Implements ``penstock_producer.feed.tracing.SendSpans`` for one generation of one job.

    The control thread's.

    A feeder that died between publishing and moving its cursor leaves a successor that publishes
    the same group: those items get the same span twice.
    """

    def __init__(
        self, sampler: Sampler, put: Callable[[Iterable[Span]], None], job: Job, feed: Feed
    ) -> None:
        self._sampler = sampler
        self._put = put
        found = parse_traceparent(job.source.get(SUBMITTED_BY))
        self._submitted_by = None if found is None else found[0]
        self._replays: int | None = feed.selection.get("from_generation")

    def header(self, key: ItemKey) -> str | None:
        root = trace_of(key)
        return traceparent(root) if self._sampler.takes(root.trace_id) else None

    def sent(
        self, keys: Sequence[ItemKey], queue: str, began_ns: int, *, again: bool = False
    ) -> None:
        traced = [
            (key, root) for key in keys if self._sampler.takes((root := trace_of(key)).trace_id)
        ]
        if traced:
            ended_ns = time_ns()
            self._put(
                self._span(key, root, queue, (began_ns, ended_ns), again) for key, root in traced
            )

    def _span(
        self, key: ItemKey, root: SpanContext, queue: str, times: tuple[int, int], again: bool
    ) -> Span:
        attributes = message_attributes("send", queue, key)
        if again:
            attributes["penstock.republished"] = True
        context, parent = (child_of(root), root) if again else (root, None)
        links = self._links(key)
        return Span(
            f"send {queue}", Kind.PRODUCER, context, parent, *times, attributes, links=links
        )

    def _links(self, key: ItemKey) -> list[SpanContext]:
        """Where the work came from: the request of the service that submitted the job, or the try
        that is replayed."""
        links = [] if self._submitted_by is None else [self._submitted_by]
        if self._replays is not None:
            earlier = trace_of(key._replace(generation=self._replays))
            if self._sampler.takes(earlier.trace_id):
                links.append(earlier)
        return links
