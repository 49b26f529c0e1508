"""Limits that the provider's headers stated: put in force for the fleet, and forgotten when headers
state them no longer."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_ratelimit.shared.discovery import Discovery, learned
from penstock_ratelimit.shared.quota_state import QuotaState


class LearnedLimits:
    """One process's part in it. Calls raise what the client raises."""

    def __init__(self, discovery: Discovery, state: QuotaState) -> None:
        self._discovery, self._state = discovery, state

    @property
    def are_new(self) -> bool:
        """Headers ask for terms that are not in force."""
        return self._discovery.proposal is not None

    async def put_in_force(self) -> None:
        """What headers ask for, if that is something else than what is in force."""
        proposal, self._discovery.proposal = self._discovery.proposal, None
        if proposal is not None:
            await self._confirm([])  # before other processes see limits that were never confirmed
            await self._state.in_force.propose(proposal)

    async def expire(self) -> None:
        """Propose to drop learned limits that headers no longer state: with each heartbeat the
        fleet notes who saw them."""
        state = self._state
        dims = learned(state.terms)
        if not dims:
            return
        waiting = state.callers.has_line and state.provider.clear(state.now())
        terms, pace_s = state.terms, state.pace_s
        ages = await self._confirm(dims)
        self._discovery.forget(terms, ages, now=state.now(), pace_s=pace_s, waiting=waiting)

    async def _confirm(self, dims: Sequence[str]) -> dict[str, float]:
        """Report the limits that headers stated here; returns for how many seconds no header stated
        each of ``dims``."""
        stated, self._discovery.stated = self._discovery.stated, set()
        try:
            return await self._state.hash.confirm(stated, dims)
        except BaseException:
            self._discovery.stated |= stated
            raise
