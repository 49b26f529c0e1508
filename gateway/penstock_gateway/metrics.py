"""The HTTP doors count their work. docs/metrics.md is made from the catalogue.

Routes are counted by their template, never by an address that was asked for, so the number of
series is that of the routes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import HTTPConnection

from penstock_ledger import DoorBatchState

__all__ = ["CATALOGUE", "DoorMetric", "DoorMetrics", "metrics_of", "route_of"]

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
UNMATCHED: Final = "unmatched"  # for the route of an address that there is not
CODES_MAX: Final = 100  # codes of refusals that have a series of their own; there are about forty
OTHER: Final = "other"
STEP_RESULTS: Final = ("done", "stopped", "failed")
TRY_OUTCOMES: Final = ("delivered", "failed", "gave_up")
CALL_OUTCOMES: Final = ("answered", "failed", "late", "refused", "replayed")


@dataclass(frozen=True, slots=True)
class DoorMetric:
    """One entry of the catalogue."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    source: str = "gateway"
    bounds: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.name


REQUESTS: Final = DoorMetric(
    "penstock_door_requests_total",
    "counter",
    "Requests that the HTTP API has answered.",
    ("route", "method", "status"),
)
REQUEST_SECONDS: Final = DoorMetric(
    "penstock_door_request_seconds",
    "histogram",
    "Time from the head of a request to the end of its answer.",
    ("route",),
    "seconds",
    bounds=SECONDS,
)
RECEIVED: Final = DoorMetric(
    "penstock_door_received_bytes_total",
    "counter",
    "Bytes of bodies that were read, uploads included.",
    ("route",),
    "bytes",
)
REFUSED: Final = DoorMetric(
    "penstock_door_refused_total",
    "counter",
    "Requests that were refused, by the code of the error.",
    ("code",),
)
IN_FLIGHT: Final = DoorMetric(
    "penstock_door_requests_in_flight", "gauge", "Requests that are being answered."
)
CONNECTIONS: Final = DoorMetric(
    "penstock_door_connections", "gauge", "Open connections, idle ones included."
)
DROPPED: Final = DoorMetric(
    "penstock_door_connections_dropped_total",
    "counter",
    "Idle and slow connections that made room for new ones (max_connections, address_connections).",
)
TASK_FAILURES: Final = DoorMetric(
    "penstock_door_task_failures_total",
    "counter",
    "Times that a piece of background work has failed; it went on.",
    ("task",),
)
TASK_ROUND: Final = DoorMetric(
    "penstock_door_task_round_timestamp_seconds",
    "gauge",
    "When a piece of background work last ended a round without an error (Unix seconds).",
    ("task",),
    "seconds",
)
UPLOADS: Final = DoorMetric(
    "penstock_door_uploads_total", "counter", "Files that callers have uploaded whole."
)
UPLOADED: Final = DoorMetric(
    "penstock_door_uploaded_bytes_total",
    "counter",
    "Bytes of files that callers have uploaded whole.",
    (),
    "bytes",
)
BATCH_STEPS: Final = DoorMetric(
    "penstock_door_batch_steps_total",
    "counter",
    "Steps of batches, by the state in which they began and how they ended: done, stopped, or "
    "failed and tried again.",
    ("state", "result"),
)
WEBHOOK_TRIES: Final = DoorMetric(
    "penstock_door_webhook_tries_total",
    "counter",
    "Tries of webhooks: delivered, failed and tried again later, or gave_up after the last one.",
    ("outcome",),
)
CALLS: Final = DoorMetric(
    "penstock_door_calls_total",
    "counter",
    "Calls whose callers wait: answered, failed (a dead letter), late, refused, or replayed for "
    "their Idempotency-Key.",
    ("outcome",),
)
CALL_SECONDS: Final = DoorMetric(
    "penstock_door_call_seconds",
    "histogram",
    "Time for which callers who wait have waited.",
    (),
    "seconds",
    bounds=SECONDS,
)
CALLS_WAITING: Final = DoorMetric(
    "penstock_door_calls_waiting", "gauge", "Calls whose callers wait now."
)
CATALOGUE: Final = (
    REQUESTS,
    REQUEST_SECONDS,
    RECEIVED,
    REFUSED,
    IN_FLIGHT,
    CONNECTIONS,
    DROPPED,
    TASK_FAILURES,
    TASK_ROUND,
    UPLOADS,
    UPLOADED,
    BATCH_STEPS,
    WEBHOOK_TRIES,
    CALLS,
    CALL_SECONDS,
    CALLS_WAITING,
)


class DoorMetrics:
    """Holds the metrics of one app, by what they are about."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = RequestMetrics(self.registry)
        self.connections = ConnectionMetrics(self.registry)
        self.tasks = TaskMetrics(self.registry)
        self.calls = CallMetrics(self.registry)
        self.uploads = _counter(UPLOADS, self.registry)
        self.uploaded = _counter(UPLOADED, self.registry)

    def page(self) -> bytes:
        return generate_latest(self.registry)


class RequestMetrics:
    """Requests, by their routes, and refusals, by their codes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.answered = _counter(REQUESTS, registry)
        self.seconds = _histogram(REQUEST_SECONDS, registry)
        self.received = _counter(RECEIVED, registry)
        self.in_flight = _gauge(IN_FLIGHT, registry)
        self._refused = _counter(REFUSED, registry)
        self._codes: set[str] = set()

    def refused(self, code: str | None) -> None:
        named = code or OTHER
        if len(self._codes) < CODES_MAX:
            self._codes.add(named)
        self._refused.labels(named if named in self._codes else OTHER).inc()


class ConnectionMetrics:
    """Connections, also those that ask for nothing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = _gauge(CONNECTIONS, registry)
        self.dropped = _counter(DROPPED, registry)


class TaskMetrics:
    """Background work. What counts outcomes is 0 until there is one: rates begin with the first."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failures = _counter(TASK_FAILURES, registry)
        self.round = _gauge(TASK_ROUND, registry)
        self.batch_steps = _counter(BATCH_STEPS, registry)
        for state in DoorBatchState:
            if not state.final:
                for result in STEP_RESULTS:
                    self.batch_steps.labels(state.value, result)
        self.webhook_tries = _counter(WEBHOOK_TRIES, registry)
        for outcome in TRY_OUTCOMES:
            self.webhook_tries.labels(outcome)


class CallMetrics:
    """Calls whose callers wait."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ended = _counter(CALLS, registry)
        for outcome in CALL_OUTCOMES:
            self.ended.labels(outcome)
        self.seconds = _histogram(CALL_SECONDS, registry)
        self.waiting = _gauge(CALLS_WAITING, registry)


def _counter(metric: DoorMetric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _gauge(metric: DoorMetric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: DoorMetric, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        metric.name, metric.help, metric.labels, buckets=metric.bounds, registry=registry
    )


def metrics_of(connection: HTTPConnection) -> DoorMetrics:
    found: DoorMetrics = connection.app.state.metrics
    return found


def route_of(connection: HTTPConnection) -> str:
    """Return the template of the route that was found."""
    return str(getattr(connection.scope.get("route"), "path", UNMATCHED))
