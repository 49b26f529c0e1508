"""Stray refusals, which delay their own item only; any other pauses all that share the quota.

Providers refuse single requests well inside their limits: one replica is busy, a load balancer
fails over. Pausing all for each of them would stop a healthy fleet. So good answers are counted,
and a refusal after enough of them is stray:

one in 20      The share of refusals below which they are stray. A limit that is really hit refuses everything above it: a fleet
               that sends a tenth too much has a share of 9 %. Below 5 % a pause costs more than it
               saves, because each one stops all, while a refused request is sent again alone; and
               it is half of what the retry budget allows (a tenth).
in flight      No more good answers count than are in flight now, or 20: older ones do not count. So with up to
               39 requests in flight the second refusal in a row is no longer stray, with 256 in
               flight the thirteenth.
a minute       Limits are per minute. A longer wait is about a day's limit or the account: never stray.
"""

from __future__ import annotations

from typing import Final

from penstock_ratelimit.provider.refusals import Signal
from penstock_ratelimit.tickets import Feedback

GOOD_PER_STRAY: Final = 20
LONGEST_STRAY_S: Final = 60.0
LIMITED_S: Final = 5.0
"""A request that was sent so soon after the quota's own limits made others wait may well have hit
the provider's: not stray."""


class Patience:
    """Counts the good answers of one process that no refusal has used up."""

    __slots__ = ("_good",)

    def __init__(self) -> None:
        self._good = 0

    def answered_well(self, in_flight: int) -> None:
        """Note a good answer; ``in_flight`` is how many more requests are under way."""
        self._good = min(self._good + 1, max(GOOD_PER_STRAY, in_flight))

    def is_stray(self) -> bool:
        """Return whether the refusal that just came is one among many good answers.

        One that is not resets the count."""
        if self._good < GOOD_PER_STRAY:
            self._good = 0
            return False
        self._good -= GOOD_PER_STRAY
        return True


def may_be_stray(feedback: Feedback) -> bool:
    """Return whether a refusal is a plain 429 with a short wait. "Growing too steeply" is always meant for all."""
    return (
        feedback.signal is Signal.THROTTLED and (feedback.retry_after_s or 0.0) <= LONGEST_STRAY_S
    )
