"""One quota for the whole fleet: every process takes its tickets from the same hash in Redis."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Callable, Iterable

from penstock_ratelimit.errors import LimiterClosed, UnknownQuota
from penstock_ratelimit.limiter import QuotasLimiter
from penstock_ratelimit.quota import Quota, by_id
from penstock_ratelimit.shared.dispatcher import HEARTBEAT_S, Dispatcher, cancel_and_wait
from penstock_ratelimit.store.quota_hash import QuotaHash, ScriptClient
from penstock_ratelimit.tickets import QuotaStats


class SharedLimiter(QuotasLimiter):
    """A ``Limiter`` over Redis.

    Use it on one event loop; nothing is started before the first use of a quota.

    ``client`` is a ``redis.asyncio.Redis``; it stays the caller's to close. Of processes that
    declare different limits for one quota, the last one started wins and the others follow. A quota
    without limits still shares pauses, the breaker and holds. ``clock_us`` replaces Redis's own
    clock in tests.
    """

    def __init__(
        self,
        client: ScriptClient,
        quotas: Iterable[Quota],
        *,
        prefix: str = "penstock:",
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._client, self._prefix, self._clock_us = client, prefix, clock_us
        self._process = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._quotas = by_id(quotas)
        self._dispatchers: dict[str, Dispatcher] = {}
        self._heart: asyncio.Task[None] | None = None
        self._closed = False

    def stats(self) -> dict[str, QuotaStats]:
        """Return the figures of the quotas that were used."""
        return {quota_id: dispatcher.stats() for quota_id, dispatcher in self._dispatchers.items()}

    def looks(self, quota_id: str) -> bool:
        """See ``Limiter``. A quota that was not used yet has nothing at its server."""
        dispatcher, quota = self._dispatchers.get(quota_id), self._quotas.get(quota_id)
        if dispatcher is None and quota is not None:
            return quota.interactive is None
        return super().looks(quota_id)

    async def aclose(self) -> None:
        """See ``Limiter``. The client stays open."""
        self._closed = True
        if self._heart is not None:
            await cancel_and_wait(self._heart)
        await asyncio.gather(*(dispatcher.aclose() for dispatcher in self._dispatchers.values()))

    def _quota_limiter(self, quota_id: str) -> Dispatcher:
        dispatcher = self._dispatchers.get(quota_id)
        return dispatcher if dispatcher is not None else self._open(quota_id)

    def _open(self, quota_id: str) -> Dispatcher:
        if self._closed:
            raise LimiterClosed(quota_id)
        quota = self._quotas.get(quota_id)
        if quota is None:
            raise UnknownQuota(quota_id, self._quotas)
        quota_hash = QuotaHash(self._client, quota_id, prefix=self._prefix, clock_us=self._clock_us)
        dispatcher = Dispatcher(quota, quota_hash, self._process)
        self._dispatchers[quota_id] = dispatcher
        if self._heart is None:
            self._heart = asyncio.get_running_loop().create_task(
                self._beat(), name="quota heartbeats"
            )
        return dispatcher

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            beats = (dispatcher.beat() for dispatcher in self._dispatchers.values())
            # a fault that matters shows in the dispatcher
            await asyncio.gather(*beats, return_exceptions=True)
