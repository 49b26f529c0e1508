"""The most that was accepted within any one second."""

from __future__ import annotations

from collections import deque

from penstock_simulate.limits.charges import Charge

SLOTS_PER_S = 100  # finer slots cost memory on every call and show nothing more


class LastSecond:
    """What was admitted within the last second, in slots of 10 ms; a slot leaves as a whole."""

    def __init__(self) -> None:
        self._sum = [0] * len(Charge._fields)
        self._now = [0] * len(Charge._fields)  # in the newest slot
        self._past: deque[tuple[int, list[int]]] = deque()  # what older slots hold, by their number
        self._slot = 0

    def add(self, now: float, charge: Charge) -> list[int]:
        """The sum with this one, by the parts of a charge."""
        slot = int(now * SLOTS_PER_S)
        if slot != self._slot:
            self._turn(slot)
        newest, total = self._now, self._sum
        for part, units in enumerate(charge):
            newest[part] += units
            total[part] += units
        return total

    def _turn(self, slot: int) -> None:
        past = self._past
        past.append((self._slot, self._now))
        self._slot, self._now = slot, [0] * len(Charge._fields)
        while past and past[0][0] <= slot - SLOTS_PER_S:
            _, gone = past.popleft()
            self._sum = [units - left for units, left in zip(self._sum, gone, strict=True)]
