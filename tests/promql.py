"""Reads PromQL with a real parser, as tests want it: which metrics an expression asks for, and by
which labels it picks them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import promql_parser

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
