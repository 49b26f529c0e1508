"""The settings of the `batch` lane. Light: every process of the fleet reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from penstock_workers.lanes.lane_settings import LaneSettings

DEFAULT_FOLDER = Path("~/.cache/penstock/batches")


class BatchSettings(LaneSettings):
    """The `batch` lane: where packed files lie, and how much a worker takes on."""

    # packed files until their batches are settled; lost ones are packed again
    folder: Path = DEFAULT_FOLDER
    # A large job's first batch is a small one, and the rest is packed once its answers are checked:
    # one whose answers miss their schema then costs so many requests. 0: all batches are full. It
    # takes the time that the provider has for a batch, so a job whose deadline is nearer than
    # `first_deadline_s` has none, and does not wait for one any longer.
    first_requests: Annotated[int, Field(ge=0, le=100_000)] = 200
    first_from: Annotated[int, Field(ge=1)] = 5_000  # documents of a job that is large
    first_deadline_s: Annotated[float, Field(ge=0, le=30 * 86_400)] = 48 * 3_600.0
    # batches that are packed and wait to be created
    packed_ahead: Annotated[int, Field(ge=1, le=100)] = 3
    led_max: Annotated[int, Field(ge=1, le=10_000)] = 500  # batches that one worker watches
    # After a create without an answer: for so long the provider's list is not believed when it does
    # not have the batch.
    unclear_s: Annotated[float, Field(ge=0, le=3_600)] = 30.0
    # A batch that has not ended so long after its creation counts as stuck: providers give
    # themselves 24 hours.
    stuck_after_s: Annotated[float, Field(ge=3_600, le=30 * 86_400)] = 48 * 3_600.0
    # A batch or an output that the provider answers 404 for is looked for so long before its
    # documents are sent again.
    lost_after_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    # The same where the provider has counted answers: they are paid for, and providers keep outputs
    # for a day at least.
    answers_kept_s: Annotated[float, Field(ge=0, le=30 * 86_400)] = 86_400.0
    # after a batch was created; jobs may say batch_poll_s
    poll_first_s: Annotated[float, Field(gt=0, le=3_600)] = 5.0
    poll_cap_s: Annotated[float, Field(gt=0, le=3_600)] = 120.0  # that pause grows up to this

    def suitable_concurrency(self) -> int:
        return 1  # nothing is claimed here

    def kept_in(self, folder: Path) -> Self:
        return (
            self.model_copy(update={"folder": folder / "batches"})
            if self.folder == DEFAULT_FOLDER
            else self
        )

    @property
    def place(self) -> Path:
        return self.folder.expanduser()
