"""Which items Flower hears of, when it cannot hear of all. Chosen by a hash of the task's id, and by the pace."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from zlib import crc32

EVENTS_PER_ITEM = 3  # received, started, succeeded
WORKER_EVENTS_PER_S = 600.0  # 200 items a second in one process: above what providers answer, below what costs
FLEET_EVENTS_PER_S = 1_800.0  # shared by the workers that live: half a core of Flower's, on a machine that is slow
BURST_S = 5.0  # of pace that a quiet worker may make up for: claims come in groups
PACE_HALF_LIFE_S = 1.0
HASHES = 2**32


def hash_of(task_id: str) -> int:
    """The same in every process, now and later."""
    return crc32(task_id.encode())


class EventSample:
    """Decides once per item, when it is received. ``fixed`` is the setting `event_sample`. Used by the hub thread.

    ``share`` follows the pace, so that the events chosen spread over time; the budget holds when the pace jumps.
    """

    def __init__(self, fixed: float | None, *, clock: Callable[[], float] = monotonic) -> None:
        self._fixed = fixed
        self._clock = clock
        self._pace = 0.0  # items received a second
        self._seen = 0
        self._turned_at = clock()
        self.items_per_s = WORKER_EVENTS_PER_S / EVENTS_PER_ITEM
        self.share = 1.0 if fixed is None else fixed
        self._budget = self._budget_max

    @property
    def _budget_max(self) -> float:
        return self.items_per_s * BURST_S

    def takes(self, task_id: str) -> bool:
        """Whether the routine events of this item are sent."""
        self._seen += 1
        if self.share < 1.0 and hash_of(task_id) >= self.share * HASHES:
            return False
        if self._fixed is not None:
            return True
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True

    def turn(self) -> None:
        """Called a few times a second: look at the pace."""
        now = self._clock()
        took_s, self._turned_at = now - self._turned_at, now
        if took_s <= 0.0:
            return
        self._budget = min(self._budget_max, self._budget + self.items_per_s * took_s)
        memory = 0.5 ** (took_s / PACE_HALF_LIFE_S)
        self._pace = memory * self._pace + (1.0 - memory) * self._seen / took_s
        self._seen = 0
        if self._fixed is None:
            self.share = min(1.0, self.items_per_s / self._pace) if self._pace > 0.0 else 1.0

    def share_fleet(self, workers: int) -> None:
        """So many workers send events: together they stay below what one Flower can take."""
        self.items_per_s = min(WORKER_EVENTS_PER_S, FLEET_EVENTS_PER_S / max(1, workers)) / EVENTS_PER_ITEM
