"""How long the oldest outcome has waited for a store, and when that must fail the liveness probe.

Ending a worker costs what it has not settled: answers that are paid for are asked for again. So it
must help. It does not while a store is down, full or locked by another client: then the worker
stays alive, however long that lasts, and says what it waits for. It may help when a store answers
and still nothing goes through, or when a call to it never comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from penstock_ledger import Trouble
from penstock_workers.item.settling.groups import StoreWriter

UNSETTLED_MAX_S = (
    900.0  # the longest that an outcome may wait: a store that works is never this slow
)
AWAY_FRESH_S = (
    300.0  # a store counts as down for so long after a failure: longer than any call's time limit
)


class Backlog:
    """Written on the item loop, read by any thread."""

    def __init__(
        self,
        what: str,
        writers: Sequence[StoreWriter],
        *,
        max_s: float = UNSETTLED_MAX_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._writers = writers
        self._max_s = max_s
        self._clock = clock
        self._since: float | None = None  # the oldest waiting outcome is no older than this
        self._group_at = 0.0

    def put(self) -> None:
        """An outcome waits from now on."""
        if self._since is None:
            self._since = self._clock()

    def take(self) -> None:
        """A group is on its way to the store; what is put from now on is younger."""
        self._group_at = self._clock()

    def done(self, *, more: bool) -> None:
        """The group is stored; ``more`` says whether others wait."""
        self._since = self._group_at if more else None

    def oldest_s(self) -> float:
        """Age of the oldest thing that waits, in seconds, or a little more; 0 when nothing
        waits."""
        since = self._since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def away(self) -> str | None:
        """The store that does not take what waits; None while everything goes through."""
        return next(
            (writer.outage.store for writer in self._writers if writer.outage is not None), None
        )

    def trouble(self) -> str | None:
        """What is waited for, in words; None while everything goes through."""
        waiting = next(
            (writer.outage for writer in self._writers if writer.outage is not None), None
        )
        if waiting is None:
            return None
        return (
            f"{self._what} for up to {self.oldest_s():.0f} s: {waiting.store} is "
            f"{waiting.trouble.value} ({waiting.words}; {waiting.failures} tries in "
            f"{self._clock() - waiting.since:.0f} s)"
        )

    def overdue(self) -> str | None:
        """Why the liveness probe must fail because of a store; None otherwise."""
        if self.oldest_s() <= self._max_s or self._is_store_away():
            return None
        return (
            f"{self.trouble() or self._what + f' for {self.oldest_s():.0f} s'}, more than "
            f"{self._max_s:.0f} s"
        )

    def _is_store_away(self) -> bool:
        now = self._clock()
        waits = [writer.outage for writer in self._writers if writer.outage is not None]
        return any(
            wait.trouble is Trouble.AWAY and now - wait.failed_at < AWAY_FRESH_S for wait in waits
        )
