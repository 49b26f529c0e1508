"""The one task per quota and process that talks to Redis, for callers and their tickets.

What it decides stands beside it: for whom to reserve (``reserving``), who starts without asking
(``free_starts``), what happens while Redis is away (``redis_outage``), and which limits headers put
in force (``learned_limits``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, Final

from penstock_ratelimit.errors import LimiterClosed
from penstock_ratelimit.limiter import ServerGauges, StartRequest
from penstock_ratelimit.provider.profiles import PROFILES
from penstock_ratelimit.quota import Quota
from penstock_ratelimit.shared.ceiling import Ceiling
from penstock_ratelimit.shared.discovery import Answers, Discovery, learned
from penstock_ratelimit.shared.quota_state import QuotaState
from penstock_ratelimit.shared.redis_outage import AWAY, RedisOutage
from penstock_ratelimit.shared.reserving import Reserving
from penstock_ratelimit.shared.waiting import Waiter
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.tickets import UNSHARED, Feedback, Grant, QuotaStats, Ticket, refund

CANCEL_AGAIN_S: Final = 0.1


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it has ended; what it raises is dropped.

    Once is not enough: redis-py sends through asyncio.wait_for, which before Python 3.12 loses a
    cancellation that comes at the same moment as the end of what it waits for (cpython#86296).
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)


class FreeStarts:
    """Decides who starts without asking.

    A report follows soon, so that this process learns of changes within a second."""

    def __init__(self, state: QuotaState, outage: RedisOutage) -> None:
        self._state, self._outage = state, outage
        self._grant = UNSHARED

    def grant_one(self) -> Grant | None:
        """Grant a start to a caller that has just come; None when it has to wait in line."""
        if self._state.callers.has_line or not self._are_allowed():
            return None
        self._state.in_flight.granted()
        self._state.tally.granted += 1
        self._report_soon()
        return self._current_grant()

    def let_in(self) -> bool:
        """Let those in line take the places that are open.

        Return whether others are still in line."""
        state = self._state
        while self._are_allowed() and (waiter := state.callers.next()):
            if state.issuing.price(waiter, state.terms):
                waiter.grant = self._current_grant()
                state.issuing.issue(waiter)
                self._report_soon()
        return state.callers.has_line

    def _are_allowed(self) -> bool:
        state = self._state
        return (
            state.in_flight.places() > 0  # first: it is what most often says no
            and not state.in_force.terms.dims
            and ((state.provider.is_known and state.in_force.version != "") or self._outage.lasts)
            and state.provider.clear(state.now())
        )

    def _current_grant(self) -> Grant:
        """Return the grant of a ticket, one for all until the breaker changes its state."""
        generation = self._state.provider.health.generation
        if self._grant.generation != generation:
            self._grant = Grant(generation)
        return self._grant

    def _report_soon(self) -> None:
        state = self._state
        state.reports.started += 1
        # what is due comes sooner
        if state.reports.due_at is None and state.reports.ask_again(now=state.now()):
            state.wake.set()


class LearnedLimits:
    """One process's part in it. Calls raise what the client raises."""

    def __init__(self, discovery: Discovery, state: QuotaState) -> None:
        self._discovery, self._state = discovery, state

    @property
    def are_new(self) -> bool:
        """Return whether headers ask for terms that are not in force."""
        return self._discovery.proposal is not None

    async def put_in_force(self) -> None:
        """Put in force what headers ask for, if that is something else."""
        proposal, self._discovery.proposal = self._discovery.proposal, None
        if proposal is not None:
            await self._confirm([])  # before other processes see limits that were never confirmed
            await self._state.in_force.propose(proposal)

    async def expire(self) -> None:
        """Propose to drop learned limits that headers no longer state.

        With each heartbeat the fleet notes who saw them."""
        state = self._state
        dims = learned(state.terms)
        if not dims:
            return
        waiting = state.callers.has_line and state.provider.clear(state.now())
        terms, pace_s = state.terms, state.pace_s
        ages = await self._confirm(dims)
        self._discovery.forget(terms, ages, now=state.now(), pace_s=pace_s, waiting=waiting)

    async def _confirm(self, dims: Sequence[str]) -> dict[str, float]:
        """Report the limits that headers stated here.

        Returns for how many seconds no header stated each of ``dims``."""
        stated, self._discovery.stated = self._discovery.stated, set()
        try:
            return await self._state.hash.confirm(stated, dims)
        except BaseException:
            self._discovery.stated |= stated
            raise


