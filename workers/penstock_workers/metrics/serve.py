"""The metrics of a worker: reads every source when they are asked for, or sent."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from penstock_ledger.telemetry.metrics import push_metrics, serve_page
from penstock_workers.metrics.catalogue import CATALOGUE
from penstock_workers.metrics.samples import Metric, Sample, Source, Spread
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

# of the fleet, in Redis and SQL (a control loop's own are among them)
LASTING = frozenset(
    metric.name for metric in CATALOGUE if metric.kind == "counter" and metric.source == "control"
)

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
    """Show what the sources count until the block ends, and give the port of the page."""
    registry = registry_of(*sources)
    with (
        serve_page(settings.metrics_host, settings.metrics_port, registry) as port,
        push_metrics(registry, f"penstock-{settings.lane}", lasting=LASTING),
    ):
        yield port


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
