"""Which lane a worker serves, by its name. A lane's modules are imported by those that serve it."""

from __future__ import annotations

from penstock_workers.errors import UnknownLane
from penstock_workers.item.lane import Lane
from penstock_workers.settings import CONTROL_LANE, WorkerSettings

BUILT = ("api", "gpu", "embed")  # `batch` is named by the contract, and not built yet


def check_lane(lane: str) -> None:
    """Raises UnknownLane for one that no worker can serve."""
    if lane not in (*BUILT, CONTROL_LANE):
        raise UnknownLane(lane, BUILT)


def make_lane(settings: WorkerSettings) -> Lane:
    """The lane that this worker serves. Raises UnknownLane, and what the lane finds wrong in its settings."""
    match settings.lane:
        case "api":
            from penstock_workers.lanes.api import ApiLane

            return ApiLane(
                settings.providers, settings.max_answer_bytes, settings.answer_memory_bytes, settings.http_client
            )
        case "gpu":
            from penstock_workers.lanes.gpu import GpuLane, SidecarLane

            return GpuLane(settings) if settings.gpu.upstream_url is None else SidecarLane(settings)
        case "embed":
            from penstock_workers.lanes.embed import EmbedLane

            return EmbedLane(settings.embed)
    raise UnknownLane(settings.lane, BUILT)
