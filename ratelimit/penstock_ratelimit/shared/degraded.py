"""Living without Redis: one process's part of the quota, paced locally until Redis is back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock_ratelimit.limits import Terms
from penstock_ratelimit.local import LocalQuota
from penstock_ratelimit.provider.profiles import Profile
from penstock_ratelimit.shared.waiting import Waiter, WaitingCallers

GRACE_S: Final = 3.0
"""Callers wait so long for a Redis that is away; then this process lives on its local share."""
RETRY_S: Final = 0.25
"""How often a Redis that is away is tried again."""
LOCAL_SHARE: Final = 0.9
"""Part of the fair share that is used without Redis: the others may have become more since they were counted."""


class LocalShare:
    """Serves the line from rate / processes * 0.9, in order, until closed. Starts without a burst."""

    def __init__(
        self, terms: Terms, profile: Profile, processes: int, callers: WaitingCallers, wake: asyncio.Event
    ) -> None:
        self.quota = LocalQuota(terms.scaled(LOCAL_SHARE / processes), profile)
        self._callers, self._wake = callers, wake
        self._task: asyncio.Task[None] | None = None

    def open(self, price: Callable[[Waiter], bool], issue: Callable[[Waiter], None], paused_s: float) -> None:
        self.quota.pause(paused_s)
        self._task = asyncio.get_running_loop().create_task(self._serve(price, issue), name="local share of a quota")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self, price: Callable[[Waiter], bool], issue: Callable[[Waiter], None]) -> None:
        while True:
            waiter = self._callers.next()
            if waiter is None:
                self._wake.clear()
                await self._wake.wait()
            elif price(waiter):
                await self._take(waiter)
                issue(waiter)

    async def _take(self, waiter: Waiter) -> None:
        try:
            await self.quota.take(waiter.amounts)
        except asyncio.CancelledError:
            self._callers.put_back([waiter])
            raise
