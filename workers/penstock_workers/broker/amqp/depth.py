"""How many messages of a lane lie ready in RabbitMQ, and when those that it should have are
lost."""

from __future__ import annotations

READY_MIN = 16  # enough for a slow lane until the next look
READY_MAX = 1_000  # some tenths of a second of what one shovel moves at best
SHRINK = 8  # the target shrinks by this part at a look that finds most of it still there


class ReadyMessages:
    """Keeps just enough ready that workers find something at any time: whatever is urgent waits
    behind that.

    A lane that empties the queue between two looks gets twice as much, one that leaves most of it
    gets an eighth less.
    """

    def __init__(self) -> None:
        self.target = READY_MIN

    def room(self, ready: int) -> int:
        """How many more to bring, for so many that are ready now."""
        if ready == 0:
            self.target = min(READY_MAX, 2 * self.target)
        elif 2 * ready > self.target:
            self.target = max(READY_MIN, self.target - self.target // SHRINK)
        return max(0, self.target - ready)


class Losses:
    """Finds the relayed messages to recall: those that were old at one look, and again at the next,
    while RabbitMQ had nothing ready. They may still wait in a worker; then the recall makes a
    second copy, and one of the two is dropped.

    Times are Redis' own, in seconds.
    """

    def __init__(self, after_s: float, between_s: float) -> None:
        self._after_s = after_s
        self._between_s = between_s
        self._suspected_at: float | None = None

    def look(self, oldest: float | None, ready: int, now: float) -> float | None:
        """``oldest`` of the relayed ones. Returns the time up to which to recall, or None."""
        if ready or oldest is None or oldest > now - self._after_s:
            self._suspected_at = None
            return None
        if self._suspected_at is None:
            self._suspected_at = now
        if now - self._suspected_at < self._between_s:
            return None
        before, self._suspected_at = self._suspected_at - self._after_s, None
        return before
