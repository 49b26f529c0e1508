"""One provider batch, from its packed file to its last outcome, journalled around each call.

``Journey.run`` takes step after step: sending.py, watching.py and ending.py have them. What a step
does when it comes a second time is what makes a crash harmless.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from penstock_ledger import BatchLost, BatchState, JobState, ProviderBatch
from penstock_ledger.reasons import By, Code, Reason
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_workers.errors import JobCannotRun, stop_reason
from penstock_workers.failure_log import FailureLog
from penstock_workers.lanes.batch.apis.provider import (
    BatchGone,
    BatchRefused,
    TokenCapReached,
    TryLater,
    Unclear,
)
from penstock_workers.lanes.batch.ending import Ending
from penstock_workers.lanes.batch.led_batch import LOOK_AT_JOB_S, LedBatch
from penstock_workers.lanes.batch.packer import Stopped
from penstock_workers.lanes.batch.sending import Sending
from penstock_workers.lanes.batch.troubles import Troubles
from penstock_workers.lanes.batch.watching import Watching

log = logging.getLogger(__name__)


class Journey:
    """The way of one batch to its end, as one task of the event loop."""

    def __init__(
        self,
        led: LedBatch,
        troubles: Troubles,
        sending: Sending,
        watching: Watching,
        ending: Ending,
    ) -> None:
        self._led, self._troubles = led, troubles
        self._failures = FailureLog(log)
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
        """The tags that it leads: two while a batch takes the place of another."""
        return self._led.tags

    async def run(self) -> None:
        """Run until the batch is settled, another process leads it, or ``close``."""
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
        """Take a failed step again after a pause, unless a person has to act first."""
        led = self._led
        led.faults += 1
        if isinstance(error, TokenCapReached):
            await led.wait_for_room(str(error))
            return
        wait_s = self._troubles.wait_s(error)
        try:
            wait_s = max(wait_s, await self._stop_job(error, wait_s))
        except BatchLost:
            raise
        except Exception as store_error:  # a store is away: it may be what the step has failed for
            self._failures.tell(
                "the reason why a provider batch waits could not be stored",
                store_error,
                "the step goes on",
            )
        name = f"provider batch {self.batch.tag} of job {self.batch.job_id}"
        level = logging.WARNING if isinstance(error, TryLater | Unclear) else logging.ERROR
        words = f"{name} is {self.batch.state}; the step is tried again in {wait_s:.1f} s"
        self._failures.tell("a step of a provider batch failed", error, words, level=level)
        led.note_standing()  # it may have been paused here
        await led.pause(wait_s)

    async def _stop_job(self, error: Exception, wait_s: float) -> float:
        """Note the failure, and pause or fail the job where it asks for that.

        Returns how long the step waits at least."""
        jobs, job_id = self._led.jobs, self.batch.job_id
        name = f"provider batch {self.batch.tag} of job {job_id}"
        if isinstance(error, SourceUnavailable | SourceError):
            to = JobState.PAUSED if isinstance(error, SourceUnavailable) else JobState.FAILED
            await jobs.stop(job_id, to, stop_reason(error))
            return 0.0
        if isinstance(error, JobCannotRun):
            await jobs.stop(job_id, JobState.PAUSED, stop_reason(error))
            return LOOK_AT_JOB_S
        trouble = await self._troubles.note(error, wait_s)
        if isinstance(error, BatchRefused) and not isinstance(error, BatchGone):
            refused = Reason(Code.BATCH_REFUSED, By.LANE, {"detail": f"{name}: {error}"})
            await jobs.stop(job_id, JobState.PAUSED, refused)
            return LOOK_AT_JOB_S
        pause_s = self._troubles.pause_s(error, trouble)
        if pause_s is None:
            return 0.0
        resume_at = time.time() + pause_s if pause_s else None
        failed = Reason(trouble.name, By.PROVIDER, {"detail": f"{name}: {error}"})
        await jobs.stop(job_id, JobState.PAUSED, failed, resume_at)
        return LOOK_AT_JOB_S
