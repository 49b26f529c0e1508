"""A collector of traces and metrics on loopback that speaks OTLP over HTTP: it decodes what arrives
with OpenTelemetry's own messages."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from metrics_page import Page
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as WireMetric
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@dataclass(frozen=True)
class CallAnswer:
    """One span as it arrived."""

    name: str
    kind: str
    trace: str
    span: str
    parent: str
    began_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Figures:
    """One report of a process."""

    resource: dict[str, Any]
    metrics: list[WireMetric]

    def page(self) -> Page:
        """The same as Prometheus' page has it."""
        page: Page = {}
        for metric in self.metrics:
            kind = metric.WhichOneof("data")
            assert kind is not None, f"{metric.name} has no samples"
            data: Any = getattr(metric, kind)
            if kind != "gauge":
                cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
                assert data.aggregation_temporality == cumulative
            for point in data.data_points:
                labels = _attributes(point.attributes)
                if metric.HasField("histogram"):
                    _add_buckets(page, metric.name, labels, point)
                else:
                    _add(page, metric.name, labels, point.as_double)
        return page


def _add(page: Page, name: str, labels: dict[str, str], value: float) -> None:
    page.setdefault(name, {})[tuple(sorted(labels.items()))] = value


def _add_buckets(page: Page, name: str, labels: dict[str, str], point: Any) -> None:
    seen = 0
    for bound, more in zip([*point.explicit_bounds, "+Inf"], point.bucket_counts, strict=True):
        seen += more
        _add(page, f"{name}_bucket", labels | {"le": str(bound)}, seen)
    assert seen == point.count
    _add(page, f"{name}_count", labels, point.count)
    _add(page, f"{name}_sum", labels, point.sum)


@dataclass
class Collector:
    """Everything that was sent so far; a context manager. ``callers`` are its connections.

    ``payloads`` are the requests about spans as they came, ``reports`` those about metrics."""

    payloads: list[bytes] = field(default_factory=list)
    reports: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    callers: set[tuple[str, int]] = field(default_factory=set)
    port: int = 0

    def __enter__(self) -> Self:
        collector = self
        places = {"/v1/traces": collector.payloads, "/v1/metrics": collector.reports}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                collector.callers.add(self.client_address)
                collector.headers.append(dict(self.headers))
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if (place := places.get(self.path)) is not None:
                    place.append(body)
                self.send_response(404 if place is None else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Not on the test's output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def spans(self) -> list[CallAnswer]:
        found = []
        for payload in list(self.payloads):
            for of_resource in ExportTraceServiceRequest.FromString(payload).resource_spans:
                resource = _attributes(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    assert of_scope.scope.name == "penstock"
                    found += [_told(span, resource) for span in of_scope.spans]
        return found

    def figures(self) -> dict[str, list[Figures]]:
        """All that processes have reported, oldest first, by the names of their services."""
        found: dict[str, list[Figures]] = defaultdict(list)
        for report in list(self.reports):
            (of_resource,) = ExportMetricsServiceRequest.FromString(report).resource_metrics
            resource = _attributes(of_resource.resource.attributes)
            (of_scope,) = of_resource.scope_metrics
            assert of_scope.scope.name == "penstock"
            found[resource["service.name"]].append(Figures(resource, list(of_scope.metrics)))
        return found

    def traces(self) -> dict[str, list[CallAnswer]]:
        """By the document that each is about, in the order of their beginnings."""
        by_trace: dict[str, list[CallAnswer]] = defaultdict(list)
        for span in sorted(self.spans(), key=lambda span: span.began_ns):
            by_trace[span.trace].append(span)
        return {str(_document(spans)): spans for spans in by_trace.values()}


def _document(spans: list[CallAnswer]) -> str:
    """Document, with its generation where that is not the first.

    All spans of a trace that name one name the same."""
    names = {
        (span.attributes["penstock.document.id"], span.attributes["penstock.generation"])
        for span in spans
        if "penstock.document.id" in span.attributes
    }
    assert len(names) == 1, f"one trace is about {names}"
    document, generation = names.pop()
    return document if generation == 1 else f"{document}~{generation}"


def _told(span: WireSpan, resource: dict[str, Any]) -> CallAnswer:
    return CallAnswer(
        name=span.name,
        kind=WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=_attributes(span.attributes),
        resource=resource,
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return (
        [_value(item) for item in value.array_value.values]
        if kind == "array_value"
        else getattr(value, kind)
    )
