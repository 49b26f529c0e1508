"""The `gpu` lane: vLLM hosted by the worker."""

from __future__ import annotations

from penstock_workers.lanes.gpu.admission import EngineQuarantine, RoomAdmission
from penstock_workers.lanes.gpu.lane import GpuLane

__all__ = ["EngineQuarantine", "GpuLane", "RoomAdmission"]
