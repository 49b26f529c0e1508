"""Promises of metrics that are sent to a collector: they are those of the page, and no collector
harms the process."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from time import monotonic, time_ns

import pytest
from fleet import until
from metrics_page import read
from otlp import ENDPOINT, Collector
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from servers import free_port

from penstock_ledger.telemetry import push as module
from penstock_ledger.telemetry.metrics import push_metrics
from penstock_ledger.telemetry.push import MetricsPush
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Spread
from penstock_workers.metrics.serve import LASTING, registry_of

SWITCH = "OTEL_METRICS_EXPORTER"
NEVER_S = 3_600.0  # but at the end


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        yield collector


def test_a_collector_gets_what_the_page_shows(collector: Collector) -> None:
    """Each family has its name, labels and buckets there, of the catalogue's samples and of
    prometheus-client's own counters."""
    spread = Spread((0.5, 2.0))
    for seconds in (0.1, 0.5, 1.0, 7.0):
        spread.add(seconds)
    samples = [
        catalogue.ITEMS(3, "api", "succeeded"),
        catalogue.ITEMS(0, "api", "dead"),
        catalogue.CALL_SECONDS(spread, "api"),
        catalogue.CALL_SECONDS(Spread((0.5, 2.0)), "gpu"),
        catalogue.SLOTS(float("inf"), "api"),
        catalogue.REDIS_LIMIT(-0.25),
        catalogue.QUOTA_GRANTED(7, 'a "quota"\n'),
    ]
    registry = registry_of(lambda: samples)
    own = Counter("mine_total", "Of prometheus-client.", ("code",), registry=registry)
    own.labels("404").inc(2.5)
    Gauge("empty", "Without a sample.", ("of",), registry=registry)
    Histogram("waits", "Of prometheus-client.", buckets=(1, 5), registry=registry).observe(3)
    MetricsPush(registry, "penstock-api", NEVER_S, LASTING).close()
    (sent,) = collector.figures()["penstock-api"]
    page = read(generate_latest(registry).decode())
    moving = {name for name in page if name.startswith("process_") or name.endswith("_created")}
    assert {name: page[name] for name in page.keys() - moving} == {
        name: found for name, found in sent.page().items() if name not in moving
    }
    assert sent.page().keys() >= {name for name in moving if not name.endswith("_created")}
    assert {metric.unit for metric in sent.metrics} == {""}


def test_a_counter_begins_with_its_process_unless_it_outlives_it(collector: Collector) -> None:
    """What the fleet counted before is no increase of the process that reports it."""
    began = time_ns()
    samples = [catalogue.ITEMS(3, "api", "succeeded"), catalogue.QUOTA_GRANTED(10**6, "default")]
    MetricsPush(registry_of(lambda: samples), "penstock-api", NEVER_S, LASTING).close()
    (sent,) = collector.figures()["penstock-api"]
    since = {
        metric.name: point.start_time_unix_nano
        for metric in sent.metrics
        if metric.HasField("sum")
        for point in metric.sum.data_points
    }
    assert began <= since[catalogue.ITEMS.name] <= time_ns()
    assert since[catalogue.QUOTA_GRANTED.name] == 0


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, ()),
        ({SWITCH: ""}, ()),
        ({SWITCH: "none"}, ()),
        ({SWITCH: "prometheus"}, ()),
        ({SWITCH: "console"}, ("there is no console",)),
        (
            {SWITCH: "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ("OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "http/protobuf", "4318"),
        ),
        (
            {SWITCH: "otlp", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json"},
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/json",),
        ),
        (
            {SWITCH: "otlp", "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "nowhere"},
            ("OTEL_* are refused", "nowhere"),
        ),
    ],
)
def test_nothing_is_sent_unless_otlp_is_asked_for(
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    said: Sequence[str],
) -> None:
    """Off, another exporter, another protocol, or variables that cannot be used: no thread, no
    request, and one line that says why."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with push_metrics(CollectorRegistry(), "penstock-api"):
        assert not _threads()
    assert collector.reports == []
    assert len(caplog.records) == bool(said)
    assert all(part in caplog.text for part in said)


@pytest.mark.parametrize("switch", ["otlp", "prometheus,otlp", " OTLP "])
@pytest.mark.parametrize("every", ["", "soon", "1", "-5", "nan", "inf", "1000"])
def test_the_switch_and_the_interval(
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    switch: str,
    every: str,
) -> None:
    """A word among others is enough; an interval that cannot be is named, and metrics are sent all
    the same."""
    monkeypatch.setenv(SWITCH, switch)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", every)
    with push_metrics(CollectorRegistry(), "penstock-api"):
        assert len(_threads()) == 1
    assert len(collector.reports) == 1
    assert not _threads()
    assert (every in ("", "1000")) == ("OTEL_METRIC_EXPORT_INTERVAL" not in caplog.text)


def test_without_opentelemetry_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the extra."""
    monkeypatch.setenv(SWITCH, "otlp")
    monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with push_metrics(CollectorRegistry(), "penstock-api"):
        pass
    assert "pip install 'penstock[otel]'" in caplog.text


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "metrics-push"]


