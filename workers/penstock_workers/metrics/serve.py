"""The metrics page: reads every source when Prometheus asks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from penstock_workers.metrics.samples import Metric, Sample, Source, Spread
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class SourcesCollector(Collector):
    """Reads the sources when it is scraped.

    A source that fails is left out, and the failure is logged."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for metric, labels, value in self._samples():
            family = families.get(metric.name)
            if family is None:
                family = families[metric.name] = _family(metric)
            if isinstance(value, Spread):
                assert isinstance(family, HistogramMetricFamily)
                family.add_metric(labels, value.buckets(), value.total)
            else:
                assert not isinstance(family, HistogramMetricFamily)
                family.add_metric(labels, value)
        yield from families.values()

    def describe(self) -> list[Family]:
        """Describe nothing, so that no source is read while the page is being set up."""
        return []

    def _samples(self) -> Iterator[Sample]:
        for source in self._sources:
            try:
                yield from list(source())
            except Exception:
                log.exception(
                    "some figures of the worker are missing from this page because of an error in "
                    "Penstock: please report it"
                )


@contextlib.contextmanager
def start_metrics(settings: WorkerSettings, *sources: Source) -> Iterator[int | None]:
    """Serve the page until the block ends, and give its port.

    It is that of ``metrics_port``, or a free one for 0. A port that is taken costs the page, not
    the work: the log says so.
    """
    if settings.metrics_port is None:
        yield None
        return
    registry = registry_of(*sources)
    try:
        server, thread = start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as error:
        log.error(
            "no metrics: metrics_port=%d on metrics_host=%s cannot be opened (%s); give each "
            "process of a machine its own",
            settings.metrics_port,
            settings.metrics_host,
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


def registry_of(*sources: Source) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(SourcesCollector(sources))
    return registry


def _family(metric: Metric) -> Family:
    if metric.kind == "counter":
        return CounterMetricFamily(
            metric.name.removesuffix("_total"), metric.help, labels=metric.labels
        )
    if metric.kind == "histogram":
        return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
