"""A provider batch that its provider works on: it is looked at until it has ended, and cancelled where its job ends."""

from __future__ import annotations

import random
import time
from typing import Any, Final

from penstock_ledger import BatchState
from penstock_workers.lanes.batch.led_batch import LedBatch, counts_of
from penstock_workers.lanes.batch.provider import BatchGone
from penstock_workers.lanes.batch.standing import Standing

POLL_GROWTH: Final = 1.5
POLL_GROWTHS_MAX: Final = 100  # far beyond every cap; a power of some thousands is no float any more


class Watching:
    """The step of a batch that was created."""

    def __init__(self, led: LedBatch) -> None:
        self._led = led
        self._polls = 0
        self._cancel_asked = False

    async def watch(self) -> None:
        led = self._led
        try:
            if led.standing is Standing.ENDS and not self._cancel_asked:
                await led.provider.cancel(led.remote_id)
                self._cancel_asked, self._polls = True, 0
            seen = await led.provider.look(led.remote_id)
        except BatchGone as error:
            await self._ended(status=led.batch.status, why=f"batch_lost: {error}")
            return
        shown = {"status": seen.status, **counts_of(seen)}
        if seen.ended:
            await self._ended(**shown)
            return
        if any(getattr(led.batch, name) != value for name, value in shown.items()):
            await led.write(**shown)
        await led.pause(self._poll_s())

    async def _ended(self, **shown: Any) -> None:
        led = self._led
        led.hit("batch_before_ended")
        await led.write(state=BatchState.ENDED, ended_at=time.time(), **shown)
        led.around.changed.set()
        self._polls, self._cancel_asked = 0, False
        led.hit("batch_ended")

    def _poll_s(self) -> float:
        around = self._led.around
        own, fixed = around.settings.batch, around.jobs.poll_s(self._led.batch.job_id)
        if fixed is not None:
            return fixed
        self._polls += 1
        growth = POLL_GROWTH ** min(self._polls - 1, POLL_GROWTHS_MAX)
        return min(own.poll_cap_s, own.poll_first_s * growth) * random.uniform(0.9, 1.1)
