"""How much of one thing may still be used: a bucket that refills all the time, or a fixed window.

Time is passed in.
"""

from __future__ import annotations

import math
from typing import Protocol

MINUTE_S = 60.0
TEN_S = 10.0
DAY_S = 86_400.0
# Rates are fractions, so a bucket that should be exactly full enough may miss by a rounding error.
TOLERANCE = 1e-6


class Meter(Protocol):
    """One limit.

    What it holds goes below zero when units are used that it did not grant: output, other
    clients."""

    rate: float  # units per second
    capacity: float  # what it holds when full: a single cost above this never fits
    window_s: float  # the span that its capacity is the budget of
    drain: float  # units per second that running answers use up just now
    used: float  # units used since the start, less those given back

    def available(self, now: float) -> float: ...

    def take(self, units: float, now: float) -> None:
        """Use units up, below zero where need be; negative units are given back."""
        ...

    def wait_s(self, cost: float, now: float) -> float:
        """Return the seconds until ``cost`` fits.

        0 when it fits now, infinite when it never will."""
        ...

    def reset_s(self, now: float) -> float:
        """Return the seconds until it is full again."""
        ...

    def change(self, rate: float, now: float) -> None:
        """Change the rate from now on; what is used stays used."""
        ...


class ContinuousBucket:
    """Refills all the time.

    Holds ``depth_s`` seconds of its rate (units per second), and at least one unit."""

    def __init__(self, rate: float, depth_s: float) -> None:
        self.window_s = depth_s
        self.rate = rate
        self.capacity = max(1.0, rate * depth_s)
        self.drain = 0.0
        self.used = 0.0
        self._level = self.capacity
        self._at: float | None = None

    def available(self, now: float) -> float:
        if self._at is None:
            self._at = now
        elif now > self._at:
            passed = now - self._at
            self._at = now
            self.used += passed * self.drain
            level = self._level + passed * (self.rate - self.drain)
            self._level = level if level < self.capacity else self.capacity
        return self._level

    def take(self, units: float, now: float) -> None:
        self._level = min(self.capacity, self.available(now) - units)
        self.used += units

    def wait_s(self, cost: float, now: float) -> float:
        if cost > self.capacity + TOLERANCE:
            return math.inf
        short = cost - self.available(now)
        return short / self.rate if short > TOLERANCE else 0.0

    def reset_s(self, now: float) -> float:
        return (self.capacity - self.available(now)) / self.rate

    def change(self, rate: float, now: float) -> None:
        level = self.available(now)
        self.rate, self.capacity = rate, max(1.0, rate * self.window_s)
        self._level = min(self.capacity, level)


class FixedWindow:
    """The whole budget of ``window_s`` at the start of each window, counted from the first use.

    Nothing carries over."""

    def __init__(self, rate: float, window_s: float) -> None:
        self.window_s = window_s
        self.rate = rate
        self.capacity = max(1.0, rate * window_s)
        self.drain = 0.0
        self.used = 0.0
        self._spent = 0.0  # in this window
        self._started: float | None = None
        self._at = -math.inf

    def available(self, now: float) -> float:
        if self._started is None:
            self._started = self._at = now
        elif now > self._at:
            if now - self._started >= self.window_s:
                self._started += (now - self._started) // self.window_s * self.window_s
                self._spent = (now - self._started) * self.drain
            else:
                self._spent += (now - self._at) * self.drain
            self.used += (now - self._at) * self.drain
            self._at = now
        return self.capacity - self._spent

    def take(self, units: float, now: float) -> None:
        self.available(now)
        self._spent = max(0.0, self._spent + units)
        self.used += units

    def wait_s(self, cost: float, now: float) -> float:
        if cost > self.capacity + TOLERANCE:
            return math.inf
        return 0.0 if cost <= self.available(now) + TOLERANCE else self._to_next(now)

    def reset_s(self, now: float) -> float:
        return self._to_next(now) if self.available(now) < self.capacity else 0.0

    def change(self, rate: float, now: float) -> None:
        self.available(now)
        self.rate, self.capacity = rate, max(1.0, rate * self.window_s)

    def _to_next(self, now: float) -> float:
        return self.window_s - (now - (self._started if self._started is not None else now))
