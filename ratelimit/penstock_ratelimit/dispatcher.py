"""The one task per quota and process that talks to Redis: fetches start times in batches, wakes callers on time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Final

from redis.exceptions import RedisError

from penstock_ratelimit.errors import LimiterClosed, RateLimitError
from penstock_ratelimit.limits import Quota
from penstock_ratelimit.local import LocalLane
from penstock_ratelimit.quota_hash import InForce, QuotaHash, Reserve, Reserved, Verdict
from penstock_ratelimit.tickets import QuotaStats, Tally, Ticket, refund
from penstock_ratelimit.window import Window

log = logging.getLogger("penstock.ratelimit")

MAX_AHEAD_S: Final = 30.0
"""No start time further ahead than this is handed out: it would bind an item, and hide a change of limits, too long."""
SETTLE_IDLE_S: Final = 0.25
"""Settlements ride on the next reservation; when nobody waits they travel alone after so long."""
SETTLE_BUSY_S: Final = 1.0
"""The same while callers wait: a reservation is due soon, and a call of its own would double the calls at low rates."""
OUTAGE_GRACE_S: Final = 3.0
"""Callers wait so long for a Redis that is away; then this process lives on its local share."""
OUTAGE_RETRY_S: Final = 0.25
"""How often a Redis that is away is tried again."""
LOCAL_SHARE: Final = 0.9
"""Part of the fair share that is used without Redis: the others may have become more since we last counted."""
HEARTBEAT_S: Final = 5.0
HEARTBEAT_TTL_S: Final = 3 * HEARTBEAT_S
"""Three heartbeats missed: gone."""

_AWAY = (RedisError, OSError)  # TimeoutError is an OSError


class Waiter:
    """One caller in ``acquire``. Owned by the dispatcher, except ``future``, which the caller may cancel."""

    __slots__ = ("amounts", "certain", "costs", "dims", "future", "reserved")

    def __init__(
        self, costs: Mapping[str, float], certain: Mapping[str, float] | None, future: asyncio.Future[None]
    ) -> None:
        self.costs = costs
        self.certain = certain
        self.future = future
        self.dims: tuple[str, ...] = ()
        self.amounts: tuple[float, ...] = ()
        self.reserved = False
        """True while Redis counts it and its caller was not told yet."""


class Dispatcher:
    """Callers queue here in order; ``run`` is the only one who calls Redis.

    ``_queue`` holds callers without a start time (bounded by the callers: one entry per awaiting task),
    ``_issued`` those with one in the future (bounded by the window).
    """

    def __init__(self, quota: Quota, quota_hash: QuotaHash, process: str) -> None:
        self._quota, self._hash, self._process = quota, quota_hash, process
        self._terms = quota.terms()
        self._window = Window(self._terms, quota.horizon_s)
        self._version = ""
        self._declared = False
        self._processes = 0  # written by beat; 0 = never counted
        self._queue: deque[Waiter] = deque()
        self._issued: list[tuple[float, int, Waiter]] = []
        self._order = count()
        self._settlements: dict[str, float] = {}
        self._settle_at: float | None = None
        self._pause_until = 0.0  # loop time
        self._pause_wanted = False  # set by not_before, cleared once Redis knows
        self._pause_id = 0
        self._retry_at = 0.0
        self._share: LocalLane | None = None  # set while Redis is away for long
        self._timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._failure: Exception | None = None  # set once: the dispatcher works no more
        self._loop = asyncio.get_running_loop()
        self.tally = Tally()
        self._task = self._loop.create_task(self._run(), name=f"quota {quota.id}")

    # --- for callers -------------------------------------------------------------------------------------------------

    async def acquire(self, costs: Mapping[str, float], certain: Mapping[str, float] | None) -> Ticket:
        if self._failure is not None:
            raise self._failure
        if certain:
            self._terms.check_fits(certain)
        self._terms.amounts(costs)  # a bad cost is the caller's error, here and now
        waiter = Waiter(costs, certain, self._loop.create_future())
        self._queue.append(waiter)
        self._nudge()
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise
        waiter.reserved = False
        return Ticket(self, waiter.dims, waiter.amounts)

    def adjust(self, dim: str, delta: float) -> None:
        self.tally.used[dim] = self.tally.used.get(dim, 0.0) + delta
        if self._share is not None:
            self._share.adjust(dim, delta)
            return
        self._owe({dim: delta})

    def not_before(self, seconds: float) -> None:
        self.tally.throttled += 1
        self._pause_until = max(self._pause_until, self._loop.time() + seconds)
        self._pause_wanted = True
        if self._share is not None:
            self._share.not_before(seconds)
        self._recall()
        self._wake.set()

    def stats(self) -> QuotaStats:
        waiting = sum(not waiter.future.done() for waiter in self._queue) + len(self._issued)
        allowed = dict(zip(self._terms.dims, self._terms.rates, strict=True))
        tally = self.tally
        return QuotaStats(
            allowed=allowed,
            used=dict(tally.used),
            waiting=waiting,
            granted=tally.granted,
            refunded=tally.refunded,
            throttled=tally.throttled,
            calls=tally.calls,
            degraded=self._share is not None,
        )

    async def beat(self) -> None:
        """Count the processes that share this quota. An outage is for ``run`` to notice; the last count stays."""
        try:
            self._processes = await self._hash.heartbeat(self._process, HEARTBEAT_TTL_S)
        except _AWAY as error:
            log.debug("quota %s: no heartbeat (%s); the last count of %d stays", self._quota.id, error, self._processes)

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._stop(LimiterClosed(self._quota.id))
        try:
            if self._settlements and self._version:
                await self._call([])
            await self._hash.heartbeat(self._process, 0)
        except _AWAY as error:
            log.info("quota %s: closed without Redis (%s); its unused tickets run out", self._quota.id, error)

    # --- the task ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                try:
                    if not self._version:
                        await self._install()
                        await self.beat()
                    await self._turn()
                except _AWAY as error:
                    await self._ride_out(error)
        except Exception as error:
            log.exception("quota %s: the dispatcher failed; callers get the error", self._quota.id)
            self._stop(error)

    async def _turn(self) -> None:
        batch = self._take()
        if batch or self._pause_wanted or self._settlement_due():
            self._apply(await self._call(batch), batch)
        else:
            await self._rest()

    def _take(self) -> list[Waiter]:
        """Callers to reserve for now: none while half a window is still unstarted, or while Redis said "later"."""
        now = self._loop.time()
        size = self._window.resize(self._processes)
        room = size - len(self._issued)
        if not self._queue or len(self._issued) > self._window.low_water or now < self._retry_at:
            return []
        batch: list[Waiter] = []
        while self._queue and len(batch) < room:
            waiter = self._queue.popleft()
            if not waiter.future.done() and self._prepare(waiter):
                batch.append(waiter)
        self._window.learn(waiter.amounts for waiter in batch)
        return batch

    def _prepare(self, waiter: Waiter) -> bool:
        """Price a caller by the terms in force; they may have changed since it came."""
        try:
            if waiter.certain:
                self._terms.check_fits(waiter.certain)
            waiter.dims, waiter.amounts = self._terms.dims, self._terms.amounts(waiter.costs)
        except RateLimitError as error:
            waiter.future.set_exception(error)
            return False
        return True

    async def _call(self, batch: list[Waiter]) -> Reserved:
        """Reserve for ``batch``; when that fails the callers are back in the queue and only charges are kept."""
        settlements, self._settlements, self._settle_at = self._settlements, {}, None
        pause_s = max(0.0, self._pause_until - self._loop.time()) if self._pause_wanted else 0.0
        ask = Reserve(
            self._version,
            self._terms,
            [waiter.amounts for waiter in batch],
            settlements,
            MAX_AHEAD_S,
            share_s=2 * self._quota.horizon_s / max(self._processes, 1),
            pause_s=pause_s,
        )
        self.tally.calls += 1
        try:
            reply = await self._hash.reserve(ask)
        except BaseException:
            self._requeue(batch)
            # whether the step was done is unknown: a refund given twice would be work too much, a charge is not
            self._owe({dim: delta for dim, delta in settlements.items() if delta > 0})
            raise
        if reply.verdict is not Verdict.OK:
            self._owe(settlements)
        elif pause_s:
            self._pause_wanted = self._pause_until > self._loop.time() + pause_s
            self._pause_id = max(self._pause_id, reply.pause_id)
        return reply

    def _apply(self, reply: Reserved, batch: list[Waiter]) -> None:
        if reply.verdict is Verdict.MISSING:
            log.warning("quota %s: Redis forgot it; installing it again with an empty bucket", self._quota.id)
            self._requeue(batch)
            self._forgive()
            self._version = ""
            return
        if reply.in_force is not None:
            self._requeue(batch)
            self._adopt(reply.in_force)
            return
        now = self._loop.time()
        for waiter, wait_s in zip(batch, reply.waits_s, strict=False):
            self._issue(waiter, now + wait_s, now)
        self._requeue(batch[len(reply.waits_s) :])
        self._retry_at = now + reply.retry_s
        if reply.pause_id > self._pause_id and reply.pause_left_s > 0:
            self._pause_id, self._pause_until = reply.pause_id, now + reply.pause_left_s
            self._recall()
        self._arm()

    def _issue(self, waiter: Waiter, start_at: float, now: float) -> None:
        waiter.reserved = True
        for dim, amount in zip(waiter.dims, waiter.amounts, strict=True):
            self.tally.used[dim] = self.tally.used.get(dim, 0.0) + amount
        if waiter.future.done():
            self._abandon(waiter)
        elif start_at <= now:
            self._grant(waiter)
        else:
            heappush(self._issued, (start_at, next(self._order), waiter))

    def _grant(self, waiter: Waiter) -> None:
        self.tally.granted += 1
        waiter.future.set_result(None)

    def _arm(self) -> None:
        """One timer for the earliest start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._issued:
            self._timer = self._loop.call_at(self._issued[0][0], self._start_due)

    def _start_due(self) -> None:
        now = self._loop.time()
        while self._issued and self._issued[0][0] <= now:
            waiter = heappop(self._issued)[2]
            if not waiter.future.done():
                self._grant(waiter)
        self._arm()
        self._nudge()

    def _abandon(self, waiter: Waiter) -> None:
        """Its caller is gone: what was reserved for it goes back."""
        if waiter.reserved:
            waiter.reserved = False
            refund(self, waiter.dims, waiter.amounts)

    def _recall(self) -> None:
        """Take back every ticket that has not started, and put its caller at the head of the queue."""
        callers = []
        while self._issued:
            waiter = heappop(self._issued)[2]
            if not waiter.future.done():
                self._abandon(waiter)
                callers.append(waiter)
        self._requeue(callers)
        self._arm()

    def _requeue(self, batch: list[Waiter]) -> None:
        self._queue.extendleft(reversed(batch))

    # --- resting, settling, installing -------------------------------------------------------------------------------

    def _nudge(self) -> None:
        may_ask = len(self._issued) <= self._window.low_water and self._loop.time() >= self._retry_at
        if self._share is not None or (self._queue and may_ask):
            self._wake.set()

    async def _rest(self) -> None:
        """Sleep until somebody nudges, a settlement is due, or Redis's "later" has come. Nothing awaits before this."""
        self._wake.clear()
        now = self._loop.time()
        due = [at for at in (self._settle_at, self._retry_at if self._queue else None) if at is not None and at > now]
        alarm = self._loop.call_at(min(due), self._wake.set) if due else None
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    def _settlement_due(self) -> bool:
        return self._settle_at is not None and self._loop.time() >= self._settle_at

    def _owe(self, settlements: Mapping[str, float]) -> None:
        """Keep settlements for the next call."""
        for dim, delta in settlements.items():
            self._settlements[dim] = self._settlements.get(dim, 0.0) + delta
        if self._settlements and self._settle_at is None:
            busy = self._queue or self._issued
            self._settle_at = self._loop.time() + (SETTLE_BUSY_S if busy else SETTLE_IDLE_S)
            self._wake.set()

    def _forgive(self) -> None:
        """Refunds are perishable: an empty bucket owes nobody anything."""
        self._settlements = {dim: delta for dim, delta in self._settlements.items() if delta > 0}

    async def _install(self, *, empty: bool = False) -> None:
        replaces = "" if self._declared else "any"
        self.tally.calls += 1
        self._adopt(await self._hash.install(self._terms, replaces=replaces, empty=empty))
        self._declared = True

    def _adopt(self, in_force: InForce) -> None:
        self._version = in_force.version
        if in_force.terms != self._terms:
            log.info("quota %s: adopting the limits now in force: %s", self._quota.id, in_force.terms.to_json())
            self._terms = in_force.terms
            self._window.adopt(in_force.terms)
        self._settlements = {dim: delta for dim, delta in self._settlements.items() if dim in self._terms.dims}

    def _stop(self, error: Exception) -> None:
        """Everybody who waits, now and later, gets ``error``."""
        self._failure = error
        self._recall()
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(error)

    # --- without Redis -----------------------------------------------------------------------------------------------

    async def _ride_out(self, error: BaseException) -> None:
        """Redis is away: callers wait; after a grace they live on the local share; back with an empty bucket."""
        log.warning("quota %s: Redis is away (%s); callers wait, trying again", self._quota.id, error)
        self._forgive()
        grace_ends = self._loop.time() + OUTAGE_GRACE_S
        helper: asyncio.Task[None] | None = None
        try:
            while not await self._is_back():
                if helper is None and self._processes and self._loop.time() >= grace_ends:
                    helper = self._loop.create_task(self._serve_share())
                await asyncio.sleep(OUTAGE_RETRY_S)
        finally:
            if helper is not None:
                helper.cancel()
                await asyncio.gather(helper, return_exceptions=True)
            self._share = None
        self._pause_wanted = self._pause_until > self._loop.time()
        self._retry_at = 0.0
        await self.beat()
        log.warning("quota %s: Redis is back; going on with an empty bucket", self._quota.id)

    async def _is_back(self) -> bool:
        try:
            await self._install(empty=True)
        except _AWAY:
            return False
        return True

    async def _serve_share(self) -> None:
        """Give callers their turns from rate / processes * 0.9, in order, until cancelled."""
        part = LOCAL_SHARE / max(self._processes, 1)
        log.warning("quota %s: still no Redis; living on %.3g of the limits", self._quota.id, part)
        self._share = LocalLane(self._terms.scaled(part))
        self._share.not_before(max(0.0, self._pause_until - self._loop.time()))
        while True:
            while self._queue:
                waiter = self._queue.popleft()
                if not waiter.future.done() and self._prepare(waiter):
                    await self._serve(self._share, waiter)
            self._wake.clear()
            await self._wake.wait()

    async def _serve(self, lane: LocalLane, waiter: Waiter) -> None:
        try:
            await lane.take(waiter.amounts)
        except asyncio.CancelledError:
            self._requeue([waiter])
            raise
        self._issue(waiter, 0.0, self._loop.time())
