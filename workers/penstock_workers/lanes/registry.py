"""All lanes that workers serve, by name.

To add one: a folder beside this file with its row, and the row here.

What producers must know of it is one line more, in penstock_producer/job/lanes.py; settings of its
own are a field in lane_fields.py. docs/change.md goes through it step by step.

What a lane says of its engine, as metrics; `penstock status` reads the same from heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock_producer.feed.queues import NAMES_MAX, Served, queue_name
from penstock_workers.errors import TooManyNames, UnknownLane
from penstock_workers.item.lane import Lane
from penstock_workers.lanes.api.row import API
from penstock_workers.lanes.batch.row import BATCH
from penstock_workers.lanes.embed.row import EMBED
from penstock_workers.lanes.gpu.row import GPU
from penstock_workers.lanes.row import LaneRow
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.provider_calls import signer_of
from penstock_workers.settings import CONTROL_LANE, WorkerSettings

__all__ = [
    "REGISTRY",
    "check_lane",
    "check_provider",
    "check_settings",
    "home_queue",
    "lane_row",
    "make_lane",
    "served_by",
]


REGISTRY: Final[Mapping[str, LaneRow[Any]]] = {row.name: row for row in (API, GPU, EMBED, BATCH)}


def lane_row(name: str) -> LaneRow[Any]:
    """Return the row of a lane.

    Raises UnknownLane for a lane that workers do not serve."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise UnknownLane(name, REGISTRY) from None


def check_lane(name: str) -> None:
    """Check that workers can serve a lane.

    Raises UnknownLane."""
    if name != CONTROL_LANE:
        lane_row(name)


def check_settings(settings: WorkerSettings) -> None:
    """Check the settings of the lane before it starts.

    Raises UnknownLane, and what the lane finds wrong."""
    row = lane_row(settings.lane)
    if row.runs is None:
        row.make(settings)


def served_by(settings: WorkerSettings) -> Served | None:
    """Return the model that a worker with these settings hosts, as far as they say.

    None in lanes that host none. Raises TooManyNames."""
    row = REGISTRY.get(settings.lane)
    if row is None or row.serves is None:
        return None
    served = row.serves(settings)
    if len(served.every_name) > NAMES_MAX:
        raise TooManyNames(settings.lane, len(served.every_name), NAMES_MAX)
    return served


def home_queue(settings: WorkerSettings) -> str:
    """Return the queue under whose name a worker keeps what it holds.

    It is that of its model, or of its lane where it hosts none."""
    served = served_by(settings)
    return queue_name(settings.lane) if served is None else served.home(settings.lane)


def make_lane(settings: WorkerSettings) -> Lane:
    """Make the lane that this worker serves.

    Raises UnknownLane, and what the lane finds wrong in its settings."""
    lane: Lane = lane_row(settings.lane).make(settings)
    return lane


def check_provider(settings: WorkerSettings, name: str) -> None:
    """Check that a worker of the lane can call a provider; may ask for credentials.

    Raises MissingApiKey, PlainHttp, NoCredentials and what the lane's own needs are."""
    provider, row = settings.provider(name), lane_row(settings.lane)
    provider.api_key(name)
    signer_of(name, provider)
    if row.takes is not None:
        row.takes(name, provider)


BOUND_BY: Final = ("queue", "quota", "slots", "engine", "memory", "interactive", "starting")


def engine_figures(lane: str, gauges: Mapping[str, float | str]) -> Iterator[Sample]:
    """Yield the figures to which the lane's row gives a metric.

    The others, such as rates of items, are counted elsewhere."""
    metrics = lane_row(lane).gauges
    for name, value in gauges.items():
        if name in metrics and isinstance(value, (int, float)):
            metric, factor = metrics[name]
            yield metric(value * factor, lane)


def bound_figures(lane: str, bound: str) -> Iterator[Sample]:
    for by in BOUND_BY:
        yield catalogue.BOUND(float(by == bound), lane, by)
