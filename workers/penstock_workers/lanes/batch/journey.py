"""One provider batch, from its packed file to its last outcome: each step is journalled before and after the provider's call.

``Journey.run`` takes step after step: sending.py, watching.py and ending.py have them. What a step does when it comes a second
time is what makes a crash harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from penstock_ledger import BatchLost, BatchState, JobState, ProviderBatch
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_ratelimit import full_jitter
from penstock_workers.errors import JobCannotRun
from penstock_workers.failure_log import FailureLog
from penstock_workers.lane_changes import BATCH_REFUSED
from penstock_workers.lanes.batch.ending import Ending
from penstock_workers.lanes.batch.led_batch import LOOK_AT_JOB_S, LedBatch, Surroundings
from penstock_workers.lanes.batch.packing.packer import Stopped
from penstock_workers.lanes.batch.provider import (
    AccountStopped,
    BatchProvider,
    BatchRefused,
    TokenCapReached,
    TryLater,
    Unclear,
)
from penstock_workers.lanes.batch.sending import Sending
from penstock_workers.lanes.batch.watching import Watching

log = logging.getLogger(__name__)

FAULT_BASE_S: Final = 0.5  # before a step is tried again, doubled with each failure
FAULT_CAP_S: Final = 60.0
RETRY_AFTER_MAX_S: Final = 3_600.0  # a provider that wants to be left alone for longer is asked again after this


class Journey:
    """Belongs to the event loop; one task runs it."""

    def __init__(self, batch: ProviderBatch, provider: BatchProvider, around: Surroundings) -> None:
        self._led = LedBatch(batch, provider, around)
        self._failures = FailureLog(log)
        sending, watching, ending = Sending(self._led), Watching(self._led), Ending(self._led)
        self._steps: dict[BatchState, Callable[[], Awaitable[None]]] = {
            BatchState.PACKED: sending.upload,
            BatchState.UPLOADED: sending.create,
            BatchState.CREATED: watching.watch,
            BatchState.ENDED: ending.collect,
            BatchState.COLLECTED: ending.conclude,
        }

    @property
    def batch(self) -> ProviderBatch:
        return self._led.batch

    @property
    def tags(self) -> set[str]:
        """That it leads: two while a batch takes the place of another."""
        return self._led.tags

    async def run(self) -> None:
        """Until the batch is settled, another process leads it, or ``close``."""
        while self.batch.state is not BatchState.SETTLED and not self._led.closing.is_set():
            try:
                await self._turn()
            except BatchLost as error:
                log.info("%s", error)
                return
            except Stopped:
                return

    async def _turn(self) -> None:
        self._led.note_standing()
        try:
            await self._steps[self.batch.state]()
            self._led.faults = 0
        except (BatchLost, Stopped):
            raise
        except Exception as error:
            await self._after(error)

    def close(self) -> None:
        """End after the step that is under way."""
        self._led.closing.set()

    async def _after(self, error: Exception) -> None:
        """A step has failed: it is taken again after a pause, unless a person has to act first."""
        led, jobs, job_id = self._led, self._led.around.jobs, self.batch.job_id
        led.faults += 1
        wait_s = full_jitter(led.faults, base_s=FAULT_BASE_S, cap_s=FAULT_CAP_S)
        name = f"provider batch {self.batch.tag} of job {job_id}"
        match error:
            case TryLater():
                wait_s = max(wait_s, min(error.after_s or 0.0, RETRY_AFTER_MAX_S))
            case TokenCapReached():
                await led.wait_for_room(str(error))
                return
            case BatchRefused():
                await jobs.stop(job_id, JobState.PAUSED, f"{BATCH_REFUSED}: {name}: {error}")
                wait_s = max(wait_s, LOOK_AT_JOB_S)
            case AccountStopped() | JobCannotRun():
                await jobs.stop(job_id, JobState.PAUSED, f"{name}: {error}")
                wait_s = max(wait_s, LOOK_AT_JOB_S)
            case SourceUnavailable():
                await jobs.stop(job_id, JobState.PAUSED, str(error))
            case SourceError():
                await jobs.stop(job_id, JobState.FAILED, str(error))
            case _:
                pass
        level = logging.WARNING if isinstance(error, TryLater | Unclear) else logging.ERROR
        words = f"{name} is {self.batch.state}; the step is taken again in {wait_s:.1f} s"
        self._failures.tell("a step of a provider batch failed", error, words, level=level)
        led.note_standing()  # it may have been paused here
        await led.pause(wait_s)
