"""Settings of the choice between lanes: `[lanes]` in penstock.toml.

Light: every process of the fleet reads them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["LaneChangeSettings"]


class LaneChangeSettings(BaseModel):
    """The pace of control's decisions on the lanes of jobs, and its care for deadlines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # between two looks at a job that may go to several lanes
    look_s: Annotated[float, Field(ge=0.1, le=3_600)] = 30.0
    # between two moves, but for the deadline and pauses
    move_each_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    # times the time that a lane is expected to need
    margin: Annotated[float, Field(ge=1, le=10)] = 1.25
    # before another lane works: cancelling batches, feeding
    moving_s: Annotated[float, Field(ge=0, le=3_600)] = 60.0
    # lanes whose workers an autoscaler starts once there is work: having none counts little
    on_demand: tuple[str, ...] = ()
    # a lane is left once it has not worked for so long
    trouble_s: Annotated[float, Field(ge=0, le=3_600)] = 60.0
