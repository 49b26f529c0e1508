"""The row of the `gpu` lane."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock_producer.feed.queues import Served
from penstock_workers.lanes.gpu.inspection import ENGINE, TRIES, check, inspect
from penstock_workers.lanes.gpu.settings import SLOTS_PER_SEQUENCE, GpuSettings
from penstock_workers.lanes.row import ENGINE_GAUGES, Gauge, LaneRow
from penstock_workers.metrics import catalogue
from penstock_workers.settings import MAX_CONCURRENCY, WorkerSettings

if TYPE_CHECKING:
    from penstock_workers.item.lane import Admission
    from penstock_workers.item.run.quarantine import Quarantine
    from penstock_workers.lanes.gpu.gpu_lane import GpuLane
    from penstock_workers.lanes.gpu.sidecar import SidecarLane


def _make(settings: WorkerSettings) -> GpuLane | SidecarLane:
    if settings.gpu.upstream_url is not None:
        from penstock_workers.lanes.gpu.sidecar import SidecarLane

        return SidecarLane(settings)
    from penstock_workers.lanes.gpu.gpu_lane import GpuLane

    return GpuLane(settings)


def _admission(_settings: WorkerSettings, lane: GpuLane | SidecarLane) -> Admission:
    from penstock_workers.lanes.gpu.admission import EngineAdmission

    return EngineAdmission(lane.queue)


def _quarantine(lane: GpuLane | SidecarLane) -> Quarantine:
    """Return the quarantine of suspects, which is in the worker's engine.

    The engine is in a process of its own already, and another one would not fit beside it."""
    from penstock_workers.lanes.gpu.admission import EngineQuarantine

    return EngineQuarantine(lane)


def _serves(settings: WorkerSettings) -> Served:
    """Return what the settings say of the model.

    A server beside the worker says the rest when it is up."""
    gpu = settings.gpu
    own = () if gpu.model is None else (gpu.model, Path(gpu.model).name)
    return Served(tuple(dict.fromkeys((*own, *gpu.names))), tuple(gpu.lora))


def _slots(settings: WorkerSettings, lane: GpuLane | SidecarLane) -> int | None:
    """Return as many slots as suit the engine that is up, unless `concurrency` was given."""
    by_settings = min(settings.gpu.suitable_concurrency(), MAX_CONCURRENCY)
    if lane.sequences is None or settings.concurrency != by_settings:
        return None
    return min(SLOTS_PER_SEQUENCE * lane.sequences, MAX_CONCURRENCY)


GPU: LaneRow[GpuLane | SidecarLane] = LaneRow(
    name="gpu",
    make=_make,
    admission=_admission,
    quarantine=_quarantine,
    serves=_serves,
    announces=lambda lane: lane.served,
    slots=_slots,
    settings=GpuSettings,
    modules=("penstock_workers.lanes.gpu.gpu_lane", "penstock_workers.lanes.gpu.sidecar"),
    gauges={
        **ENGINE_GAUGES,
        "kv_usage": Gauge(catalogue.KV_USAGE),
        "prefix_hit_rate": Gauge(catalogue.PREFIX_HITS),
        "preempted": Gauge(catalogue.PREEMPTIONS),
        "prompt_tokens_per_s": Gauge(catalogue.PROMPT_RATE),
        "generation_tokens_per_s": Gauge(catalogue.GENERATION_RATE),
    },
    waits_for="room",
    engine=ENGINE,
    engine_url=lambda settings: settings.gpu.upstream_url,
    inspect=inspect,
    tries=TRIES,
    check=check,
)
