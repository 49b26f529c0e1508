"""The `gpu` lane: vLLM hosted by the worker, or in a server beside it."""

from __future__ import annotations

from penstock_workers.lanes.gpu.admission import EngineQuarantine, RoomAdmission
from penstock_workers.lanes.gpu.lane import GpuLane
from penstock_workers.lanes.gpu.sidecar import SidecarLane

__all__ = ["EngineQuarantine", "GpuLane", "RoomAdmission", "SidecarLane"]
