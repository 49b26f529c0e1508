"""A batch whose step fails waits for a time, or its job pauses.

What a failure means is decided by the table of fates and by ``ASTRAY``, as in the lanes that send
documents one by one. All that is counted here is counted in the journal, so that a restart, or
another leader, goes on counting.
"""

from __future__ import annotations

import logging
import random
import time
from typing import Final

from penstock_ledger import BatchState, BatchTrouble, Missing
from penstock_ledger.redaction import redact
from penstock_ratelimit import full_jitter
from penstock_workers.item.failures import ASTRAY
from penstock_workers.lanes.batch.apis.provider import (
    AccountStopped,
    AnswersMissing,
    Astray,
    BatchError,
    BatchGone,
    TryLater,
)
from penstock_workers.lanes.batch.jobs import Standing
from penstock_workers.lanes.batch.led_batch import LedBatch
from penstock_workers.settings import WorkerSettings

log = logging.getLogger(__name__)

FAULT_BASE_S: Final = 0.5  # before a step is tried again, doubled with each failure
FAULT_CAP_S: Final = 60.0
# a provider that wants to be left alone for longer is asked again after this
RETRY_AFTER_MAX_S: Final = 3_600.0
PAUSE_FIRST_S: Final = 60.0  # of a job whose account was refused in mid-work; doubled each time
PAUSE_CAP_S: Final = 900.0
LOOKS_MIN: Final = 5  # for what is missing, however long ago the first of them was
LOOK_CAP_S: Final = 900.0  # between two looks for what is missing
SAID_CHARS: Final = 300
DOUBLINGS_MAX: Final = 30
CALLS: Final = {
    BatchState.PACKED: "upload",
    BatchState.UPLOADED: "create",
    BatchState.CREATED: "look",
    BatchState.ENDED: "answers",
    BatchState.COLLECTED: "delete",
}


class Troubles:
    """The troubles of one journey."""

    def __init__(self, led: LedBatch, settings: WorkerSettings) -> None:
        self._led, self._settings = led, settings

    def wait_s(self, error: Exception) -> float:
        """Return how long the step waits before it is taken again."""
        before = self._led.batch.trouble
        times = max(self._led.faults, 1 if before is None else before.times + 1)
        wait_s = full_jitter(min(times, DOUBLINGS_MAX), base_s=FAULT_BASE_S, cap_s=FAULT_CAP_S)
        if isinstance(error, TryLater):
            wait_s = max(wait_s, min(error.after_s or 0.0, RETRY_AFTER_MAX_S))
        return wait_s

    async def note(self, error: Exception, wait_s: float) -> BatchTrouble:
        """Write down what holds up the step, for people and for the next leader.

        Raises BatchLost."""
        before, now = self._led.batch.trouble, time.time()
        name, status = (
            (error.name, error.status)
            if isinstance(error, BatchError)
            else ("unexpected_error", None)
        )
        call = CALLS[self._led.batch.state]
        is_first = before is None or before.call != call
        trouble = BatchTrouble(
            call,
            name,
            redact(str(error), cut=True)[:SAID_CHARS],
            status,
            now if before is None or is_first else before.since,
            1 if before is None or is_first else before.times + 1,
            now + wait_s,
        )
        await self._led.write(trouble=trouble)
        return trouble

    def pause_s(self, error: Exception, trouble: BatchTrouble) -> float | None:
        """Return how long the job has to pause for this failure; None for not at all.

        0 is "until a person resumes it".

        A refused account pauses it at once, and what may be the address, a proxy or the key's
        rights once it came ``pause_after_run`` times in a row: as in every lane. Where the provider
        has taken something of this batch, the account was in order, and the job looks by itself
        whether it is again."""
        most = self._settings.pause_after_run
        is_astray = isinstance(error, Astray) or (
            isinstance(error, BatchGone) and error.name in ASTRAY
        )
        if isinstance(error, AccountStopped):
            over = trouble.times - 1
        elif is_astray and most and trouble.times >= most:
            over = trouble.times - most
        else:
            return None
        batch = self._led.batch
        if batch.file_id is None and batch.remote_id is None:
            return 0.0
        return min(PAUSE_CAP_S, PAUSE_FIRST_S * 2.0 ** min(over, DOUBLINGS_MAX))

    async def is_given_up(
        self, error: BatchGone | AnswersMissing, what: str, *, may_come: bool
    ) -> bool:
        """Note a look that did not find the batch, or all its answers, and wait for the next.

        Returns True once there were enough of them for long enough. ``may_come``: the provider has
        answers that were not read. Raises BatchLost."""
        led, now = self._led, time.time()
        before, own = led.batch.missing, self._settings.batch
        missing = Missing(what, now, 0) if before is None or before.what != what else before
        missing = missing._replace(looks=missing.looks + 1)
        is_long = may_come and led.standing is not Standing.ENDS
        patience_s = max(own.answers_kept_s, own.lost_after_s) if is_long else own.lost_after_s
        if missing.looks >= LOOKS_MIN and now - missing.since >= patience_s:
            return True
        wait_s = self._look_s(missing, missing.since + patience_s - now)
        if isinstance(error, BatchGone):
            error.named(f"{what}_missing", error.status)
        await led.write(missing=missing)
        await self.note(error, wait_s)
        log.warning(
            "provider batch %s of job %s: %s; this was look %d, the next is in %.0f s, and after "
            "%.0f s its documents are sent again",
            led.batch.tag,
            led.batch.job_id,
            error,
            missing.looks,
            wait_s,
            patience_s,
        )
        await led.pause(wait_s)
        return False

    def _look_s(self, missing: Missing, left_s: float) -> float:
        """Return a growing pause that ends no later than the last look is due."""
        first_s = self._settings.batch.poll_first_s
        wait_s = min(LOOK_CAP_S, first_s * 2.0 ** min(missing.looks - 1, DOUBLINGS_MAX))
        if missing.looks >= LOOKS_MIN - 1:
            wait_s = min(wait_s, max(first_s, left_s))
        return wait_s * random.uniform(0.9, 1.1)
