"""How many documents of a job are fed before its stop-loss has seen the first hundred of them.

A hundred outcomes say whether a job goes well. Until they are there, little more than a hundred
documents are fed, so that a job whose every answer is refused has paid for these and not for all
that the slots of a fleet hold. The batch lane has a first batch in place of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from penstock_ledger import RedisLedger
from penstock_ledger.model import Job
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import AWAITED
from penstock_producer.reporting.reasons import FIRST
from penstock_workers.item.settling.stop_loss import Bounds, accepted_of, decide

FED: Final = FIRST + 28
"""Documents of a generation that are fed at first. Those beyond the hundred may be slow, or wait to
be tried again: nothing waits for them."""
MORE_EVERY_S: Final = 60.0
"""Where the hundred take longer, as where documents wait for a model that no worker has, another
hundred is fed after each of these times: what stands still must not hold up the others for ever."""


class FirstHundred:
    """Holds jobs to a first hundred documents, on the control thread. Raises redis.RedisError."""

    def __init__(self, hot: RedisLedger, clock: Callable[[], float] = time.monotonic) -> None:
        self._hot = hot
        self._clock = clock
        # by job and generation: when its feed was first looked at; None once it has its hundred
        self._since: dict[tuple[str, int], float | None] = {}

    def room(self, job: Job, spec: JobSpec, generation: int, outstanding: int, room: int) -> int:
        """Return how many of ``room`` documents may be fed now.

        ``outstanding``: of this generation."""
        bounds, now = Bounds.of(spec), self._clock()
        if not any(bounds) or job.source.get(AWAITED) or not room:
            return room
        since = self._since.setdefault((job.job_id, generation), now)
        if since is None:
            return room
        lately = self._hot.lately(job.job_id, generation)
        seen = max(lately.ended, lately.answered)
        # a job that has to stop is paused by the worker that has stored the hundredth
        if seen >= FIRST and decide(lately, bounds, accepted_of(job, generation)) is None:
            self._since[job.job_id, generation] = None
            return room
        most = FED + FIRST * int((now - since) / MORE_EVERY_S)
        return max(0, min(room, most - outstanding - min(lately.ended, FIRST)))

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        self._since = {name: since for name, since in self._since.items() if name[0] in live}