log = logging.getLogger("penstock.ratelimit")

HEARTBEAT_S: Final = 2.0
HEARTBEAT_TTL_S: Final = 15.0
"""Seven heartbeats missed: gone."""
RETRIES_LEAVE: Final = 50.0
"""Retries are put off while the budget is at or below half of its 100, as in gRPC's retry
throttling (gRFC A6)."""


class Dispatcher:
    """Lets callers wait in line.

    Only ``_run`` reserves for them in Redis, at most a window at a time."""

    def __init__(self, quota: Quota, quota_hash: QuotaHash, process: str) -> None:
        self._process = process
        self.profile = PROFILES[quota.profile]
        self._state = QuotaState(
            quota, quota_hash, on_start=self._nudge, refund=partial(refund, self)
        )
        self.tally = self._state.tally
        discovery = Discovery(quota)
        self._answers = Answers(discovery, self._state.reports)
        self._learned = LearnedLimits(discovery, self._state)
        self._reserving = Reserving(self._state, self._answers)
        self._outage = RedisOutage(self._state, self.profile)
        self._free = FreeStarts(self._state, self._outage)
        self._failure: Exception | None = None  # set once: the dispatcher has stopped
        self._ceiling = (
            None
            if quota.interactive is None
            else Ceiling(quota.interactive, self._state, process, self._nudge)
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(), name=f"quota {quota.id}")]
        if self._ceiling is not None:
            self._tasks.append(
                loop.create_task(self._ceiling.follow(), name=f"ceiling of quota {quota.id}")
            )

    # --- what callers use
    # ----------------------------------------------------------------------------------------------

    async def acquire(self, ask: StartRequest) -> Ticket:
        if self._failure is not None:
            raise self._failure
        state = self._state
        if ask.retry:
            state.reports.add_retry()
        ticket = self.at_once()
        if ticket is not None:
            return ticket
        waiter = Waiter(ask, state.terms, asyncio.get_running_loop().create_future())
        state.callers.arrive(waiter)
        if self._ceiling is not None:
            self._ceiling.called()
        self._nudge()
        try:
            await waiter.future
        except asyncio.CancelledError:
            if state.issuing.give_back(waiter):
                self._nudge()
            raise
        waiter.reserved = False
        state.in_flight.sent()
        return Ticket(self, waiter.terms.dims, waiter.amounts, waiter.grant)

    def at_once(self) -> Ticket | None:
        """Return a ticket where nothing limits the quota now, and no one waits.

        Where it is None, stand in line.
        """
        grant = self._free.grant_one() if self._failure is None else None
        if grant is None:
            return None
        self._state.in_flight.sent()
        return Ticket(self, (), (), grant)

    def not_before(self, seconds: float) -> None:
        self.tally.throttled += 1
        self._pause(seconds)

    def may_retry(self) -> bool:
        state = self._state
        return (
            state.provider.health.retry_budget > RETRIES_LEAVE or not state.callers.has_first_tries
        )

    async def lift(self) -> None:
        """End a hold for the whole fleet. Raises what the client raises when Redis is away."""
        await self._state.hash.lift()

    @property
    def looks(self) -> bool:
        return self._ceiling is None or self._ceiling.looks

    def gauge(self, gauges: ServerGauges) -> None:
        if self._ceiling is not None:
            self._ceiling.gauge(gauges)
        elif self._state.in_flight.control is not None:
            self._state.in_flight.control.gauge(gauges.running, gauges.waiting)

    def unread(self, why: str) -> None:
        if self._ceiling is not None:
            self._ceiling.unread(why)

    def stats(self) -> QuotaStats:
        return self._state.stats(degraded=self._outage.share is not None)

    # --- what tickets report
    # ----------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._state.now()

    def adjust(self, dim: str, delta: float) -> None:
        state = self._state
        self.tally.used[dim] = self.tally.used.get(dim, 0.0) + delta
        if self._outage.share is not None:
            self._outage.share.quota.adjust(dim, delta)
            return
        busy = state.callers.has_line or state.callers.unstarted > 0
        if state.reports.add_settlement(dim, delta, now=state.now(), busy=busy):
            state.wake.set()

    def ended(self, ticket: Ticket, feedback: Feedback | None) -> None:
        self._state.in_flight.ended(ticket.since, feedback)
        if feedback is not None:
            self._take_in(ticket, feedback)
        else:
            self._state.unused(ticket.grant)
        self._nudge()

    def _take_in(self, ticket: Ticket, feedback: Feedback) -> None:
        state = self._state
        due_at = state.reports.due_at
        pause_s = self._answers.take_in(
            ticket,
            feedback,
            state.terms,
            now=state.now(),
            in_flight=state.in_flight.count,
            alone=self._outage.share is not None,
        )
        if pause_s > 0:
            self._pause(pause_s)
        if feedback.pause_s is not None:
            self.tally.throttled += 1
        if state.reports.due_at != due_at or self._learned.are_new:
            state.wake.set()

    def _pause(self, seconds: float) -> None:
        state = self._state
        if not state.provider.pause(seconds, state.now()):
            return
        if self._outage.share is not None:
            self._outage.share.quota.pause(seconds)
        state.issuing.recall(state.provider.paused_until)
        state.wake.set()

    # --- the task
    # ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._turn()
                except AWAY as error:
                    await self._ride_out(error)
        except Exception as error:
            log.exception(
                "quota %s: the dispatcher failed; callers get the error", self._state.quota.id
            )
            self._stop(error)

    async def _turn(self) -> None:
        state = self._state
        if not state.in_force.version:
            await state.in_force.install()
            await self.beat()
        await self._learned.put_in_force()
        self._free.let_in()
        batch = self._reserving.batch()
        if batch or state.provider.has_unsent_pause or self._reports_are_due():
            await self._reserving.reserve(batch)
        else:
            await self._rest()

    def _nudge(self) -> None:
        """Let in who may start after a change, and wake the task if it has to ask."""
        if self._state.callers.has_line and self._free.let_in() and self._reserving.may_ask():
            self._state.wake.set()
        if self._outage.share is not None or self._learned.are_new:
            self._state.wake.set()

    async def _rest(self) -> None:
        """Sleep until woken, until a report is due, or until the time that Redis gave."""
        state = self._state
        state.wake.clear()
        waits = (
            (self._reserving.retry_at, state.in_flight.opens_at) if state.callers.has_line else ()
        )
        due = [at for at in (state.reports.due_at, *waits) if at is not None and at > state.now()]
        alarm = asyncio.get_running_loop().call_at(min(due), state.wake.set) if due else None
        try:
            await state.wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    def _reports_are_due(self) -> bool:
        due_at = self._state.reports.due_at
        return due_at is not None and self._state.now() >= due_at

    async def _ride_out(self, error: BaseException) -> None:
        await self._outage.ride_out(error)
        self._reserving.retry_at = 0.0
        await self.beat()
        log.warning("quota %s: Redis is back; going on with an empty bucket", self._state.quota.id)

    # --- heartbeats, the end
    # ----------------------------------------------------------------------------------------------

    async def beat(self) -> None:
        """Send a heartbeat with this process's figures.

        ``_run`` handles outages; the last count of processes stays."""
        state = self._state
        try:
            state.processes = await state.hash.heartbeat(
                self._process, HEARTBEAT_TTL_S, self.stats().summary()
            )
            await self._learned.expire()
            self._nudge()
        except AWAY as error:
            log.debug(
                "quota %s: no heartbeat (%s); the last count of %d stays",
                state.quota.id,
                error,
                state.processes,
            )

    async def aclose(self) -> None:
        for task in self._tasks:
            await cancel_and_wait(task)
        state = self._state
        self._stop(LimiterClosed(state.quota.id))
        try:
            if state.reports.due_at is not None and state.in_force.version:
                await self._reserving.call([])
            await state.hash.heartbeat(self._process, 0)
        except AWAY as error:
            log.info(
                "quota %s: closed without Redis (%s); its unused tickets run out",
                state.quota.id,
                error,
            )

    def _stop(self, error: Exception) -> None:
        """Give every caller that waits, now and later, ``error``.

        Tickets that have not started go back to the quota."""
        self._failure = error
        self._state.issuing.recall(-inf)
        self._state.issuing.refuse_all(error)
