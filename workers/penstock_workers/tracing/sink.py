"""Sends spans out, by OpenTelemetry's batch processor and OTLP exporter with Penstock's limits.

Spans are built when an item is settled, with ids and times of their own, so they are handed to the
processor as finished ``ReadableSpan`` instead of going through a tracer: a tracer would draw the
ids, and takes several times as long. tests/integration/workers/test_tracing.py checks this with a
real receiver.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanContext as OtelContext

from penstock_ledger.telemetry.collector import (
    FLUSH_S,
    SCOPE,
    Outage,
    bounded_session,
    resource_of,
)
from penstock_producer.feed.tracing import SpanContext
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.tracing.traces import Kind, Span

log = logging.getLogger(__name__)

SPANS_HELD = 8_192  # waiting and on their way; spans beyond that are dropped and counted
SPANS_PER_EXPORT = 512
EXPORT_EACH_MS = 1_000  # at the latest; sooner once there are enough for an export
RESULTS = ("delivered", "failed", "dropped")

_KINDS = {kind: SpanKind[kind.value] for kind in Kind}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class SpanSink:
    """Takes spans from any thread, and never waits for the collector.

    One exporter thread, in the process that made it."""

    def __init__(self, lane: str, exporter: SpanExporter | None = None) -> None:
        self._lane = lane
        self._exports = _Exports(exporter or OTLPSpanExporter(session=bounded_session()))
        self._resource = resource_of(f"penstock-{lane}")
        self._lock = threading.Lock()
        self._taken = self._dropped = 0
        self._erred = False
        self._processor = BatchSpanProcessor(
            self._exports,
            max_queue_size=SPANS_HELD,
            schedule_delay_millis=EXPORT_EACH_MS,
            max_export_batch_size=SPANS_PER_EXPORT,
        )

    def put(self, spans: Iterable[Span]) -> None:
        """Hand over spans. Never raises: a failure of tracing must not affect items."""
        try:
            with self._lock:
                for span in spans:
                    self._take(span)
        except Exception:
            if not self._erred:
                log.exception(
                    "some spans are missing because of an error in Penstock: please report it; "
                    "this is logged once"
                )
            self._erred = True

    def _take(self, span: Span) -> None:
        if self._taken - self._exports.concluded >= SPANS_HELD:
            self._dropped += 1
            return
        self._taken += 1
        self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """Deliver the waiting spans, for ``FLUSH_S`` seconds at most; the rest are lost."""
        ending = threading.Thread(target=self._processor.shutdown, name="spans-end", daemon=True)
        ending.start()
        ending.join(FLUSH_S)
        if ending.is_alive():
            self._exports.shutdown()
            lost = self._taken - self._exports.concluded
            log.warning(
                "traces: %d spans could not be delivered within %g s of the end; they are lost",
                lost,
                FLUSH_S,
            )

    def figures(self) -> Iterator[Sample]:
        """Yield the figures of the spans; from any thread."""
        counts = {**self._exports.counts, "dropped": self._dropped}
        for result in RESULTS:
            yield catalogue.SPANS(counts[result], self._lane, result)

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            context=_context(span.context, remote=False),
            parent=None
            if span.parent is None
            else _context(span.parent, remote=span.kind is Kind.CONSUMER),
            resource=self._resource,
            attributes=span.attributes,
            links=[Link(_context(link, remote=True)) for link in span.links],
            kind=_KINDS[span.kind],
            status=_ERROR if span.error else _UNSET,
            start_time=span.began_ns,
            end_time=span.ended_ns,
            instrumentation_scope=SCOPE,
        )


class _Exports(SpanExporter):
    """Counts the spans that the exporter delivers and loses.

    Written by the processor's thread; any thread may read."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.counts: Counter[str] = Counter(delivered=0, failed=0)
        self._outage = Outage("traces", "spans", "they are lost", type(exporter).__module__)

    @property
    def concluded(self) -> int:
        return self.counts["delivered"] + self.counts["failed"]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self.counts["delivered" if result is SpanExportResult.SUCCESS else "failed"] += len(
                spans
            )
        self._outage.note(
            taken=result is SpanExportResult.SUCCESS,
            since=f"{self.counts['failed']} were lost so far",
        )
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _context(context: SpanContext, *, remote: bool) -> OtelContext:
    return OtelContext(context.trace_id, context.span_id, remote, _SAMPLED)
