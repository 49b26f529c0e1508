"""A stray refusal holds back its own item; any other one pauses all that share the quota.

Providers refuse single requests well inside their limits: one replica is busy, a balancer wavers. A pause of all for each
of them stops a fleet that is doing well. So good answers earn patience, and a refusal that finds enough of it is stray:

one in 20      The share of refusals below which they are stray. A limit that is really hit refuses everything above it: a fleet
               that sends a tenth too much has a share of 9 %. Below 5 % a pause costs more than it saves, because each one stops
               all, while a refused request is sent again alone; and it is half of what the retry budget allows (a tenth).
a flight       No more good answers count than are in flight now, or 20: what was earned long ago is no excuse. So with up to
               39 requests in flight the second refusal of one flight is no longer stray, with 256 in flight the thirteenth.
a minute       Limits are per minute. A longer wait is about a day's limit or the account: never stray.
"""

from __future__ import annotations

from typing import Final

from penstock_ratelimit.provider.refusals import Signal
from penstock_ratelimit.tickets import Feedback

GOOD_PER_STRAY: Final = 20
LONGEST_STRAY_S: Final = 60.0
LIMITED_S: Final = 5.0
"""A request that was sent so soon after the quota's own limits made others wait may well have hit the provider's: not stray."""


class Patience:
    """Counts the good answers of one process that no refusal has used up."""

    __slots__ = ("_good",)

    def __init__(self) -> None:
        self._good = 0

    def answered_well(self, in_flight: int) -> None:
        """``in_flight``: how many more are under way."""
        self._good = min(self._good + 1, max(GOOD_PER_STRAY, in_flight))

    def is_stray(self) -> bool:
        """Whether the refusal that just came is one among many good answers. One that is not ends all patience."""
        if self._good < GOOD_PER_STRAY:
            self._good = 0
            return False
        self._good -= GOOD_PER_STRAY
        return True


def may_be_stray(feedback: Feedback) -> bool:
    """A plain 429 with a short wait. "Growing too steeply" is always meant for all."""
    return feedback.signal is Signal.THROTTLED and (feedback.retry_after_s or 0.0) <= LONGEST_STRAY_S
