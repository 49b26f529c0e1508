"""Corrections of finished requests on their way to the quota: buffered, because they ride on the next reservation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

IDLE_S: Final = 0.25
"""When nobody waits, settlements travel alone after so long."""
BUSY_S: Final = 1.0
"""The same while callers wait: a reservation is due soon, and calls of their own would double them at low rates."""


class Settlements:
    """Units to charge (or to refund when negative), per dimension."""

    def __init__(self) -> None:
        self._deltas: dict[str, float] = {}
        self.due_at: float | None = None
        """Loop time at which they travel alone; None when there are none."""

    def add(self, dim: str, delta: float, *, now: float, busy: bool) -> bool:
        """Keep one for the next call; True when it is the first."""
        self._deltas[dim] = self._deltas.get(dim, 0.0) + delta
        if self.due_at is not None:
            return False
        self.due_at = now + (BUSY_S if busy else IDLE_S)
        return True

    def take(self) -> dict[str, float]:
        deltas, self._deltas, self.due_at = self._deltas, {}, None
        return deltas

    def put_back(self, deltas: Mapping[str, float], *, now: float) -> None:
        for dim, delta in deltas.items():
            self.add(dim, delta, now=now, busy=True)

    def drop_refunds(self) -> None:
        """Refunds are perishable: an empty bucket owes nobody anything."""
        self._deltas = {dim: delta for dim, delta in self._deltas.items() if delta > 0}
