"""A process's metrics page as Prometheus reads it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

Page = dict[str, dict[tuple[tuple[str, str], ...], float]]


def scrape(port: int) -> Page:
    """Every sample by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return read(answer.read().decode())


def read(text: str) -> Page:
    page: Page = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            page.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return page


def value(page: Page, name: str, **labels: str) -> float:
    return page[name][tuple(sorted(labels.items()))]


GRAFANA = {"$__rate_interval": "5m", "$lane": ".*"}  # variables that Grafana fills in


def parsed(expression: str) -> Any:
    """Raises ValueError for what is no PromQL."""
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    return promql_parser.parse(expression)


def selectors(node: Any) -> Iterator[tuple[str, set[str]]]:
    """Every metric name in the expression, with the labels that it is picked by."""
    if isinstance(node, promql_parser.VectorSelector):
        assert node.name is not None, "a selector without a metric name"
        yield node.name, {matcher.name for matcher in node.matchers.matchers}
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from selectors(node.vector_selector)
    else:
        for child in ("lhs", "rhs", "expr", "param"):
            if (part := getattr(node, child, None)) is not None and not isinstance(part, str):
                yield from selectors(part)
        for argument in getattr(node, "args", None) or ():
            yield from selectors(argument)


def groupings(node: Any) -> Iterator[tuple[set[str], set[str]]]:
    """Of every aggregation the labels that it keeps, and the series under it."""
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        yield set(node.modifier.labels), {series for series, _ in selectors(node)}
    for child in ("lhs", "rhs", "expr"):
        if (part := getattr(node, child, None)) is not None:
            yield from groupings(part)
    for argument in getattr(node, "args", None) or ():
        yield from groupings(argument)


def metric_name(series: str, catalogue: set[str]) -> str:
    """The catalogue's name of a series: histograms have three."""
    for ending in ("_bucket", "_sum", "_count"):
        if series not in catalogue and series.removesuffix(ending) in catalogue:
            return series.removesuffix(ending)
    return series
