"""Sends the metrics of a process to a collector, by OpenTelemetry's exporter for OTLP over HTTP.

What is sent is read from the registry that the page for Prometheus is made of: the same families
under the same names, with the same labels and buckets, cumulative.

One thread reads and sends, in the process that made it. It does not survive a fork, so no child
sends what its parent counts; OpenTelemetry's own periodic reader starts again in the child, and its
instruments know no histogram that is counted elsewhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from time import time_ns
from typing import Final, cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family

from penstock_ledger.telemetry.collector import (
    FLUSH_S,
    SCOPE,
    Outage,
    bounded_session,
    resource_of,
)

__all__: Final = ["MetricsPush"]

log = logging.getLogger(__name__)

CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
# leaves a field out of the message: a page does not know the smallest and the largest
UNKNOWN: Final = cast(float, None)

Labels = tuple[tuple[str, str], ...]


class MetricsPush:
    """Sends a registry every ``every_s`` seconds, and once more at the end.

    Never more than one reading is held: what a collector did not take is part of the next one."""

    def __init__(
        self,
        registry: CollectorRegistry,
        service: str,
        every_s: float,
        lasting: Collection[str],
        exporter: MetricExporter | None = None,
    ) -> None:
        self._registry = registry
        self._resource = resource_of(service)
        self._every_s = every_s
        self._lasting = lasting
        self._exporter = exporter or OTLPMetricExporter(session=bounded_session())
        self._outage = Outage(
            "metrics",
            "them",
            f"it is asked again every {every_s:g} s",
            type(self._exporter).__module__,
        )
        self._erred = False
        self._began_ns = time_ns()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-push", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send a last time, for ``FLUSH_S`` seconds at most.

        A collector that did not take the metrics before this is not waited for."""
        self._ending.set()
        if not self._outage.lasts:
            self._thread.join(FLUSH_S)
            if self._thread.is_alive():
                log.warning(
                    "metrics: the last ones could not be delivered within %g s of the end", FLUSH_S
                )
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._ending.wait(self._every_s):
            self._send()
        if not self._outage.lasts:
            self._send()

    def _send(self) -> None:
        try:
            result = self._exporter.export(self._read())
        except Exception:
            if not self._erred:
                log.exception(
                    "metrics do not reach the collector because of an error in Penstock: please "
                    "report it; this is logged once"
                )
            self._erred = True
        else:
            self._outage.note(
                taken=result is MetricExportResult.SUCCESS,
                since="counters went on, gauges of the meantime are lost",
            )

    def _read(self) -> MetricsData:
        now_ns = time_ns()
        families = [family for family in self._registry.collect() if family.samples]
        metrics = [self._metric(family, now_ns) for family in families]
        return MetricsData(
            [
                ResourceMetrics(
                    self._resource,
                    [ScopeMetrics(SCOPE, metrics, "")],
                    self._resource.schema_url,
                )
            ]
        )

    def _metric(self, family: Family, now_ns: int) -> Metric:
        """Convert a family. It has no unit, since its name has one, and backends would add it."""
        if family.type == "histogram":
            points = list(_histograms(family, self._began_ns, now_ns))
            return Metric(family.name, family.documentation, "", Histogram(points, CUMULATIVE))
        if family.type == "counter":
            name = f"{family.name}_total"
            # 0 is what OTLP calls unknown; with the time of this process a backend would take all
            # that the counter ever counted for an increase
            since_ns = 0 if name in self._lasting else self._began_ns
            numbers = _numbers(family, name, since_ns, now_ns)
            return Metric(
                name, family.documentation, "", Sum(numbers, CUMULATIVE, is_monotonic=True)
            )
        numbers = _numbers(family, family.name, 0, now_ns)
        return Metric(family.name, family.documentation, "", Gauge(numbers))


def _numbers(family: Family, name: str, since_ns: int, now_ns: int) -> Sequence[NumberDataPoint]:
    return [
        NumberDataPoint(sample.labels, since_ns, now_ns, float(sample.value))
        for sample in family.samples
        if sample.name == name
    ]


def _histograms(family: Family, since_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    buckets: dict[Labels, dict[float, float]] = {}
    sums: dict[Labels, float] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", None)
        key = tuple(labels.items())
        if bound is not None:
            buckets.setdefault(key, {})[float(bound)] = sample.value
        elif sample.name == f"{family.name}_sum":
            sums[key] = sample.value
    for key, cumulative in buckets.items():
        counts = [0, *map(int, cumulative.values())]
        yield HistogramDataPoint(
            dict(key),
            since_ns,
            now_ns,
            count=counts[-1],
            sum=sums[key],
            bucket_counts=[above - below for below, above in pairwise(counts)],
            explicit_bounds=list(cumulative)[:-1],
            min=UNKNOWN,
            max=UNKNOWN,
        )
