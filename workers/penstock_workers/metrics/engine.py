"""An engine's own gauges, by the names that `penstock status` reads in heartbeats, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Metric, Sample

_BY_GAUGE: Final[Mapping[str, tuple[Metric, float]]] = {  # metric, and what the gauge is multiplied by
    "running": (catalogue.ENGINE_RUNNING, 1),
    "waiting": (catalogue.ENGINE_WAITING, 1),
    "kv_usage": (catalogue.KV_USAGE, 1),
    "prefix_hit_rate": (catalogue.PREFIX_HITS, 1),
    "preempted": (catalogue.PREEMPTIONS, 1),
    "queue_wait_ms": (catalogue.QUEUE_WAIT, 0.001),
    "prompt_tokens_per_s": (catalogue.PROMPT_RATE, 1),
    "generation_tokens_per_s": (catalogue.GENERATION_RATE, 1),
    "tokens_per_s": (catalogue.EMBED_RATE, 1),
    "batch_items": (catalogue.EMBED_BATCH, 1),
    "padding_efficiency": (catalogue.EMBED_PADDING, 1),
    "token_budget": (catalogue.EMBED_BUDGET, 1),
}
BOUND_BY: Final = ("queue", "quota", "slots", "engine", "memory", "starting")


def engine_figures(lane: str, gauges: Mapping[str, float | str]) -> Iterator[Sample]:
    """Gauges that have no metric, such as rates of items, are counted elsewhere."""
    for name, value in gauges.items():
        metric, factor = _BY_GAUGE.get(name, (None, 1.0))
        if metric is not None and isinstance(value, (int, float)):
            yield metric(value * factor, lane)


def bound_figures(lane: str, bound: str) -> Iterator[Sample]:
    for by in BOUND_BY:
        yield catalogue.BOUND(float(by == bound), lane, by)
