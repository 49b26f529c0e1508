"""Traces in the chart: off unless asked for; then every Penstock process gets the collector's
address, and may reach it."""

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


def _egress(render: Render, changes: Values) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = render("minimal", changes).one("NetworkPolicy", "fleet-penstock")[
        "spec"
    ]["egress"]
    return found
