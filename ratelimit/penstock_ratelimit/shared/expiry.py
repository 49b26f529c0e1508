"""What headers taught expires: the fleet keeps the time at which each limit was last told, at the pace of heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_ratelimit.shared.discovery import Discovery, learned
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.terms import Terms


class Expiry:
    """One process's part in it. Calls raise what the client raises."""

    def __init__(self, discovery: Discovery, quota_hash: QuotaHash) -> None:
        self._discovery, self._hash = discovery, quota_hash

    async def look(self, terms: Terms, *, now: float, pace_s: float, waiting: bool) -> None:
        """Where limits were learned: see whether they are still told, and have it proposed to go without them."""
        dims = learned(terms)
        if dims:
            ages = await self.confirm(dims)
            self._discovery.forget(terms, ages, now=now, pace_s=pace_s, waiting=waiting)

    async def confirm(self, dims: Sequence[str]) -> dict[str, float]:
        """Report the limits that headers told here; return for how many seconds no process was told of ``dims``."""
        told, self._discovery.told = self._discovery.told, set()
        try:
            return await self._hash.confirm(told, dims)
        except BaseException:
            self._discovery.told |= told
            raise
