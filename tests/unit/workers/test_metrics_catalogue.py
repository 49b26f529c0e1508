"""Promises of the catalogue, and of what is made from it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from metrics_page import groupings, metric_name, parsed, selectors

from penstock_gateway.metrics import CATALOGUE as OF_DOORS
from penstock_gateway.metrics import DoorMetric
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.catalogue import CATALOGUE as OF_WORKERS
from penstock_workers.metrics.samples import Metric
from tools.monitoring.alerts import ALERTS, RUNBOOK
from tools.monitoring.dashboards import DASHBOARDS, dashboard_json
from tools.monitoring.write import made_files

ROOT = Path(__file__).parents[3]
CATALOGUE: tuple[Metric | DoorMetric, ...] = (*OF_WORKERS, *OF_DOORS)
BY_NAME = {metric.name: metric for metric in CATALOGUE}
LABELS = {
    "lane",
    "outcome",
    "reason",
    "cause",
    "provider",
    "direction",
    "effect",
    "version",
    "by",
    "store",
    "state",
    "result",
    "quota",
    "dimension",
    "queue",
    "cloud",
    "event",
    "route",
    "method",
    "status",
    "code",
    "task",
}
OF_PROMETHEUS = {"instance", "le"}
EXPRESSIONS = [(alert.name, alert.expr) for alert in ALERTS] + [
    (f"{dashboard.uid}: {panel.title}", expression)
    for dashboard in DASHBOARDS
    for row in dashboard.rows
    for panel in row.panels
    for expression, _ in panel.queries
]
ON_NO_DASHBOARD = {
    catalogue.INFO,
    catalogue.LOOKED,
    catalogue.PROMOTED,
    catalogue.LEADS,
    catalogue.TICK_SECONDS,
    catalogue.SPANS,
}


def test_names_are_as_prometheus_wants_them() -> None:
    """One prefix, counters end in _total, units are base units, and no name is given twice."""
    assert len(CATALOGUE) == len(BY_NAME) > 50
    for metric in CATALOGUE:
        assert re.fullmatch(r"penstock_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert not re.search(r"_(ms|kb|mb|percent|minutes)(_|$)", metric.name)
        assert metric.help.endswith("."), metric.name
        assert bool(metric.bounds) == (metric.kind == "histogram"), metric.name


def test_labels_have_few_values() -> None:
    """Every label is one whose values settings or code list; ids of jobs, documents and processes
    are not."""
    assert {label for metric in CATALOGUE for label in metric.labels} == LABELS


def test_a_sample_has_the_labels_that_are_promised() -> None:
    """A value with a label too few or too many is a mistake at once, not a broken page."""
    with pytest.raises(ValueError, match="penstock_items_total takes the labels"):
        catalogue.ITEMS(1.0, "api")


@pytest.mark.parametrize(
    ("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS]
)
def test_expressions_ask_for_what_there_is(where: str, expression: str) -> None:
    """Every expression is PromQL, and each metric and label in it exists."""
    found = list(selectors(parsed(expression)))
    assert found, f"{where} asks for nothing"
    for series, labels in found:
        metric = BY_NAME[metric_name(series, set(BY_NAME))]
        assert labels <= set(metric.labels) | OF_PROMETHEUS, (where, series)
    for labels, under in groupings(parsed(expression)):
        for series in under:
            metric = BY_NAME[metric_name(series, set(BY_NAME))]
            assert labels <= set(metric.labels) | OF_PROMETHEUS, (where, series)


def test_every_metric_is_looked_at_somewhere() -> None:
    """Every metric is used: each is in a panel or an alert, but for those that are for digging."""
    asked = {
        metric_name(series, set(BY_NAME))
        for _, text in EXPRESSIONS
        for series, _ in selectors(parsed(text))
    }
    assert {metric.name for metric in CATALOGUE} - asked == {
        str(metric) for metric in ON_NO_DASHBOARD
    } - asked


def test_what_is_made_is_up_to_date() -> None:
    """Dashboards, rules, table and runbook are as the catalogue makes them: `python -m
    tools.monitoring.write`."""
    made = dict(made_files(ROOT))
    assert len(made) == 6
    stale = [str(path) for path, text in made.items() if path.read_text("utf-8") != text]
    assert not stale, "run `python -m tools.monitoring.write`"


def test_each_alert_says_what_to_do() -> None:
    """Severity, a summary, a runbook of its own, and an anchor that the page has."""
    headings = {
        line[4:].lower()
        for line in (ROOT / RUNBOOK).read_text().splitlines()
        if line.startswith("### ")
    }
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert.anchor.removeprefix(f"{RUNBOOK}#") in headings
        assert alert.severity in {"critical", "warning", "info"}
        assert len(alert.runbook) > 100
        assert alert.summary


def test_panels_are_placed_side_by_side() -> None:
    """No two panels overlap, ids are unique, and each panel names the chosen data source."""
    for dashboard in DASHBOARDS:
        panels = json.loads(dashboard_json(dashboard))["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for panel in panels
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells)
        for panel in panels:
            assert panel["type"] == "row" or all(
                target["datasource"]["uid"] == "${datasource}" for target in panel["targets"]
            )
