"""The one task per quota and process that talks to Redis: fetches start times in batches, wakes callers on time."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from math import inf
from typing import Final

from redis.exceptions import RedisError

from penstock_ratelimit.concurrency.in_flight import InFlight
from penstock_ratelimit.errors import LimiterClosed, QuotaHeld
from penstock_ratelimit.limiter import StartRequest
from penstock_ratelimit.provider.profiles import PROFILES
from penstock_ratelimit.quota import Quota
from penstock_ratelimit.shared.answers import Answers
from penstock_ratelimit.shared.degraded import GRACE_S, LocalShare, Outage
from penstock_ratelimit.shared.discovery import Discovery
from penstock_ratelimit.shared.expiry import Expiry
from penstock_ratelimit.shared.issuing import Issuing
from penstock_ratelimit.shared.provider_state import ProviderState
from penstock_ratelimit.shared.reports import ReportBuffer
from penstock_ratelimit.shared.terms_in_force import TermsInForce
from penstock_ratelimit.shared.waiting import Waiter, WaitingCallers
from penstock_ratelimit.shared.window import MAX_WINDOW, Window
from penstock_ratelimit.store.messages import Reserve, Reserved, ReserveStatus
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.tasks import cancel_and_wait
from penstock_ratelimit.terms import Terms
from penstock_ratelimit.tickets import UNSHARED, Feedback, Grant, QuotaStats, Tally, Ticket, refund

log = logging.getLogger("penstock.ratelimit")

MAX_AHEAD_S: Final = 30.0
"""No start time further ahead than this is handed out: it would bind an item, and hide a change of limits, too long."""
HEARTBEAT_S: Final = 2.0
HEARTBEAT_TTL_S: Final = 15.0
"""Seven heartbeats missed: gone."""
ASK_AGAIN_S: Final = 2.0
"""Redis is asked again after so long while callers wait, so a lift or another limit reaches every process this soon."""
RETRIES_LEAVE: Final = 50.0
"""Retries are put off while the budget is at or below half of its 100, as in gRPC's retry throttling (gRFC A6)."""

_AWAY = (RedisError, OSError)  # TimeoutError is an OSError


