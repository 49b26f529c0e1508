"""The one task per quota and process that talks to Redis: fetches start times in batches, wakes callers on time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from redis.exceptions import RedisError

from penstock_ratelimit.degraded import GRACE_S, RETRY_S, LocalShare
from penstock_ratelimit.errors import LimiterClosed, RateLimitError
from penstock_ratelimit.limits import Quota
from penstock_ratelimit.quota_hash import InForce, QuotaHash, Reserve, Reserved, Verdict
from penstock_ratelimit.settlements import Settlements
from penstock_ratelimit.tickets import QuotaStats, Tally, Ticket, refund
from penstock_ratelimit.waiting import Waiter, WaitingRoom
from penstock_ratelimit.window import Window

log = logging.getLogger("penstock.ratelimit")

MAX_AHEAD_S: Final = 30.0
"""No start time further ahead than this is handed out: it would bind an item, and hide a change of limits, too long."""
HEARTBEAT_S: Final = 5.0
HEARTBEAT_TTL_S: Final = 3 * HEARTBEAT_S
"""Three heartbeats missed: gone."""

_AWAY = (RedisError, OSError)  # TimeoutError is an OSError


class Dispatcher:
    """Callers wait in ``_room``; ``_run`` is the only one who takes them to Redis, at most a window at a time."""

    def __init__(self, quota: Quota, quota_hash: QuotaHash, process: str) -> None:
        self._quota, self._hash, self._process = quota, quota_hash, process
        self._terms = quota.terms()
        self._window = Window(quota.horizon_s)
        self._loop = asyncio.get_running_loop()
        self._room = WaitingRoom(self._loop, self._nudge)
        self._settlements = Settlements()
        self._version = ""  # of the terms in force; "" = not installed
        self._declared = False  # our own terms were put in force once; from then on we follow
        self._processes = 0  # that share the quota, as last heard; 0 = never
        self._retry_at = 0.0  # loop time: Redis said "later" to the head of the line
        self._pause_until = 0.0  # loop time
        self._pause_untold = False  # written by not_before, cleared once Redis knows
        self._pause_id = 0  # of the latest pause that Redis told
        self._share: LocalShare | None = None  # while Redis is away for long
        self._failure: Exception | None = None  # set once: the dispatcher works no more
        self._wake = asyncio.Event()
        self.tally = Tally()
        self._task = self._loop.create_task(self._run(), name=f"quota {quota.id}")

    # --- what callers use --------------------------------------------------------------------------------------------

    async def acquire(self, costs: Mapping[str, float], certain: Mapping[str, float] | None) -> Ticket:
        if self._failure is not None:
            raise self._failure
        waiter = Waiter(costs, certain, self._terms, self._loop.create_future())
        self._room.arrive(waiter)
        self._nudge()
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        waiter.reserved = False
        return Ticket(self, waiter.terms.dims, waiter.amounts)

    def adjust(self, dim: str, delta: float) -> None:
        self.tally.used[dim] = self.tally.used.get(dim, 0.0) + delta
        if self._share is not None:
            self._share.lane.adjust(dim, delta)
            return
        busy = self._room.has_line or self._room.unstarted > 0
        if self._settlements.add(dim, delta, now=self._loop.time(), busy=busy):
            self._wake.set()

    def not_before(self, seconds: float) -> None:
        self.tally.throttled += 1
        until = self._loop.time() + seconds
        if until <= self._pause_until or seconds <= 0:
            return
        self._pause_until = until
        self._pause_untold = True
        if self._share is not None:
            self._share.lane.not_before(seconds)
        self._recall()
        self._wake.set()

    def stats(self) -> QuotaStats:
        return QuotaStats(
            allowed=dict(zip(self._terms.dims, self._terms.rates, strict=True)),
            used=dict(self.tally.used),
            waiting=self._room.waiting,
            granted=self._room.granted,
            refunded=self.tally.refunded,
            throttled=self.tally.throttled,
            calls=self.tally.calls,
            degraded=self._share is not None,
        )

    async def beat(self) -> None:
        """Say that we are here. An outage is for ``_run`` to notice; the last count of processes stays."""
        try:
            self._processes = await self._hash.heartbeat(self._process, HEARTBEAT_TTL_S)
        except _AWAY as error:
            log.debug("quota %s: no heartbeat (%s); the last count of %d stays", self._quota.id, error, self._processes)

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._stop(LimiterClosed(self._quota.id))
        try:
            if self._settlements.due_at is not None and self._version:
                await self._call([])
            await self._hash.heartbeat(self._process, 0)
        except _AWAY as error:
            log.info("quota %s: closed without Redis (%s); its unused tickets run out", self._quota.id, error)

    # --- the task ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._turn()
                except _AWAY as error:
                    await self._ride_out(error)
        except Exception as error:
            log.exception("quota %s: the dispatcher failed; callers get the error", self._quota.id)
            self._stop(error)

    async def _turn(self) -> None:
        if not self._version:
            await self._install()
            await self.beat()
        batch = self._batch()
        if batch or self._pause_untold or self._settlements_are_due():
            self._apply(await self._call(batch), batch)
        else:
            await self._rest()

    def _batch(self) -> list[Waiter]:
        """Callers to reserve for now: none while half a window is unstarted, or while Redis said "later"."""
        room = self._window.size - self._room.unstarted
        batch: list[Waiter] = []
        while self._may_ask() and len(batch) < room and (waiter := self._room.next()):
            if self._price(waiter):
                batch.append(waiter)
        return batch

    def _may_ask(self) -> bool:
        return self._room.unstarted <= self._window.low_water and self._loop.time() >= self._retry_at

    def _price(self, waiter: Waiter) -> bool:
        """Price a caller by the terms in force, if they changed since it came; False when it can never fit now."""
        if waiter.terms is self._terms:
            return True
        try:
            waiter.price(self._terms)
        except RateLimitError as error:
            waiter.future.set_exception(error)
            return False
        return True

    async def _call(self, batch: list[Waiter]) -> Reserved:
        """Reserve for ``batch``; when that fails the callers are back in line and only charges are kept."""
        settlements = self._settlements.take()
        pause_s = max(0.0, self._pause_until - self._loop.time()) if self._pause_untold else 0.0
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
            # whether the step was done is unknown: a refund given twice would be work too much, a charge is not
            self._settlements.put_back(settlements, now=self._loop.time())
            self._settlements.drop_refunds()
            self._room.put_back(batch)
            raise
        if reply.verdict is not Verdict.OK:
            self._settlements.put_back(settlements, now=self._loop.time())
        elif self._pause_untold:
            self._pause_untold = self._pause_until > self._loop.time() + pause_s
            self._pause_id = max(self._pause_id, reply.pause_id)
        return reply

    def _apply(self, reply: Reserved, batch: list[Waiter]) -> None:
        now = self._loop.time()
        for waiter, wait_s in zip(batch, reply.waits_s, strict=False):
            self._issue(waiter, wait_s, now)
        self._room.put_back(batch[len(reply.waits_s) :])
        if reply.processes:
            self._processes = reply.processes
            self._window.resize(reply.pace_s, reply.processes)
        self._room.arm()
        self._retry_at = now + reply.retry_s
        if reply.verdict is Verdict.MISSING:
            log.warning("quota %s: Redis forgot it; installing it again with an empty bucket", self._quota.id)
            self._settlements.drop_refunds()
            self._pause_untold = self._pause_until > now
            self._version = ""
        elif reply.in_force is not None:
            self._adopt(reply.in_force)
        elif reply.pause_id > self._pause_id and reply.pause_left_s > 0:
            self._pause_id, self._pause_until = reply.pause_id, now + reply.pause_left_s
            self._recall()

    def _issue(self, waiter: Waiter, wait_s: float, now: float) -> None:
        waiter.reserved = True
        for dim, amount in zip(waiter.terms.dims, waiter.amounts, strict=True):
            self.tally.used[dim] = self.tally.used.get(dim, 0.0) + amount
        if waiter.gone:
            self._give_back(waiter)
        elif wait_s <= 0:
            self._room.let_go(waiter)
        else:
            self._room.let_go_at(waiter, now + wait_s)

    def _give_back(self, waiter: Waiter) -> None:
        if waiter.reserved:
            waiter.reserved = False
            self._room.forget(waiter)
            refund(self, waiter.terms.dims, waiter.amounts)

    def _recall(self) -> None:
        """Take back every ticket that has not started.

        The time of a pause is lost to all: giving it back would let the fleet burst afterwards. Only tickets for after
        the pause are refunded to the quota; the others just do not count as used.
        """
        for start_at, waiter in self._room.recall():
            if start_at >= self._pause_until:
                self._give_back(waiter)
            else:
                self._void(waiter)

    def _void(self, waiter: Waiter) -> None:
        waiter.reserved = False
        self.tally.refunded += 1
        for dim, amount in zip(waiter.terms.dims, waiter.amounts, strict=True):
            self.tally.used[dim] -= amount

    def _nudge(self) -> None:
        if self._share is not None or (self._room.has_line and self._may_ask()):
            self._wake.set()

    async def _rest(self) -> None:
        """Sleep until nudged, until settlements are due, or until Redis's "later"."""
        self._wake.clear()
        times = [self._settlements.due_at, self._retry_at if self._room.has_line else None]
        due = [at for at in times if at is not None and at > self._loop.time()]
        alarm = self._loop.call_at(min(due), self._wake.set) if due else None
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    def _settlements_are_due(self) -> bool:
        due_at = self._settlements.due_at
        return due_at is not None and self._loop.time() >= due_at

    async def _install(self, *, empty: bool = False) -> None:
        self.tally.calls += 1
        in_force = await self._hash.install(self._terms, replaces="" if self._declared else "any", empty=empty)
        self._declared = True
        self._adopt(in_force)

    def _adopt(self, in_force: InForce) -> None:
        self._version = in_force.version
        if in_force.terms != self._terms:
            log.info("quota %s: adopting the limits now in force: %s", self._quota.id, in_force.terms.to_json())
            self._terms = in_force.terms

    def _stop(self, error: Exception) -> None:
        """Everybody who waits, now and later, gets ``error``."""
        self._failure = error
        self._recall()
        while waiter := self._room.next():
            waiter.future.set_exception(error)

    # --- without Redis -----------------------------------------------------------------------------------------------

    async def _ride_out(self, error: BaseException) -> None:
        """Redis is away: callers wait; after a grace they live on the local share; back with an empty bucket."""
        log.warning("quota %s: Redis is away (%r); callers wait, trying again", self._quota.id, error)
        self._settlements.drop_refunds()
        grace_ends = self._loop.time() + GRACE_S
        try:
            while not await self._is_back():
                if self._share is None and self._processes and self._loop.time() >= grace_ends:
                    self._live_on_share()
                await asyncio.sleep(RETRY_S)
        finally:
            if self._share is not None:
                await self._share.aclose()
                self._share = None
        self._pause_untold = self._pause_until > self._loop.time()
        self._retry_at = 0.0
        await self.beat()
        log.warning("quota %s: Redis is back; going on with an empty bucket", self._quota.id)

    async def _is_back(self) -> bool:
        try:
            await self._install(empty=True)
        except _AWAY:
            return False
        return True

    def _live_on_share(self) -> None:
        log.warning(
            "quota %s: still no Redis; living on the share of one in %d until it is back",
            self._quota.id,
            self._processes,
        )
        self._share = LocalShare(self._terms, self._processes, self._room, self._wake)
        paused_s = max(0.0, self._pause_until - self._loop.time())
        self._share.open(self._price, lambda waiter: self._issue(waiter, 0.0, self._loop.time()), paused_s)
