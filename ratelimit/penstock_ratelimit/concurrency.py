"""How many requests may be in flight at a server that publishes no limits: additive increase, multiplicative decrease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_ratelimit.refusals import Signal

DECREASE: Final = 0.7
EPISODE_S: Final = 1.0
"""Refusals within so long are one episode: they were all sent before the first was heard."""


class AdaptiveConcurrency:
    """``limit`` doubles per round of clean answers until the first refusal, then grows by one per round."""

    def __init__(self, *, start: int = 8, minimum: int = 1, maximum: int, clock: Callable[[], float]) -> None:
        self.limit = min(start, maximum)
        self._minimum, self._maximum, self._clock = minimum, maximum, clock
        self._clean = 0
        self._in_flight = 0
        self._refused_at: float | None = None

    def started(self) -> None:
        self._in_flight += 1

    def finished(self, signal: Signal, latency_s: float, output_tokens: float) -> None:
        busy = self._in_flight > self.limit / 2
        self._in_flight -= 1
        if signal in (Signal.OVERLOADED, Signal.THROTTLED):
            self._decrease()
        elif busy and signal in (Signal.OK, Signal.REFUSED):
            self._clean += 1
            if self._clean >= self.limit:
                self._clean = 0
                step = self.limit if self._refused_at is None else 1
                self.limit = min(self._maximum, self.limit + step)

    def gauge(self, running: float, waiting: float) -> None:
        """vLLM's own figures: a queue at the server is as good as a refusal."""
        if waiting > 0.1 * running:
            self._decrease()

    def _decrease(self) -> None:
        now = self._clock()
        if self._refused_at is None or now - self._refused_at >= EPISODE_S:
            self._refused_at, self._clean = now, 0
            self.limit = max(self._minimum, int(self.limit * DECREASE))