class Dispatcher:
    """Callers wait in ``_callers``; only ``_run`` reserves for them in Redis, at most a window at a time."""

    def __init__(self, quota: Quota, quota_hash: QuotaHash, process: str) -> None:
        self._quota, self._hash, self._process = quota, quota_hash, process
        self.profile = PROFILES[quota.profile]
        self.tally = Tally()
        self._loop = asyncio.get_running_loop()
        self._window = Window(quota.horizon_s)
        self._in_flight = InFlight(quota, self._loop.time)
        self._callers = WaitingCallers(self._loop, self._nudge)
        self._issuing = Issuing(self._callers, self._in_flight, self.tally, partial(refund, self))
        self._reports = ReportBuffer()
        self._provider = ProviderState(quota.id)
        self._discovery = Discovery(quota)
        self._answers = Answers(self._discovery, self._reports)
        self._expiry = Expiry(self._discovery, quota_hash)
        self._agreed = TermsInForce(quota, quota_hash, self.tally)
        self._wake = asyncio.Event()
        self._outage = Outage(quota.id)
        self._processes, self._pace_s = 0, 0.0  # of the quota, and seconds per item, as Redis last said
        self._retry_at = 0.0  # loop time: Redis said "later" to the head of the line
        self._granted_freely = UNSHARED  # see _free_grant
        self._failure: Exception | None = None  # set once: the dispatcher has stopped
        self._task = self._loop.create_task(self._run(), name=f"quota {quota.id}")

    @property
    def _terms(self) -> Terms:
        """Those in force."""
        return self._agreed.terms

    # --- what callers use --------------------------------------------------------------------------------------------

    async def acquire(self, ask: StartRequest) -> Ticket:
        if self._failure is not None:
            raise self._failure
        if ask.retry:
            self._reports.add_retry()
        ticket = self.at_once()
        if ticket is not None:
            return ticket
        waiter = Waiter(ask, self._terms, self._loop.create_future())
        self._callers.arrive(waiter)
        self._nudge()
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        waiter.reserved = False
        self._in_flight.sent()
        return Ticket(self, waiter.terms.dims, waiter.amounts, waiter.grant)

    def at_once(self) -> Ticket | None:
        if self._callers.has_line or not self._starts_freely():
            return None
        self._in_flight.granted()
        self._in_flight.sent()
        self.tally.granted += 1
        self._ask_soon()
        return Ticket(self, (), (), self._free_grant())

    def not_before(self, seconds: float) -> None:
        self.tally.throttled += 1
        self._pause(seconds)

    def may_retry(self) -> bool:
        return self._provider.health.retry_budget > RETRIES_LEAVE or not self._callers.has_first_tries

    async def lift(self) -> None:
        """End a hold for the whole fleet. Raises what the client raises when Redis is away."""
        await self._hash.lift()

    def gauge(self, running: float, waiting: float) -> None:
        if self._in_flight.control is not None:
            self._in_flight.control.gauge(running, waiting)

    def stats(self) -> QuotaStats:
        health = self._provider.health
        return QuotaStats(
            allowed={dim: rate * health.share for dim, rate in zip(self._terms.dims, self._terms.rates, strict=True)},
            used=dict(self.tally.used),
            waiting=self._callers.waiting,
            granted=self._callers.granted + self.tally.granted,
            refunded=self.tally.refunded,
            throttled=self.tally.throttled,
            in_flight=self._in_flight.count,
            concurrency=self._in_flight.limit,
            concurrency_most=self._in_flight.most,
            climbing=self._in_flight.climbing,
            calls=self.tally.calls,
            degraded=self._outage.share is not None,
            breaker=health.breaker.name.lower(),
            held=health.hold,
        )

    # --- what tickets report -----------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._loop.time()

    def adjust(self, dim: str, delta: float) -> None:
        self.tally.used[dim] = self.tally.used.get(dim, 0.0) + delta
        if self._outage.share is not None:
            self._outage.share.quota.adjust(dim, delta)
            return
        busy = self._callers.has_line or self._callers.unstarted > 0
        if self._reports.add_settlement(dim, delta, now=self._loop.time(), busy=busy):
            self._wake.set()

    def ended(self, ticket: Ticket, feedback: Feedback | None) -> None:
        self._in_flight.ended(ticket.since, feedback)
        if feedback is not None:
            self._take_in(ticket, feedback)
        self._nudge()

    def _take_in(self, ticket: Ticket, feedback: Feedback) -> None:
        due_at = self._reports.due_at
        pause_s = self._answers.take_in(
            ticket,
            feedback,
            self._terms,
            now=self._loop.time(),
            in_flight=self._in_flight.count,
            alone=self._outage.share is not None,
        )
        if pause_s > 0:
            self._pause(pause_s)
        if feedback.pause_s is not None:
            self.tally.throttled += 1
        if self._reports.due_at != due_at or self._discovery.proposal is not None:
            self._wake.set()

    def _pause(self, seconds: float) -> None:
        if not self._provider.pause(seconds, self._loop.time()):
            return
        if self._outage.share is not None:
            self._outage.share.quota.pause(seconds)
        self._issuing.recall(self._provider.paused_until)
        self._wake.set()

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
        if not self._agreed.version:
            await self._agreed.install()
            await self.beat()
        if self._discovery.proposal is not None:
            proposal, self._discovery.proposal = self._discovery.proposal, None
            await self._expiry.confirm([])  # before other processes see limits that were never confirmed
            await self._agreed.propose(proposal)
        self._let_in_freely()
        batch = self._batch()
        if batch or self._provider.has_unsent_pause or self._reports_are_due():
            self._apply(await self._call(batch), batch)
        else:
            await self._rest()

    def _batch(self) -> list[Waiter]:
        """Callers to reserve for now: none while half a window is unstarted, or while Redis said "later"."""
        window = self._window.size if self._terms.dims else MAX_WINDOW
        room = min(window - self._callers.unstarted, self._open_places())
        batch: list[Waiter] = []
        while self._may_ask() and len(batch) < room and (waiter := self._callers.next()):
            if self._issuing.price(waiter, self._terms):
                batch.append(waiter)
        return batch

    def _may_ask(self) -> bool:
        return (
            self._callers.unstarted <= self._window.low_water
            and self._loop.time() >= self._retry_at
            and self._open_places() > 0
        )

    def _open_places(self) -> int:
        return self._in_flight.places()

    async def _call(self, batch: list[Waiter]) -> Reserved:
        """Reserve for ``batch``; when that fails the callers are back in line and only charges are kept."""
        load = self._reports.take()
        now = self._loop.time()
        pause_s = self._provider.unsent_pause(now)
        ask = Reserve(
            self._agreed.version,
            self._terms,
            [waiter.amounts for waiter in batch],
            load.settlements,
            MAX_AHEAD_S,
            share_s=2 * self._quota.horizon_s / max(self._processes, 1),
            pause_s=pause_s,
            report=load.report,
            remaining=load.remaining(now),
        )
        self.tally.calls += 1
        try:
            reply = await self._hash.reserve(ask)
        except BaseException:
            # the call may have been done: a refund given twice would exceed the limit, a charge given twice does not
            self._reports.put_back(load, now=self._loop.time())
            self._reports.drop_refunds()
            self._callers.put_back(batch)
            raise
        if reply.verdict is ReserveStatus.OK:
            self._provider.pause_sent(pause_s, reply, self._loop.time())
        else:
            self._reports.put_back(load, now=self._loop.time())
        return reply

    def _apply(self, reply: Reserved, batch: list[Waiter]) -> None:
        now = self._loop.time()
        if reply.verdict is not ReserveStatus.OK:
            self._callers.put_back(batch)
            self._follow(reply, now)
            return
        until = self._provider.learn(reply, now)
        self._reports.enter(reply.health.generation)
        self._in_flight.note(proven=reply.health.proven)
        self._hand_out(reply, batch, now)
        if self._terms.dims and batch and (reply.retry_s > 0 or max(reply.waits_s) > 0):
            self._answers.limited(until=now + max(reply.waits_s, default=0.0))
        self._processes, self._pace_s = reply.processes, reply.pace_s
        self._window.resize(reply.pace_s, reply.processes)
        self._retry_at = now + min(reply.retry_s, ASK_AGAIN_S) if batch else 0.0
        if until is not None:
            self._issuing.recall(until)
        if reply.health.hold:
            self._retry_at = 0.0  # callers do not wait for a hold to end: each is refused at once
            self._issuing.refuse_all(QuotaHeld(self._quota.id, reply.health.hold))

    def _follow(self, reply: Reserved, now: float) -> None:
        """Redis did nothing, because it has lost the quota, or because other terms are in force."""
        if reply.in_force is not None:
            self._agreed.adopt(reply.in_force)
            return
        log.warning("quota %s: Redis has lost it; installing it again with an empty bucket", self._quota.id)
        self._reports.drop_refunds()
        self._provider.forgotten(now)
        self._agreed.version = ""

    def _hand_out(self, reply: Reserved, batch: list[Waiter], now: float) -> None:
        counters = reply.counters
        for waiter, wait_s in zip(batch, reply.waits_s, strict=False):
            counters = tuple(before + amount for before, amount in zip(counters, waiter.amounts, strict=False))
            waiter.grant = Grant(reply.health.generation, counters)
            self._issuing.issue(waiter, now + wait_s if wait_s > 0 else None)
        self._callers.put_back(batch[len(reply.waits_s) :])
        self._callers.arm()

    def _give_back(self, waiter: Waiter) -> None:
        if self._issuing.give_back(waiter):
            self._nudge()

    def _nudge(self) -> None:
        has_line = self._callers.has_line
        if has_line:
            self._let_in_freely()
        if (
            self._outage.share is not None
            or self._discovery.proposal is not None
            or (has_line and self._callers.has_line and self._may_ask())
        ):
            self._wake.set()

    async def _rest(self) -> None:
        """Sleep until woken, until a report is due, or until the time that Redis gave."""
        self._wake.clear()
        times = [self._reports.due_at, *((self._retry_at, self._in_flight.opens_at) if self._callers.has_line else ())]
        due = [at for at in times if at is not None and at > self._loop.time()]
        alarm = self._loop.call_at(min(due), self._wake.set) if due else None
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    def _reports_are_due(self) -> bool:
        return self._reports.due_at is not None and self._loop.time() >= self._reports.due_at

    # --- a quota without limits --------------------------------------------------------------------------------------

    def _starts_freely(self) -> bool:
        """Without limits Redis is not asked while all is well; this process learns of changes within a second."""
        return (
            not self._terms.dims
            and self._failure is None
            and ((self._provider.is_known and self._agreed.version != "") or self._outage.lasts)
            and self._provider.clear(self._loop.time())
            and self._open_places() > 0
        )

    def _free_grant(self) -> Grant:
        """The same for all tickets until the breaker moves on."""
        generation = self._provider.health.generation
        if self._granted_freely.generation != generation:
            self._granted_freely = Grant(generation)
        return self._granted_freely

    def _let_in_freely(self) -> None:
        """Those in line take the places that are open, without a call to Redis for each."""
        while self._callers.has_line and self._starts_freely() and (waiter := self._callers.next()):
            if self._issuing.price(waiter, self._terms):
                waiter.grant = self._free_grant()
                self._issuing.issue(waiter)
                self._ask_soon()

    def _ask_soon(self) -> None:
        if self._reports.ask_again(now=self._loop.time()):
            self._wake.set()

    # --- heartbeats, the end -----------------------------------------------------------------------------------------

    async def beat(self) -> None:
        """Send a heartbeat with this process's figures. ``_run`` handles outages; the last count of processes stays."""
        try:
            self._processes = await self._hash.heartbeat(self._process, HEARTBEAT_TTL_S, self.stats().summary())
            waiting = self._callers.has_line and self._provider.clear(self._loop.time())
            await self._expiry.look(self._terms, now=self._loop.time(), pace_s=self._pace_s, waiting=waiting)
            self._nudge()
        except _AWAY as error:
            log.debug("quota %s: no heartbeat (%s); the last count of %d stays", self._quota.id, error, self._processes)

    async def aclose(self) -> None:
        await cancel_and_wait(self._task)
        self._stop(LimiterClosed(self._quota.id))
        try:
            if self._reports.due_at is not None and self._agreed.version:
                await self._call([])
            await self._hash.heartbeat(self._process, 0)
        except _AWAY as error:
            log.info("quota %s: closed without Redis (%s); its unused tickets run out", self._quota.id, error)

    def _stop(self, error: Exception) -> None:
        """Every caller that waits, now and later, gets ``error``; tickets that have not started go back to the quota."""
        self._failure = error
        self._issuing.recall(-inf)
        self._issuing.refuse_all(error)

    # --- without Redis -----------------------------------------------------------------------------------------------

    async def _ride_out(self, error: BaseException) -> None:
        self._reports.drop_refunds()
        await self._outage.ride_out(
            error, self._open_share, self._is_back, grace_s=GRACE_S if self._terms.dims else 0.0
        )
        self._provider.forgotten(self._loop.time())
        self._retry_at = 0.0
        await self.beat()
        log.warning("quota %s: Redis is back; going on with an empty bucket", self._quota.id)

    def _open_share(self) -> LocalShare | None:
        """This process's part of the quota, once it is known of how many; without limits there is nothing to part."""
        if self._processes <= 0 and self._terms.dims:
            return None
        share = LocalShare(self._terms, self.profile, max(self._processes, 1), self._issuing, self._wake)
        share.open(max(0.0, self._provider.paused_until - self._loop.time()))
        return share

    async def _is_back(self) -> bool:
        try:
            await self._agreed.install(empty=True)
        except _AWAY:
            return False
        return True
