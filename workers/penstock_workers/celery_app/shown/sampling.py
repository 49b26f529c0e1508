"""Which items send task events, where the fleet is too fast for Flower to receive all: chosen by a
hash of the task id."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from zlib import crc32

EVENTS_PER_ITEM = 3  # received, started, succeeded
WORKER_EVENTS_PER_S = (
    600.0  # 200 items a second in one process: above what providers answer, below what costs
)
FLEET_EVENTS_PER_S = 1_800.0  # shared by the live workers: half a core of Flower on a slow machine
BURST_S = 5.0  # of events that may be sent at once: claims come in groups
PACE_HALF_LIFE_S = 1.0
HASHES = 2**32


def hash_of(task_id: str) -> int:
    """The same in every process, now and later."""
    return crc32(task_id.encode())


class EventSample:
    """Decides once per item, when it is received.

    ``fixed`` is the setting `event_sample`. Used by the hub thread.

    ``share`` follows the pace, so that the events chosen spread over time; the budget holds when
    the pace jumps.
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
        """Update the pace; called a few times a second."""
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
        """Share the fleet's event budget among this many workers, so that one Flower can take all
        events."""
        self.items_per_s = (
            min(WORKER_EVENTS_PER_S, FLEET_EVENTS_PER_S / max(1, workers)) / EVENTS_PER_ITEM
        )