# -- collectors that do harm -----------------------------------------------------------------------


def test_an_outage_is_one_line_and_its_end_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A collector that is away is said once, however often it is asked; its return is said, too."""
    caplog.set_level("INFO")
    port = free_port()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    reads = count()
    push = MetricsPush(registry_of(lambda: [catalogue.SLOTS(next(reads), "api")]), "x", 0.01, ())
    until(lambda: next(reads) > 20, 30, "it was asked again and again")
    with Collector(port=port):
        until(lambda: "takes them again" in caplog.text, 30, "its end is said")
        push.close()
    lines = [record.getMessage().partition(" (")[0] for record in caplog.records]
    assert lines == [
        "metrics: the collector does not take them",
        "metrics: the collector takes them again; counters went on, gauges of the meantime are lost",
    ]


def test_a_collector_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process ends within the limit, and the log says what was lost; one whose outage is known
    is not waited for at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(module, "FLUSH_S", 0.2)
        push = MetricsPush(registry_of(), "penstock-api", NEVER_S, ())
        began = monotonic()
        push.close()
        assert 0.2 <= monotonic() - began < 5
        assert "could not be delivered within 0.2 s" in caplog.text
        monkeypatch.setattr(module, "FLUSH_S", 60.0)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
        push = MetricsPush(registry_of(), "penstock-api", 0.01, ())
        until(lambda: "does not take them" in caplog.text, 30, "the outage is said")
        began = monotonic()
        push.close()
        assert monotonic() - began < 5


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that answers with gigabytes is left after the head of its answer."""
    sent: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.getsockname()[1]}")
        flood = threading.Thread(target=_flood, args=(server, sent), daemon=True)
        flood.start()
        MetricsPush(registry_of(), "penstock-api", NEVER_S, ()).close()
        flood.join(30)
        assert not flood.is_alive()
    assert sum(sent) < 64 * 2**20


def _flood(server: socket.socket, sent: list[int]) -> None:
    connection, _ = server.accept()
    with connection, contextlib.suppress(OSError):
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while sum(sent) < 2**30:
            connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            sent.append(65_536)


def test_a_connection_is_kept_where_the_answer_is_short(collector: Collector) -> None:
    """Reports do not open a connection each."""
    push = MetricsPush(registry_of(), "penstock-api", 0.01, ())
    until(lambda: len(collector.reports) > 3, 30, "reports arrive")
    push.close()
    assert len(collector.callers) == 1


def test_a_forked_child_sends_nothing(collector: Collector) -> None:
    """What a process counts arrives once, whatever it forks."""
    program = """
import os, threading
from prometheus_client import CollectorRegistry, Counter
from penstock_ledger.telemetry.push import MetricsPush

registry = CollectorRegistry()
counter = Counter("mine_total", "One.", registry=registry)
push = MetricsPush(registry, "penstock-api", 0.02, ())
child = os.fork()
if not child:
    counter.inc(100)
    os._exit(threading.active_count() - 1)
counter.inc()
assert os.waitpid(child, 0)[1] == 0, "a thread of the child sends"
push.close()
print(os.getpid())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    reports = collector.figures()["penstock-api"]
    instances = {report.resource["service.instance.id"] for report in reports}
    assert instances == {f"{socket.gethostname()}-{done.stdout.strip()}"}
    assert {report.page()["mine_total"][()] for report in reports} <= {0, 1}
    assert reports[-1].page()["mine_total"][()] == 1
