"""Strict request and token limits of a provider. Time is passed in, in seconds of any steady clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

MINUTE_S = 60.0
# Rates are fractions, so a bucket that should be exactly full enough may miss by a rounding error.
TOLERANCE = 1e-6


class Meter(Protocol):
    """How much of one thing (requests, tokens) may still be used."""

    per_minute: float
    capacity: float  # what it holds when full: a single cost above this never fits

    def available(self, now: float) -> float: ...

    def take(self, cost: float, now: float) -> None:
        """Use up ``cost``, or what is left of it."""
        ...

    def wait_s(self, cost: float, now: float) -> float:
        """Seconds until ``cost`` fits: 0 when it fits now, infinite when it never will."""
        ...

    def reset_s(self, now: float) -> float:
        """Seconds until it is full again."""
        ...


class ContinuousBucket:
    """Refills all the time; holds ``depth_s`` seconds of its rate, and at least one unit."""

    def __init__(self, per_minute: float, depth_s: float) -> None:
        self.per_minute = per_minute
        self._rate = per_minute / MINUTE_S
        self.capacity = max(1.0, self._rate * depth_s)
        self._level = self.capacity
        self._at: float | None = None

    def available(self, now: float) -> float:
        if self._at is not None:
            self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now
        return self._level

    def take(self, cost: float, now: float) -> None:
        self._level = max(0.0, self.available(now) - cost)

    def wait_s(self, cost: float, now: float) -> float:
        short = cost - self.available(now)
        if cost > self.capacity + TOLERANCE:
            return math.inf
        return short / self._rate if short > TOLERANCE else 0.0

    def reset_s(self, now: float) -> float:
        return (self.capacity - self.available(now)) / self._rate


class MinuteWindow:
    """A full minute's budget at the start of each minute, counted from the first use; nothing carries over."""

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self.capacity = max(1.0, per_minute)
        self._used = 0.0
        self._started: float | None = None

    def available(self, now: float) -> float:
        if self._started is None:
            self._started = now
        elif now - self._started >= MINUTE_S:
            self._started += (now - self._started) // MINUTE_S * MINUTE_S
            self._used = 0.0
        return self.capacity - self._used

    def take(self, cost: float, now: float) -> None:
        self._used += min(cost, self.available(now))

    def wait_s(self, cost: float, now: float) -> float:
        if cost > self.capacity + TOLERANCE:
            return math.inf
        return 0.0 if cost <= self.available(now) + TOLERANCE else self._to_next(now)

    def reset_s(self, now: float) -> float:
        return self._to_next(now) if self.available(now) < self.capacity else 0.0

    def _to_next(self, now: float) -> float:
        return MINUTE_S - (now - (self._started if self._started is not None else now))


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A call that does not fit: what it ran into, and the seconds until it would fit (infinite: never)."""

    dimension: str
    wait_s: float
    limit: float
    cost: float


class Limits:
    """Requests and tokens, judged together: a call is charged for both or refused."""

    def __init__(self, requests: Meter | None, tokens: Meter | None, *, charge_failed: bool) -> None:
        self._requests = requests
        self._tokens = tokens
        self._charge_failed = charge_failed

    def admit(self, tokens: int, now: float) -> OverLimit | None:
        """None when the call fits and is charged. A refused one costs a request, as far as one is left."""
        over = _over("requests", self._requests, 1, now) or _over("tokens", self._tokens, tokens, now)
        if self._requests is not None and (over is None or self._charge_failed):
            self._requests.take(1, now)
        if self._tokens is not None and over is None:
            self._tokens.take(tokens, now)
        return over

    def headers(self, now: float) -> dict[str, str]:
        """The `x-ratelimit-*` headers of OpenAI; empty without limits."""
        found: dict[str, str] = {}
        for name, meter in (("requests", self._requests), ("tokens", self._tokens)):
            if meter is not None:
                found["x-ratelimit-limit-" + name] = f"{meter.per_minute:.0f}"
                found["x-ratelimit-remaining-" + name] = str(int(meter.available(now) + TOLERANCE))
                found["x-ratelimit-reset-" + name] = go_duration(meter.reset_s(now))
        return found


def make_limits(
    rpm: float | None, tpm: float | None, *, window: str, depth_s: float, charge_failed: bool = True
) -> Limits:
    def meter(per_minute: float | None) -> Meter | None:
        if per_minute is None:
            return None
        return MinuteWindow(per_minute) if window == "minute" else ContinuousBucket(per_minute, depth_s)

    return Limits(meter(rpm), meter(tpm), charge_failed=charge_failed)


def _over(dimension: str, meter: Meter | None, cost: int, now: float) -> OverLimit | None:
    if meter is None:
        return None
    wait_s = meter.wait_s(cost, now)
    return OverLimit(dimension, wait_s, meter.per_minute, cost) if wait_s > 0 else None


def go_duration(seconds: float) -> str:
    """Seconds as Go prints a duration, in whole milliseconds rounded up: `0s`, `120ms`, `1.5s`, `6m0s`, `1h0m2s`."""
    millis = math.ceil(seconds * 1000 - TOLERANCE)
    if 0 < millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(max(0, millis), 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
