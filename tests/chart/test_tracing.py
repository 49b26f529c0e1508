"""Traces and metrics for a collector, in the chart: off unless asked for; then every Penstock
process gets its address, and may reach it."""

from __future__ import annotations

from typing import Any

import pytest
from chart.conftest import Render
from chart.helm_library import Values
from chart.pods import container, env, pool

from penstock_workers.settings import WorkerSettings

VARIABLES = ("PENSTOCK_TRACE_SHARE", "OTEL_EXPORTER_OTLP_ENDPOINT")


def _tracing(endpoint: str, cidrs: list[str] | None = None) -> Values:
    closed: dict[str, Any] = {"egress": {"tracing": {"cidrs": cidrs or []}}}
    return {"tracing": {"share": 0.01, "endpoint": endpoint}, "networkPolicy": closed}


def test_it_is_off_unless_asked_for(render: Render) -> None:
    """No pod has a variable of it."""
    for name in ("api", "control"):
        assert not set(env(container(pool(render("minimal"), name), "penstock"))) & set(VARIABLES)


def test_feeders_and_workers_are_told_the_same(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have share and endpoint, and the share is one that the settings read."""
    release = render("minimal", _tracing("http://collector.monitoring:4318"))
    for name in ("api", "control"):
        found = env(container(pool(release, name), "penstock"))
        assert [found[variable] for variable in VARIABLES] == [
            "0.01",
            "http://collector.monitoring:4318",
        ]
        monkeypatch.setenv(VARIABLES[0], found[VARIABLES[0]])
        assert WorkerSettings.load().trace_share == 0.01


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector:4318", 4318),
        ("https://traces.example/otlp", 443),
        ("http://collector", 80),
    ],
)
def test_the_collector_can_be_reached(render: Render, endpoint: str, port: int) -> None:
    """The policy opens the endpoint's port, to any address or to those that are given, and only
    when it is needed."""
    rules = _egress(render, _tracing(endpoint))
    (opened,) = [rule for rule in rules if rule not in _egress(render, {})]
    assert opened == {"ports": [{"protocol": "TCP", "port": port}]}
    rules = _egress(render, _tracing(endpoint, ["10.9.0.0/24"]))
    (closed,) = [rule for rule in rules if rule not in _egress(render, {})]
    assert closed["to"] == [{"ipBlock": {"cidr": "10.9.0.0/24"}}]


METRICS = (
    "OTEL_METRICS_EXPORTER",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_METRIC_EXPORT_INTERVAL",
)


@pytest.mark.parametrize(
    ("otlp", "tracing", "endpoint", "ports"),
    [
        ({"endpoint": "http://m:9"}, {}, "http://m:9/v1/metrics", [9]),
        ({}, {"endpoint": "http://c:4318/"}, "http://c:4318/v1/metrics", [4318]),
        ({}, {"endpoint": "http://c:7", "share": 0.1}, "http://c:7/v1/metrics", [7]),
        (
            {"endpoint": "https://m/otlp"},
            {"endpoint": "http://c:7", "share": 0.1},
            "https://m/otlp/v1/metrics",
            [7, 443],
        ),
    ],
)
def test_metrics_are_sent_by_all_that_have_a_page(
    render: Render, otlp: Values, tracing: Values, endpoint: str, ports: list[int]
) -> None:
    """Pools and HTTP doors send to the collector of metrics, else to that of traces; the policy
    opens each port once."""
    changes: Values = {
        "metrics": {"otlp": otlp | {"enabled": True, "intervalSeconds": 30}},
        "tracing": tracing,
        "gateway": {"enabled": True, "files": "s3://b/doors"},
    }
    release = render("minimal", changes)
    for name, inside in (("api", "penstock"), ("control", "penstock"), ("gateway", "gateway")):
        found = env(container(pool(release, name), inside))
        assert [found[variable] for variable in METRICS] == ["otlp", endpoint, "30000"]
    before = _egress(render, {"gateway": changes["gateway"]})
    opened = [rule for rule in _egress(render, changes) if rule not in before]
    assert [rule["ports"][0]["port"] for rule in opened] == ports


def test_metrics_are_not_sent_unless_asked_for(render: Render) -> None:
    """No pod has a variable of it, and tracing alone changes nothing."""
    for release in (render("minimal"), render("minimal", _tracing("http://c:4318"))):
        for name in ("api", "control"):
            assert not set(env(container(pool(release, name), "penstock"))) & set(METRICS)


def _egress(render: Render, changes: Values) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = render("minimal", changes).one("NetworkPolicy", "fleet-penstock")[
        "spec"
    ]["egress"]
    return found
