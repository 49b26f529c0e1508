"""The `gpu` lane: vLLM hosted by the worker (under construction on this branch)."""

from __future__ import annotations

from penstock_workers.admission import Unpaced
from penstock_workers.lanes.api import ApiLane
from penstock_workers.quarantine import ChildQuarantine
from penstock_workers.settings import WorkerSettings


class GpuLane(ApiLane):
    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings.providers)
        self.room = None


class RoomAdmission(Unpaced):
    def __init__(self, room: object) -> None: ...


class EngineQuarantine(ChildQuarantine):
    def __init__(self, lane: object) -> None:
        super().__init__("gpu")
