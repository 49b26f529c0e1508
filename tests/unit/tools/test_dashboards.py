"""Dashboards as Grafana reads them: its own published models of a dashboard, its panels and their
Prometheus queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

from tools.monitoring.dashboards import DASHBOARDS, Dashboard, dashboard_json

register_default_plugins()


def through_grafana(dashboard: dict[str, Any]) -> Any:
    """Read by its models and written again: what they do not know is gone."""
    return json.loads(json.dumps(GrafanaDashboard.from_json(dashboard), cls=JSONEncoder))


def lost(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            yield from lost(value, theirs.get(name), f"{at}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (value, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(value, other, f"{at}[{number}]")
    elif ours != theirs:
        yield f"{at}: {ours!r} is {theirs!r} to Grafana"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_grafana_knows_every_field(dashboard: Dashboard) -> None:
    """Nothing that we write is a field, a kind of panel or an option that Grafana would pass over
    in silence."""
    written = json.loads(dashboard_json(dashboard))
    assert list(lost(written, through_grafana(written))) == []


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    """In a panel's options, in a query and in the dashboard itself."""
    written = json.loads(dashboard_json(DASHBOARDS[0]))
    panel = next(panel for panel in written["panels"] if panel["type"] == "timeseries")
    panel["fieldConfig"]["defaults"]["custom"]["fillOpacityy"] = 1
    panel["targets"][0]["exprr"] = "up"
    written["refreshh"] = "30s"
    found = " ".join(lost(written, through_grafana(written)))
    assert all(name in found for name in ("fillOpacityy", "exprr", "refreshh"))
