"""Traces of items with OpenTelemetry, for those who switch them on (docs/tracing.md).

One item is one trace: ``send`` by the feeder that published it, a ``process`` per try with what it
waited for, the call to the model and its settlement. `trace_share` says for how many items; with 0
nothing of this package is used and OpenTelemetry is not imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock_producer.feed.tracing import Sampler
from penstock_workers.errors import TracingMissing
from penstock_workers.settings import WorkerSettings

if TYPE_CHECKING:
    from penstock_ledger.model import Feed, Job
    from penstock_workers.tracing.sink import SpanSink
    from penstock_workers.tracing.traces import FeedSpans, ItemTraces

__all__ = ["Tracing", "open_tracing"]


@dataclass(frozen=True, slots=True)
class Tracing:
    """The tracing of one part of a process, and where it goes."""

    settings: WorkerSettings
    sink: SpanSink

    def of_feed(self, job: Job, feed: Feed) -> FeedSpans:
        from penstock_workers.tracing.traces import FeedSpans

        return FeedSpans(Sampler(self.settings.trace_share), self.sink.put, job, feed)

    def of_items(self) -> ItemTraces:
        from penstock_workers.tracing.traces import ItemTraces, ModelCalls

        settings = self.settings
        return ItemTraces(settings.trace_share, settings.lane, ModelCalls(settings), self.sink.put)


@contextlib.contextmanager
def open_tracing(settings: WorkerSettings, lane: str) -> Iterator[Tracing | None]:
    """Open what ``trace_share`` asks for; give None for a share of 0.

    ``lane`` names the part of the process in its resource. What waits when the block ends is
    delivered, within a limit. Raises TracingMissing.
    """
    if not settings.trace_share:
        yield None
        return
    try:
        from penstock_workers.tracing.sink import SpanSink
    except ModuleNotFoundError as error:
        raise TracingMissing(settings.trace_share, error.name) from error
    sink = SpanSink(lane)
    try:
        yield Tracing(settings, sink)
    finally:
        sink.close()
