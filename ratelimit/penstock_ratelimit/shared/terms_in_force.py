"""The terms that the fleet agreed on: declared by the process that started last, corrected by the
provider's headers."""

from __future__ import annotations

import logging

from penstock_ratelimit.quota import Quota
from penstock_ratelimit.shared.discovery import declares_the_same, with_discovered
from penstock_ratelimit.store.messages import InForce
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.terms import Terms
from penstock_ratelimit.tickets import Tally

log = logging.getLogger("penstock.ratelimit")


class TermsInForce:
    """One process's view of the terms in force, and its part in changing them.

    Calls raise what the client raises."""

    def __init__(self, quota: Quota, quota_hash: QuotaHash, tally: Tally) -> None:
        self._quota, self._hash, self._tally = quota, quota_hash, tally
        self._declared = (
            False  # this process's terms were put in force once; from then on it follows others
        )
        self.terms = quota.terms()
        self.version = ""
        """Of the terms in force, as Redis names it; empty while they are not known to be there."""

    async def install(self, *, empty: bool = False) -> None:
        """Put this process's terms in force where there are none, or, the first time, where others
        were declared."""
        in_force = await self._put(self.terms, empty=empty)
        if not self._declared and not declares_the_same(self.terms, in_force.terms):
            terms = (
                with_discovered(self.terms, in_force.terms) if self._quota.discover else self.terms
            )
            in_force = await self._put(terms, replaces=in_force.version)
        self._declared = True
        self.adopt(in_force)

    async def propose(self, terms: Terms) -> None:
        """Put the limits of the provider's headers in force, unless another process was first."""
        log.info(
            "quota %s: the limits now follow the provider's headers: %s",
            self._quota.id,
            terms.to_json(),
        )
        self.adopt(await self._put(terms, replaces=self.version))

    def adopt(self, in_force: InForce) -> None:
        self.version = in_force.version
        if in_force.terms != self.terms:
            log.info(
                "quota %s: adopting the limits now in force: %s",
                self._quota.id,
                in_force.terms.to_json(),
            )
            self.terms = in_force.terms

    async def _put(self, terms: Terms, *, replaces: str = "", empty: bool = False) -> InForce:
        self._tally.calls += 1
        return await self._hash.install(
            terms, replaces=replaces, empty=empty, account=self._quota.account
        )
