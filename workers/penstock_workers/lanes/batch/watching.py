"""A batch that its provider works on: watched until it ends, cancelled where its job ends.

A provider that never says a word that means the end is not asked for ever: past its window and a
day more the batch counts as stuck. Its job pauses then: control moves it to another lane that it
permits, or a person who resumes it takes the documents back.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Any, Final

from penstock_ledger import BatchFailure, BatchState, JobState, ProviderBatch
from penstock_ledger.reasons import By, Code, Reason
from penstock_workers.lanes.batch.apis.provider import BatchGone, BatchSeen
from penstock_workers.lanes.batch.jobs import Standing
from penstock_workers.lanes.batch.led_batch import LedBatch, counts_of
from penstock_workers.lanes.batch.settings import BatchSettings
from penstock_workers.lanes.batch.troubles import Troubles

log = logging.getLogger(__name__)

POLL_GROWTH: Final = 1.5
# far beyond every cap; a power of some thousands is no float any more
POLL_GROWTHS_MAX: Final = 100
# OpenAI names ten minutes; what is stuck is not waited for any longer
CANCEL_TAKES_S: Final = 900.0
CANCELLED: Final = (
    "its job has ended or left the lane; the provider was asked to cancel it, which may take ten "
    "minutes"
)


class Watching:
    """The step of a batch that was created."""

    def __init__(self, led: LedBatch, troubles: Troubles, settings: BatchSettings) -> None:
        self._led, self._troubles, self._settings = led, troubles, settings
        self._polls = 0
        self._cancelled_at: float | None = None  # monotonic

    async def watch(self) -> None:
        led = self._led
        try:
            await self._cancel_if_unwanted()
            seen = await led.provider.look(led.remote_id)
        except BatchGone as error:
            if await self._troubles.is_given_up(error, "batch", may_come=led.answers_out > 0):
                await self._ended(failure=BatchFailure("batch_lost", str(error)))
            return
        shown = {"status": seen.status, **counts_of(seen), "trouble": None, "missing": None}
        if seen.ended:
            await self._ended(**shown)
            return
        if any(getattr(led.batch, name) != value for name, value in shown.items()):
            await led.write(**shown)
        if self._is_overdue and await self._has_given_up(seen):
            return
        await led.pause(self._poll_s())

    async def _cancel_if_unwanted(self) -> None:
        """Cancel the batch if it is not wanted any more.

        That is by its job, or by the person who resumed a job that it had held up."""
        led = self._led
        is_taken_back = self._is_stuck and led.standing is Standing.RUNS
        is_unwanted = led.standing in (Standing.ENDS, Standing.LEAVES) or is_taken_back
        if self._cancelled_at is not None or not is_unwanted:
            return
        await led.provider.cancel(led.remote_id)
        self._cancelled_at, self._polls = time.monotonic(), 0
        if not is_taken_back:
            await led.write(why=CANCELLED)

    async def _has_given_up(self, seen: BatchSeen) -> bool:
        """Return whether nothing more is expected of a batch that should have ended long ago."""
        led, batch = self._led, self._led.batch
        if self._cancelled_at is not None:
            if time.monotonic() - self._cancelled_at < CANCEL_TAKES_S:
                return False
            log.error(
                "provider batch %s of job %s (%s at %s) is still %s, and is not looked at any "
                "more; what it answers from now on is paid for and not read",
                batch.tag,
                batch.job_id,
                batch.remote_id,
                batch.provider,
                seen.status,
            )
            await led.collected(
                BatchFailure(Code.BATCH_STUCK, f"it was still {seen.status}"),
                unread=led.answers_out,
            )
            return True
        if led.standing is Standing.RUNS and not self._is_stuck:
            await led.jobs.stop(batch.job_id, JobState.PAUSED, _stuck(batch, seen))
            stuck = BatchFailure(Code.BATCH_STUCK, "it should have ended long ago")
            await led.write(failure=stuck)
            led.note_standing()
        return False

    @property
    def _is_stuck(self) -> bool:
        """Return whether its job was paused for it."""
        failure = self._led.batch.failure
        return failure is not None and failure.name == Code.BATCH_STUCK

    @property
    def _is_overdue(self) -> bool:
        created_at = self._led.batch.created_at
        return created_at is not None and time.time() - created_at > self._settings.stuck_after_s

    async def _ended(self, **shown: Any) -> None:
        led = self._led
        led.hit("batch_before_ended")
        await led.write(state=BatchState.ENDED, ended_at=time.time(), **shown)
        led.note_change()
        self._polls, self._cancelled_at = 0, None
        led.hit("batch_ended")

    def _poll_s(self) -> float:
        own, fixed = self._settings, self._led.jobs.poll_s(self._led.batch.job_id)
        if fixed is not None:
            return fixed
        self._polls += 1
        growth = POLL_GROWTH ** min(self._polls - 1, POLL_GROWTHS_MAX)
        return min(own.poll_cap_s, own.poll_first_s * growth) * random.uniform(0.9, 1.1)


def _stuck(batch: ProviderBatch, seen: BatchSeen) -> Reason:
    params = {
        "batch": batch.remote_id,
        "provider": batch.provider,
        "documents": batch.requests,
        "status": seen.status,
        "hours": (time.time() - (batch.created_at or 0.0)) / 3_600,
    }
    return Reason(Code.BATCH_STUCK, By.LANE, params)
