"""How soon a worker that found nothing asks again: usually twenty times a second, and more often while callers wait.

Redis cannot wait inside a script. Urgent messages come one by one, from callers who wait for each: after one of them a worker
asks at a quicker pace for a while, so that the next is claimed within milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from penstock_producer.feed.wire import URGENT_HEADER
from penstock_workers.broker.claim_script import Claimed

IDLE_POLL_S: Final = 0.05  # an idle worker costs Redis 20 small scripts per second
QUICK_POLL_S: Final = 0.005  # 200 of them, while urgent messages come:
QUICK_FOR_S: Final = 2.0  # so long after each
_URGENT: Final = f'"{URGENT_HEADER}":'.encode()  # inside a body its quotes would be escaped


class Pace:
    """Of one channel. ``wake`` makes its event loop turn after QUICK_POLL_S, and says whether there is one."""

    def __init__(self, wake: Callable[[], bool]) -> None:
        self._wake = wake
        self._quick_until = 0.0

    def note(self, first: Claimed) -> None:
        """The first message of a claim: urgent ones come before all others."""
        if _URGENT in first.raw:
            self._quick_until = monotonic() + QUICK_FOR_S

    def pause_s(self, usual_s: float) -> float:
        """After a claim that brought nothing."""
        if monotonic() >= self._quick_until or not self._wake():
            return usual_s
        return min(usual_s, QUICK_POLL_S / 2)
