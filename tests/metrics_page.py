"""A process's metrics page as Prometheus reads it."""

from __future__ import annotations

import urllib.request

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
