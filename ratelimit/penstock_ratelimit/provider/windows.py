"""A limit in a header counts in a second, a minute or a day.

Providers seldom say it; it follows from their other figures.

A bucket that refills all the time is full again ``reset`` from now, so ``used / reset`` is its
rate, and the window is ``limit * reset / used``. One answer can mislead by orders of magnitude:
where less than ``limit`` fits in at once, it shows a shorter window, and where a counter starts
anew each minute, any window at all. Two answers do not: between them a bucket gains ``reset`` as it
loses ``remaining``, and a counter loses both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

MINUTE_S: Final = 60.0
DAY_S: Final = 86_400.0
WINDOWS_S: Final = (1.0, 10.0, MINUTE_S, 3600.0, DAY_S)
"""The windows that providers are known to count in."""
SNAP: Final = 0.2
"""A window is believed when it is within 20 % of a known one; the known ones are at least 6 times
apart."""
QUANTA: Final = 5
"""A reset time of fewer than five of its own last digits is 20 % off by rounding alone, and says
nothing."""
ROUNDED_OFF: Final = 0.5
"""How far any ``remaining`` may be off: it comes in whole units."""
STARTS_SEEN: Final = 3
"""Times that a counter has started anew before a window below a minute is believed of it."""


class Figures(NamedTuple):
    """One answer's figures of one limit."""

    limit: float
    remaining: float
    reset_s: float
    rounding: float = 0.0
    """How far ``remaining`` may be off, beyond whole units."""
    quantum_s: float = 0.001
    """What the last digit of ``reset_s`` is worth."""

    @property
    def used(self) -> float:
        return self.limit - self.remaining


def infer_window(seen: Figures) -> float | None:
    """Return the seconds that the limit counts in, by this answer alone: limit * reset / used.

    It is None when it cannot be computed.

    With less than five of ``rounding`` or of ``quantum_s``, it says nothing.
    """
    if (
        not seen.used > 0
        or seen.used < QUANTA * seen.rounding
        or seen.reset_s < QUANTA * seen.quantum_s
    ):
        return None
    return _known(seen.limit * seen.reset_s / seen.used)


class Windows:
    """The windows of the limits in one provider's answers, by all answers so far.

    Limits have the names of their headers."""

    def __init__(self) -> None:
        self._limits: dict[str, _Limit] = {}

    def of(self, name: str, seen: Figures | None) -> float | None:
        """Take in an answer; ``None`` in its place where it does not say enough.

        None while nothing is known.

        A minute is believed at once, as nearly all count in minutes; anything else once two answers
        agree on it.
        """
        known = self._limits.get(name)
        if seen is None:
            return None if known is None else known.window_s
        if known is None:
            known = self._limits[name] = _Limit(seen)
        known.take_in(seen)
        return known.window_s


@dataclass(slots=True)
class _Limit:
    before: Figures
    window_s: float | None = None
    compared: bool = False  # the window follows from two answers
    longest_reset_s: float = 0.0
    starts: int = 0  # of a counter

    def take_in(self, seen: Figures) -> None:
        if not self.compared and infer_window(seen) == MINUTE_S:
            self.window_s = MINUTE_S
        before = self.before
        if seen.limit != before.limit:
            self.before = seen
            return
        used, reset_s = seen.used - before.used, seen.reset_s - before.reset_s
        least_used = 2 * QUANTA * max(seen.rounding, ROUNDED_OFF)
        if abs(used) < least_used or abs(reset_s) < 2 * QUANTA * seen.quantum_s:
            return
        self.before = seen
        if (used > 0) == (reset_s > 0):
            window_s = _known(seen.limit * reset_s / used)
            if window_s is not None and window_s < MINUTE_S and infer_window(seen) != window_s:
                return  # a rate above the limit per minute takes both ways to find it
        else:
            # else answers have overtaken each other
            self.starts += reset_s > 0 and seen.used < before.used / 2
            self.longest_reset_s = max(self.longest_reset_s, seen.reset_s, before.reset_s)
            window_s = self._counters()
        if window_s is not None:
            self.window_s, self.compared = window_s, True

    def _counters(self) -> float | None:
        """Return the shortest window that all resets fit in.

        A counter starts anew within its window.
        """
        least_s = (
            self.longest_reset_s
            if self.starts >= STARTS_SEEN
            else max(MINUTE_S, self.longest_reset_s)
        )
        return next(
            (known for known in WINDOWS_S if known >= least_s - self.before.quantum_s), None
        )


def _known(window_s: float) -> float | None:
    return next((known for known in WINDOWS_S if abs(window_s - known) <= SNAP * known), None)
