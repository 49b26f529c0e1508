"""Show the metrics of a process: on a page that Prometheus reads, and to a collector by OTLP."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server

if TYPE_CHECKING:
    from penstock_ledger.telemetry.push import MetricsPush

__all__: Final = ["push_metrics", "serve_page"]

log = logging.getLogger(__name__)

# OpenTelemetry's. Its exporter reads those of address, headers, certificates and time-outs.
EXPORTER: Final = "OTEL_METRICS_EXPORTER"
INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

PROTOCOL: Final = "http/protobuf"
EVERY_MS: Final = 60_000.0  # OpenTelemetry's own
# more often costs more than it shows; less often is a mistake of units
EVERY_MS_MIN: Final = 1_000.0
EVERY_MS_MAX: Final = 86_400_000.0


@contextlib.contextmanager
def serve_page(host: str, port: int | None, registry: CollectorRegistry) -> Iterator[int | None]:
    """Serve the page until the block ends, and give its port; without a ``port`` there is none.

    A port of 0 is a free one. A port that is taken costs the page, not the work: the log says so.
    """
    if port is None:
        yield None
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        log.error(
            "no metrics: metrics_port=%d on metrics_host=%s cannot be opened (%s); give each "
            "process of a machine its own",
            port,
            host,
            error,
        )
        yield None
        return
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def push_metrics(
    registry: CollectorRegistry, service: str, *, lasting: Collection[str] = ()
) -> Iterator[None]:
    """Send them until the block ends, and once more then, where OTEL_METRICS_EXPORTER says otlp.

    ``lasting`` names counters that outlive the process. Nothing here stops work: what keeps metrics
    from being sent is said in the log.
    """
    push = _push(registry, service, lasting) if _is_asked() else None
    try:
        yield
    finally:
        if push is not None:
            push.close()


def _push(
    registry: CollectorRegistry, service: str, lasting: Collection[str]
) -> MetricsPush | None:
    try:
        from penstock_ledger.telemetry.push import MetricsPush

        return MetricsPush(registry, service, _every_s(), lasting)
    except ModuleNotFoundError as error:
        log.error(
            "no metrics for a collector: %s=otlp needs OpenTelemetry, and %s is not installed "
            "here: pip install 'penstock[otel]', or unset %s",
            EXPORTER,
            error.name,
            EXPORTER,
        )
    except Exception as error:
        log.error("no metrics for a collector: its variables OTEL_* are refused: %s", error)
    return None


def _is_asked() -> bool:
    """Return whether the variables ask for it, and say what they ask for that there is not."""
    asked = {word.strip() for word in os.environ.get(EXPORTER, "").lower().split(",")}
    others = asked - {"", "none", "otlp", "prometheus"}  # Prometheus reads the page
    if others:
        log.error(
            "%s=%s: Penstock sends metrics by otlp, and Prometheus reads metrics_port; "
            "there is no %s",
            EXPORTER,
            os.environ[EXPORTER],
            ", ".join(sorted(others)),
        )
    if "otlp" not in asked:
        return False
    name = next((name for name in PROTOCOLS if os.environ.get(name)), None)
    if name is not None and os.environ[name].strip().lower() != PROTOCOL:
        log.error(
            "no metrics for a collector: %s=%s, and Penstock speaks %s alone: give it the "
            "collector's address for that (usually port 4318)",
            name,
            os.environ[name],
            PROTOCOL,
        )
        return False
    return True


def _every_s() -> float:
    text = os.environ.get(INTERVAL) or EVERY_MS
    try:
        every_ms = float(text)
    except ValueError:
        every_ms = math.nan
    if not EVERY_MS_MIN <= every_ms <= EVERY_MS_MAX:
        log.error(
            "%s=%s is no number of milliseconds from %.0f to %.0f; metrics are sent every %.0f",
            INTERVAL,
            text,
            EVERY_MS_MIN,
            EVERY_MS_MAX,
            EVERY_MS,
        )
        every_ms = EVERY_MS
    return every_ms / 1000
