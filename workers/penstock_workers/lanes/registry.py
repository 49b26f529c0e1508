"""All lanes that workers serve, by name. To add one: a folder beside this file with its row, and the row here.

What producers must know of it is one line more, in penstock_producer/lanes.py; settings of its own are a field in
lane_fields.py. docs/lanes.md goes through it step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock_workers.errors import UnknownLane
from penstock_workers.item.lane import Lane
from penstock_workers.lanes.api.row import API
from penstock_workers.lanes.embed.row import EMBED
from penstock_workers.lanes.gpu.row import GPU
from penstock_workers.lanes.row import LaneRow
from penstock_workers.settings import CONTROL_LANE, WorkerSettings

__all__ = ["REGISTRY", "check_lane", "lane_row", "make_lane"]

REGISTRY: Final[Mapping[str, LaneRow[Any]]] = {row.name: row for row in (API, GPU, EMBED)}


def lane_row(name: str) -> LaneRow[Any]:
    """Raises UnknownLane for a lane that workers do not serve."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise UnknownLane(name, REGISTRY) from None


def check_lane(name: str) -> None:
    """Raises UnknownLane for one that no worker can serve."""
    if name != CONTROL_LANE:
        lane_row(name)


def make_lane(settings: WorkerSettings) -> Lane:
    """The lane that this worker serves. Raises UnknownLane, and what the lane finds wrong in its settings."""
    lane: Lane = lane_row(settings.lane).make(settings)
    return lane
