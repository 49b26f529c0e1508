"""What the items of a worker that hosts a model cost: its price per hour, shared by those that
compute at the time.

While k items compute, each pays a k-th of the price. So the items of a worker together cost what it
cost while it computed, however they overlap, in O(1) per item. Time in which nothing computes
belongs to no item; the metrics show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock_workers.item.admission import Admission, Turn
from penstock_workers.item.answer import Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.lane import Prepared
from penstock_workers.item.spent import Spent
from penstock_workers.settings import CostSettings

MICROUSD_PER_USD = 1_000_000
SECONDS_PER_HOUR = 3_600


class SharedTime:
    """Used on the item loop; ``busy_s`` is read by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._inside = 0
        self._share_s = 0.0  # what one that computes since the beginning would have been given
        self.busy_s = 0.0

    def enter(self) -> float:
        """For ``leave``."""
        self._pass()
        self._inside += 1
        return self._share_s

    def leave(self, entered: float) -> float:
        """Seconds of the worker that this one used."""
        self._pass()
        self._inside -= 1
        return self._share_s - entered

    def _pass(self) -> None:
        now = self._clock()
        if self._inside:
            self.busy_s += now - self._at
            self._share_s += (now - self._at) / self._inside
        self._at = now


class PricedAdmission:
    """Implements ``admission.Admission`` around that of the lane: from its start to its conclusion
    a turn is charged."""

    def __init__(self, inner: Admission, prices: CostSettings, shared: SharedTime) -> None:
        self._inner = inner
        self._microusd_per_s = prices.usd_per_hour * MICROUSD_PER_USD / SECONDS_PER_HOUR
        self._shared = shared

    def at_once(self, attempt: Attempt) -> Turn | None:
        turn = self._inner.at_once(attempt)
        return (
            None if turn is None else PricedTurn(turn, attempt, self._shared, self._microusd_per_s)
        )

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        return PricedTurn(
            await self._inner.turn(attempt, prepared), attempt, self._shared, self._microusd_per_s
        )

    def is_down(self, provider: str) -> bool:
        return self._inner.is_down(provider)

    def may_retry(self, attempt: Attempt) -> bool:
        return self._inner.may_retry(attempt)

    async def close(self) -> None:
        await self._inner.close()


class PricedTurn:
    """One item's.

    It computes from ``start`` on, until the first of ``conclude`` and ``release``."""

    __slots__ = ("_attempt", "_entered", "_inner", "_microusd_per_s", "_shared")

    def __init__(
        self, inner: Turn, attempt: Attempt, shared: SharedTime, microusd_per_s: float
    ) -> None:
        self._inner = inner
        self._attempt = attempt
        self._shared = shared
        self._microusd_per_s = microusd_per_s
        self._entered: float | None = None

    def start(self) -> None:
        self._inner.start()
        self._entered = self._shared.enter()

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """A refused or failed answer has cost its time, too."""
        self._charge()
        self._inner.conclude(tried, happened)

    def release(self) -> None:
        self._charge()
        self._inner.release()

    def _charge(self) -> None:
        if self._entered is None:
            return
        cost = round(self._shared.leave(self._entered) * self._microusd_per_s)
        self._entered = None
        self._attempt.spent = self._attempt.spent.plus(
            Spent(cost_microusd=cost, unpriced=0 if self._microusd_per_s else 1)
        )
