"""The time in which Redis does not answer.

Callers wait, then one process's part of the quota is paced locally."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from redis.exceptions import RedisError

from penstock_ratelimit.local import LocalQuota
from penstock_ratelimit.provider.profiles import Profile
from penstock_ratelimit.rates import Terms
from penstock_ratelimit.shared.quota_state import QuotaState
from penstock_ratelimit.shared.waiting import Issuing, Waiter

log = logging.getLogger("penstock.ratelimit")

GRACE_S: Final = 3.0
"""Callers wait so long for a Redis that is away; then this process uses its local share."""
RETRY_S: Final = 0.25
"""How often a Redis that is away is tried again."""
LOCAL_SHARE: Final = 0.9
"""Part of the fair share that is used without Redis: the others may have become more since they
were counted."""

AWAY = (RedisError, OSError)
"""What the client raises when Redis is away or refuses. (TimeoutError is an OSError.)"""


class LocalShare:
    """Serves the line from rate / processes * 0.9, in order, until closed.

    Starts without a burst."""

    def __init__(
        self, terms: Terms, profile: Profile, processes: int, issuing: Issuing, wake: asyncio.Event
    ) -> None:
        self.quota = LocalQuota(terms.scaled(LOCAL_SHARE / processes), profile)
        self.processes = processes
        self._terms, self._issuing, self._wake = terms, issuing, wake
        self._task: asyncio.Task[None] | None = None

    def open(self, paused_s: float) -> None:
        self.quota.pause(paused_s)
        self._task = asyncio.get_running_loop().create_task(
            self._serve(), name="local share of a quota"
        )

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self) -> None:
        while True:
            waiter = self._issuing.callers.next()
            if waiter is None:
                self._wake.clear()
                await self._wake.wait()
            elif self._issuing.price(waiter, self._terms):
                await self._take(waiter)
                self._issuing.issue(waiter)

    async def _take(self, waiter: Waiter) -> None:
        try:
            await self.quota.take(waiter.amounts)
        except asyncio.CancelledError:
            self._issuing.callers.put_back([waiter])
            raise


class RedisOutage:
    """Decides how callers of one quota are served while Redis is away."""

    def __init__(self, state: QuotaState, profile: Profile) -> None:
        self._state, self._profile = state, profile
        self.lasts = False
        self.share: LocalShare | None = None
        """Set once callers are served from it."""

    async def ride_out(self, error: BaseException) -> None:
        """Return when Redis is back, with the terms in force there again."""
        state = self._state
        log.warning(
            "quota %s: Redis is down (%r); trying again until it is back", state.quota.id, error
        )
        state.reports.drop_refunds()
        self.lasts = True
        share_at = state.now() + (GRACE_S if state.terms.dims else 0.0)
        try:
            while True:
                if self.share is None and state.now() >= share_at:
                    self._open_share()
                # sleep first: a Redis that answers and refuses must not be asked again and again
                # without a pause
                await asyncio.sleep(RETRY_S)
                if await self._is_over():
                    break
        finally:
            if self.share is not None:
                await self.share.aclose()
                self.share = None
        self.lasts = False
        state.provider.forgotten(state.now())

    async def _is_over(self) -> bool:
        try:
            await self._state.in_force.install(empty=True)
        except AWAY:
            return False
        return True

    def _open_share(self) -> None:
        """Open this process's part of the quota, once it is known of how many.

        Without limits there is nothing to part."""
        state = self._state
        if state.processes <= 0 and state.terms.dims:
            return
        self.share = LocalShare(
            state.terms, self._profile, max(state.processes, 1), state.issuing, state.wake
        )
        self.share.open(max(0.0, state.provider.paused_until - state.now()))
        log.warning(
            "quota %s: still no Redis; this process paces itself with a share of one in %d until "
            "Redis is back",
            state.quota.id,
            self.share.processes,
        )
