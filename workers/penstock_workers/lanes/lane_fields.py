"""The settings that lanes bring, as fields of the worker's settings.

Each field is named as its lane is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from penstock_workers.lanes.batch.settings import BatchSettings
from penstock_workers.lanes.embed.settings import EmbedSettings
from penstock_workers.lanes.gpu.settings import GpuSettings
from penstock_workers.lanes.lane_settings import LaneSettings


class LaneFields(BaseModel):
    """Inherited by ``WorkerSettings``. A lane without settings of its own is not here."""

    gpu: GpuSettings = GpuSettings()
    embed: EmbedSettings = EmbedSettings()
    batch: BatchSettings = BatchSettings()

    def of_lane(self, lane: str) -> LaneSettings | None:
        """Return what this lane alone reads; None for a lane without settings of its own."""
        return getattr(self, lane) if lane in LaneFields.model_fields else None


def suitable_concurrency(lane: Any, given: Any) -> int | None:
    """Return how many items a worker of this lane should hold by the lane's own settings.

    ``given`` are the settings as they were read."""
    field = LaneFields.model_fields.get(lane)
    if field is None:
        return None
    own: type[LaneSettings] = type(field.default)
    try:
        return own.model_validate({} if given is None else given).suitable_concurrency()
    except ValidationError:
        return None  # the field's own validation says what is wrong
