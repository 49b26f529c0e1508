"""Refuses traffic that grows too steeply, as providers do with `slow_down` even inside the
limits."""

from __future__ import annotations

from collections import deque

from penstock_simulate.config import SimulatorConfig

SLOTS = 10  # a ramp's span is measured in this many slots
MINUTE_S = 60.0


class RampDetector:
    """Within ``within_s`` the accepted rate may grow by ``percent``, measured against the best
    older slot.

    The span is cut into ten slots. A slot may accept ``1 + percent / 100`` times what the best slot
    accepted that lies one to two spans back, and never less than ``free_rpm`` requests per minute
    times the same. So traffic that grows no faster passes, a jump is refused, and after a pause of
    two spans the ramp starts over.
    """

    def __init__(self, percent: float, within_s: float, free_rpm: float) -> None:
        self._growth = 1 + percent / 100
        self._slot_s = within_s / SLOTS
        self._free = free_rpm / MINUTE_S * self._slot_s
        self._past: deque[int] = deque([0] * (2 * SLOTS), maxlen=2 * SLOTS)  # the newest last
        self._slot: int | None = None
        self._accepted = 0
        self._allowed = max(1.0, self._growth * self._free)

    def wait_s(self, now: float) -> float:
        """0 when one more request may be accepted, else the seconds until the next slot."""
        self._turn(now)
        if self._accepted + 1 <= self._allowed or self._slot is None:
            return 0.0
        return (self._slot + 1) * self._slot_s - now

    def accepted(self) -> None:
        """Count one at the time of the last question."""
        self._accepted += 1

    def _turn(self, now: float) -> None:
        slot = int(now // self._slot_s)
        if self._slot is None:
            self._slot = slot
        if slot <= self._slot:
            return
        self._past.append(self._accepted)
        self._past.extend([0] * min(slot - self._slot - 1, 2 * SLOTS))
        self._slot, self._accepted = slot, 0
        # The slot that begins now is number 20 of the past: those from 10 slots back on are a whole
        # span old.
        best = max(list(self._past)[: SLOTS + 1])
        self._allowed = max(1.0, self._growth * max(best, self._free))


def ramp_settings(config: SimulatorConfig) -> tuple[float | None, float, float]:
    """What a detector is made of: while it stays the same, so does the detector."""
    return config.ramp_percent, config.ramp_s, config.ramp_free_rpm


def make_ramp(config: SimulatorConfig) -> RampDetector | None:
    percent, within_s, free_rpm = ramp_settings(config)
    return None if percent is None else RampDetector(percent, within_s, free_rpm)
