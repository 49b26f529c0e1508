"""Learned limits expire: with each heartbeat the fleet notes when a header last stated each of them."""

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
        """Propose to drop learned limits that headers no longer state."""
        dims = learned(terms)
        if dims:
            ages = await self.confirm(dims)
            self._discovery.forget(terms, ages, now=now, pace_s=pace_s, waiting=waiting)

    async def confirm(self, dims: Sequence[str]) -> dict[str, float]:
        """Report the limits that headers stated here; returns for how many seconds no header stated each of ``dims``."""
        stated, self._discovery.stated = self._discovery.stated, set()
        try:
            return await self._hash.confirm(stated, dims)
        except BaseException:
            self._discovery.stated |= stated
            raise
