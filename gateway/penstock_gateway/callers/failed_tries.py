"""Keys that were wrong, by address: after some of them an address waits before the database is
asked again.

No key can be guessed, having 256 random bits; this bounds what guessing costs the database.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FailedTries"]

TRIES_MAX: Final = 30  # of one address within the span
SPAN_S: Final = 60.0
ADDRESSES_MAX: Final = (
    10_000  # that are remembered; then the one that began longest ago is forgotten
)


class FailedTries:
    def __init__(self) -> None:
        self._seen: dict[
            str, tuple[float, int]
        ] = {}  # address -> when its span began, tries since then

    def wait_s(self, address: str, now: float) -> float:
        """How long it has to wait; 0 for not at all."""
        began, tries = self._seen.get(address, (now, 0))
        left_s = began + SPAN_S - now
        return left_s if tries >= TRIES_MAX and left_s > 0 else 0.0

    def note(self, address: str, now: float) -> None:
        began, tries = self._seen.pop(address, (now, 0))
        if now - began >= SPAN_S:
            began, tries = now, 0
        if len(self._seen) >= ADDRESSES_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[address] = (began, tries + 1)
