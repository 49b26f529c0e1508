"""A collector of traces on loopback that speaks OTLP over HTTP: it decodes what arrives with
OpenTelemetry's own messages."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
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


@dataclass
class Collector:
    """Everything that was sent so far; a context manager.

    ``payloads`` are the requests as they came."""

    payloads: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.headers.append(dict(self.headers))
                collector.payloads.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Not on the test's output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
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
