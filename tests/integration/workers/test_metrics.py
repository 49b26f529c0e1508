"""Promises of the metrics page, on a real fleet: what was done is on it, and nothing in it names an
item."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, Process, until
from metrics_page import Page, parsed, scrape, selectors, value
from otlp import ENDPOINT, Collector, Figures
from servers import free_port

from penstock_ledger.model import JobState
from penstock_workers.metrics.catalogue import CATALOGUE
from tools.monitoring.alerts import ALERTS
from tools.monitoring.dashboards import DASHBOARDS

DOCUMENTS = 60
# Only workers that host a model have these, that trace items, or that ask for notices of a spot
# machine: tests/engines, test_models.py, test_tracing.py, tests/unit/workers/test_spot_notices.py. Those of
# HTTP doors: integration/gateway/test_metrics.py.
OF_OTHERS = re.compile("penstock_(engine|embed|trace|model|spot|provider_batches|door)")


class House:
    """One worker that also leads the jobs, on a provider that refuses some calls for now and some
    for good."""

    def __init__(self, folder: Path, collector: Collector) -> None:
        self.port = free_port()
        self.collector = collector
        variables = {
            ENDPOINT: collector.url,
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        self.fleet = Fleet(folder, variables=variables)

    def run(self) -> None:
        self.fleet.provider.start(
            "--latency-ms",
            "20",
            "--throttle-rate",
            "0.1",
            "--poison-rate",
            "0.05",
            "--retry-after-s",
            "0.2",
        )
        self.worker = self.start(self.port)
        self.job = self.fleet.submit(DOCUMENTS, key="job")
        until(
            lambda: self.fleet.producer.status(self.job.job_id).job.state is JobState.COMPLETED,
            60,
            "the job is done",
        )

    def start(self, port: int, **settings: Any) -> Process:
        return self.fleet.worker(
            control=True,
            metrics_port=port,
            providers__default__usd_per_mtok_in=3,
            providers__default__rpm=6000,
            providers__default__metrics_url=f"{self.fleet.provider.root}/metrics",
            providers__default__interactive_ttft_s=30.0,
            **settings,
        )


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with Collector() as collector:
        house = House(tmp_path_factory.mktemp("metrics"), collector)
        with house.fleet:
            house.run()
            yield house


def test_what_was_done_is_on_the_page(house: House) -> None:
    """Outcomes, retries, calls, tokens and cost of a worker are those that the ledger and the
    provider know."""
    page = scrape(house.port)
    counts = house.fleet.producer.status(house.job.job_id).counts
    items = {
        dict(labels)["outcome"]: number for labels, number in page["penstock_items_total"].items()
    }
    assert (items["succeeded"], items["dead"]) == (counts.succeeded, counts.dead)
    assert counts.succeeded + counts.dead == DOCUMENTS
    assert (
        items["retried"]
        == value(page, "penstock_rate_limited_total", lane="api", provider="default")
        > 0
    )
    sent = value(page, "penstock_calls_total", lane="api", provider="default")
    assert sent == house.fleet.provider.calls(house.job).total()
    assert value(page, "penstock_call_seconds_count", lane="api") == counts.succeeded
    tokens = value(page, "penstock_tokens_total", lane="api", provider="default", direction="in")
    assert tokens == counts.prompt_tokens > 0
    assert value(page, "penstock_cost_usd_total", lane="api", provider="default") == pytest.approx(
        3e-6 * tokens
    )
    assert value(page, "penstock_commit_items_sum", lane="api") == sum(items.values())
    assert value(page, "penstock_fed_total", lane="api") == DOCUMENTS


def test_the_fleet_is_on_it_too(house: House) -> None:
    """The control loop shows depths, quotas, jobs and workers, and zeros for a fleet at rest."""
    until(
        lambda: value(scrape(house.port), "penstock_jobs", state="running") == 0,
        30,
        "the figures show the end",
    )
    page = scrape(house.port)
    for name in (
        "penstock_queue_depth",
        "penstock_unacked",
        "penstock_delayed",
        "penstock_window_items",
    ):
        assert value(page, name, lane="api") == 0, name
    assert value(page, "penstock_workers", lane="api") == 1
    assert (
        value(page, "penstock_quota_limit_per_second", quota="default", dimension="requests") == 100
    )
    assert value(page, "penstock_quota_throttled_total", quota="default") == value(
        page, "penstock_rate_limited_total", lane="api", provider="default"
    )
    assert value(page, "penstock_bound", lane="api", by="queue") == 1


def test_everything_in_the_catalogue_is_there_and_nothing_else(house: House) -> None:
    """The catalogue is what a real page shows, name for name and label for label."""
    until(
        lambda: "penstock_quota_use_ratio" in scrape(house.port), 20, "the figures were read twice"
    )
    page = scrape(house.port)
    ours = {name for name in page if name.startswith("penstock_")}
    expected: dict[str, set[str]] = {}
    for metric in CATALOGUE:
        endings = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        if OF_OTHERS.match(metric.name) is None:
            expected |= {f"{metric.name}{ending}": set(metric.labels) for ending in endings}
    assert ours == expected.keys()
    for name, labels in expected.items():
        for sample in page[name]:
            assert {label for label, _ in sample} - {"le"} == labels, name


def test_a_collector_is_sent_what_the_page_shows(house: House) -> None:
    """By OTLP the families, labels, buckets and values of a worker at rest are those of its page,
    each second, and the resource says which process they are of."""

    def at_rest(page: Page) -> Page:
        return {
            name: samples
            for name, samples in page.items()
            if not re.search("^process_|_timestamp_|_tick|_use_ratio|_reconciles", name)
        }

    def last() -> Page:
        return at_rest(house.collector.figures()["penstock-api"][-1].page())

    until(lambda: last() == at_rest(scrape(house.port)), 30, "the collector knows the end")
    assert len(last()) > 50
    reports = house.collector.figures()["penstock-api"]
    assert reports[-1].page().keys() == scrape(house.port).keys()
    for name in ("service.version", "service.instance.id", "deployment.environment.name"):
        assert len({report.resource[name] for report in reports}) == 1, name
    assert str(house.worker.popen.pid) in reports[-1].resource["service.instance.id"]


def test_every_process_sends_its_last_metrics_as_it_ends(house: House) -> None:
    """At SIGTERM a control process sends what it has counted since its last report, and ends."""
    control = house.fleet.control()

    def sent() -> list[Figures]:
        return house.collector.figures()["penstock-control"]

    until(sent, 60, "it reports")
    before = len(sent())
    control.send(signal.SIGTERM)
    assert control.wait(20) == 0
    assert len(sent()) > before
    page = sent()[-1].page()
    assert page["penstock_worker_info"]
    assert "penstock_control_ticks_total" in page


def test_every_expression_asks_for_what_a_real_page_shows(house: House) -> None:
    """Each series in a dashboard or an alert is on the page of a real worker, but for those of
    others."""
    page = scrape(house.port)
    texts = [alert.expr for alert in ALERTS] + [
        text
        for dashboard in DASHBOARDS
        for row in dashboard.rows
        for panel in row.panels
        for text, _ in panel.queries
    ]
    asked = {
        series
        for text in texts
        for series, _ in selectors(parsed(text))
        if not OF_OTHERS.match(series)
    }
    assert len(asked) > 40
    assert asked <= page.keys()


def test_no_label_names_a_job_an_item_or_a_process(house: House) -> None:
    """Series do not grow with jobs, documents or restarts."""
    values = {
        text for samples in scrape(house.port).values() for labels in samples for _, text in labels
    }
    documents = {f"doc-{n}" for n in range(DOCUMENTS)}
    assert not values & ({house.job.job_id, "job", str(house.worker.popen.pid)} | documents)
    assert not [text for text in values if house.job.job_id in text]


def test_a_taken_port_costs_the_page_and_not_the_work(house: House) -> None:
    """A second worker with the same port works, and its log says what to change."""
    second = house.start(house.port)
    house.fleet.ready(second)
    assert "metrics_port" in second.log.read_text()
    second.send(signal.SIGTERM)
    assert second.wait(20) == 0


def drains(house: House) -> tuple[float, float]:
    """Workers that gave items back when they ended, and those items."""
    page, told = scrape(house.port), {"lane": "api", "result": "requeued"}
    return value(page, "penstock_drains_total", **told), value(
        page, "penstock_drained_items_total", **told
    )


@pytest.mark.parametrize("patience_s", [0.5, 60], ids=["in-time", "hurried"])
def test_drains_are_counted_where_they_outlive_the_worker(house: House, patience_s: float) -> None:
    """What a worker gave back after one SIGTERM, or several, is counted on the pages of the workers
    that go on."""
    house.fleet.provider.kill()
    house.fleet.provider.start("--latency-ms", "60000")
    house.fleet.submit(60, key=f"slow-{patience_s}")
    port = free_port()
    doomed = house.start(port, drain_seconds=patience_s)
    house.fleet.ready(doomed)
    until(
        lambda: value(scrape(port), "penstock_slots_in_use", lane="api") > 0,
        30,
        "it has some in flight",
    )
    held, (workers, items) = value(scrape(port), "penstock_items_held", lane="api"), drains(house)
    end(doomed)
    until(lambda: drains(house)[0] == workers + 1, 30, "the drain is counted")
    assert drains(house)[1] - items >= held > 0
    assert value(scrape(house.port), "penstock_oldest_item_age_seconds", lane="api") >= 0


def end(process: Process) -> None:
    """SIGTERM each second, as an impatient person sends it.

    The last time may find an interpreter that ends already."""
    for _ in range(20):
        process.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert process.wait(1) in (0, -signal.SIGTERM)
            return
    raise AssertionError("it goes on")
