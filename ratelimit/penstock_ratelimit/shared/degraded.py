"""Without Redis: one process's part of the quota, paced locally until Redis is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from penstock_ratelimit.local import LocalQuota
from penstock_ratelimit.provider.profiles import Profile
from penstock_ratelimit.shared.issuing import Issuing
from penstock_ratelimit.shared.waiting import Waiter
from penstock_ratelimit.terms import Terms

log = logging.getLogger("penstock.ratelimit")

GRACE_S: Final = 3.0
"""Callers wait so long for a Redis that is away; then this process uses its local share."""
RETRY_S: Final = 0.25
"""How often a Redis that is away is tried again."""
LOCAL_SHARE: Final = 0.9
"""Part of the fair share that is used without Redis: the others may have become more since they were counted."""


class LocalShare:
    """Serves the line from rate / processes * 0.9, in order, until closed. Starts without a burst."""

    def __init__(self, terms: Terms, profile: Profile, processes: int, issuing: Issuing, wake: asyncio.Event) -> None:
        self.quota = LocalQuota(terms.scaled(LOCAL_SHARE / processes), profile)
        self.processes = processes
        self._terms, self._issuing, self._wake = terms, issuing, wake
        self._task: asyncio.Task[None] | None = None

    def open(self, paused_s: float) -> None:
        self.quota.pause(paused_s)
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="local share of a quota")

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


class Outage:
    """The time in which Redis does not answer: callers wait, and after a grace period they are served from the local share."""

    def __init__(self, quota_id: str) -> None:
        self._quota_id = quota_id
        self.lasts = False
        self.share: LocalShare | None = None
        """Set once callers are served from it."""

    async def ride_out(
        self,
        error: BaseException,
        open_share: Callable[[], LocalShare | None],
        is_back: Callable[[], Awaitable[bool]],
        *,
        grace_s: float,
    ) -> None:
        """Return when Redis is back. ``open_share`` gives None while no share is known."""
        log.warning("quota %s: Redis is down (%r); trying again until it is back", self._quota_id, error)
        self.lasts = True
        loop = asyncio.get_running_loop()
        grace_ends = loop.time() + grace_s
        try:
            while True:
                if self.share is None and loop.time() >= grace_ends:
                    self._live_on(open_share())
                # sleep first: a Redis that answers and refuses must not be asked again and again without a pause
                await asyncio.sleep(RETRY_S)
                if await is_back():
                    break
        finally:
            if self.share is not None:
                await self.share.aclose()
                self.share = None
        self.lasts = False

    def _live_on(self, share: LocalShare | None) -> None:
        self.share = share
        if share is not None:
            log.warning(
                "quota %s: still no Redis; this process paces itself with a share of one in %d until Redis is back",
                self._quota_id, share.processes,
            )  # fmt: skip
