"""How much may be in the queue: a window per job, and never more of Redis than leaves room for everything else."""

from __future__ import annotations

import logging
import time

from penstock_ledger import RedisLedger

log = logging.getLogger(__name__)

WINDOW_PER_SLOT = 20  # items in the queue per item the fleet can have in flight: seconds of work, not hours
WINDOW_MIN = 2_000  # keeps a small or a starting fleet busy
WINDOW_MAX = 50_000  # about 50 MB of messages; more would only slow down cancel and fairness
MEMORY_SHARE = 0.75  # of Redis's maxmemory; above it feeding pauses, so that acks and leases always fit
LOOK_EVERY_S = 2.0  # fleet size and memory change slowly


class Room:
    """Answers how many more documents of a job may be published now."""

    def __init__(self, hot: RedisLedger, fixed_window: int | None) -> None:
        self._hot = hot
        self._fixed = fixed_window
        self._window = fixed_window or WINDOW_MIN
        self._full = False
        self._look_at = 0.0

    def for_feed(self, job_id: str, generation: int, live_jobs: int) -> int:
        """Documents that one feed may add. Jobs share the window evenly, so that none waits behind a larger one."""
        self._look()
        if self._full:
            return 0
        share = max(1, self._window // max(1, live_jobs))
        return max(0, share - self._hot.outstanding(job_id, generation))

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        memory = self._hot.memory()
        full = bool(memory.maxmemory) and memory.used > MEMORY_SHARE * memory.maxmemory
        if full and not self._full:
            log.warning(
                "feeding pauses: Redis uses %d of %d bytes, above %.0f %%; it goes on by itself when memory is free",
                memory.used, memory.maxmemory, MEMORY_SHARE * 100,
            )  # fmt: skip
        self._full = full
        if self._fixed is None:
            slots = sum(int(seen.info.get("concurrency", 0)) for seen in self._hot.workers())
            self._window = min(WINDOW_MAX, max(WINDOW_MIN, WINDOW_PER_SLOT * slots))
