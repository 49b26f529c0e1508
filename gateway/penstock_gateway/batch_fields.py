"""The settings `gateway.batches.*`, as PENSTOCK_GATEWAY__BATCHES__LANE=batch: what batches of the
HTTP doors become."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock_producer.job.lanes import DEFAULT_LANE, LaneAsked

__all__ = ["BatchFields"]

MIB: Final = 1024 * 1024
DAY_S: Final = 86_400.0
PROVIDER: Final = r"^[A-Za-z0-9_-]{1,64}$"


class BatchFields(BaseModel):
    """Where batches go, and how large one may be."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    provider: Annotated[str, Field(pattern=PROVIDER)] = "default"  # that answers /v1/batches
    lane: LaneAsked = (
        DEFAULT_LANE  # of batches, and of jobs and schedules over HTTP, that name none
    )
    # The stop-loss of batches whose metadata names none: a share such as 50%, or off.
    stop_at_dead: Annotated[str, Field(pattern=r"^(off|\d{1,3}(\.\d+)?%)$")] = "50%"
    models: Literal["one", "any"] = "one"  # in the lines of one batch; OpenAI has one
    max_requests: Annotated[int, Field(ge=1, le=10_000_000)] = (
        50_000  # lines of /v1/batches, texts of embeddings: OpenAI's
    )
    # Of /v1/messages/batches; None = `provider`, where that is of kind anthropic, else the only one
    # that is.
    messages_provider: Annotated[str, Field(pattern=PROVIDER)] | None = None
    messages_max_requests: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000  # Anthropic's
    messages_max_bytes: Annotated[int, Field(ge=1024, le=1024**4)] = (
        256 * MIB
    )  # of the body; Anthropic's
    messages_window_s: Annotated[float, Field(gt=0, le=30 * DAY_S)] = (
        DAY_S  # after which requests expire; Anthropic's
    )
    # Between two looks for batches whose job has ended, and for new ones.
    interval_s: Annotated[float, Field(gt=0, le=60)] = 0.5
    # A process that has died in a step is waited for so long; the others take its batch then.
    lease_s: Annotated[float, Field(ge=0.5, le=600)] = 15.0
    steps: Annotated[int, Field(ge=1, le=64)] = 4  # files that one process checks or writes at once
