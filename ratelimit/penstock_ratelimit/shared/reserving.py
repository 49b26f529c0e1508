"""Reserve start times in Redis for those in line, a window of them in one call.

What the reply says is done here, too."""

from __future__ import annotations

import logging
import math
from typing import Final

from penstock_ratelimit.errors import QuotaHeld
from penstock_ratelimit.shared.discovery import Answers
from penstock_ratelimit.shared.quota_state import QuotaState
from penstock_ratelimit.shared.waiting import Waiter
from penstock_ratelimit.store.messages import Reserve, Reserved, ReserveStatus
from penstock_ratelimit.tickets import Grant

log = logging.getLogger("penstock.ratelimit")

MAX_AHEAD_S: Final = 30.0
"""No start time further ahead than this is handed out: it would bind an item, and hide a change of
limits, too long."""
ASK_AGAIN_S: Final = 2.0
"""Redis is asked again after so long while callers wait, so a lift or another limit reaches every
process this soon."""
MAX_WINDOW: Final = 64
"""Most tickets one process holds unstarted, and most items in one call (0.1 ms of Redis; a crash
loses no more)."""


class Window:
    """The number of tickets that this process holds ahead of time.

    They are enough to ask rarely, few enough to be fair and lose little.

    W = clamp(ceil(horizon / pace / processes), 1, 64).

    A process gets its part in proportion to the tickets it holds, so all must work with the same
    pace: the one that Redis learns from the whole fleet. Until it is known the window is one
    ticket.
    """

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self.size = 1

    def resize(self, pace_s: float, processes: int) -> None:
        """Change the window; ``pace_s`` is seconds per item for the whole fleet, 0 when unknown."""
        if pace_s <= 0:
            return
        wanted = self._horizon_s / pace_s / max(processes, 1)
        self.size = MAX_WINDOW if wanted >= MAX_WINDOW else max(1, math.ceil(wanted))

    @property
    def low_water(self) -> int:
        """Refill when no more than this many tickets are unstarted: half a window per call."""
        return self.size // 2


class Reserving:
    """Decides for whom to reserve now.

    Calls raise what the client raises; the callers are back in line then."""

    def __init__(self, state: QuotaState, answers: Answers) -> None:
        self._state, self._answers = state, answers
        self._window = Window(state.quota.horizon_s)
        self.retry_at = 0.0
        """Loop time before which there is no use in asking: Redis said "later" to the head of the
        line."""

    def may_ask(self) -> bool:
        return (
            self._state.in_flight.places() > 0  # first: it is what most often says no
            and self._state.callers.unstarted <= self._window.low_water
            and self._state.now() >= self.retry_at
        )

    def batch(self) -> list[Waiter]:
        """Return the callers to reserve for now.

        There are none while half a window is unstarted, or while Redis said "later"."""
        state = self._state
        window = self._window.size if state.terms.dims else MAX_WINDOW
        room = min(window - state.callers.unstarted, state.in_flight.places())
        batch: list[Waiter] = []
        while self.may_ask() and len(batch) < room and (waiter := state.callers.next()):
            if state.issuing.price(waiter, state.terms):
                batch.append(waiter)
        return batch

    async def reserve(self, batch: list[Waiter]) -> None:
        """Reserve for ``batch``, report what is to be reported, and hand out what Redis gave."""
        self._apply(await self.call(batch), batch)

    async def call(self, batch: list[Waiter]) -> Reserved:
        """Call Redis; when that fails the callers are back in line and only charges are kept."""
        state = self._state
        load = state.reports.take()
        now = state.now()
        pause_s = state.provider.unsent_pause(now)
        ask = Reserve(
            state.in_force.version,
            state.terms,
            [waiter.amounts for waiter in batch],
            load.settlements,
            MAX_AHEAD_S,
            share_s=2 * state.quota.horizon_s / max(state.processes, 1),
            pause_s=pause_s,
            report=load.report,
            started=load.started,
            remaining=load.remaining(now),
        )
        state.tally.calls += 1
        try:
            reply = await state.hash.reserve(ask)
        except BaseException:
            # the call may have been done: a refund given twice would exceed the limit, a charge
            # given twice does not
            state.reports.put_back(load, now=state.now())
            state.reports.drop_refunds()
            state.callers.put_back(batch)
            raise
        if reply.status is ReserveStatus.OK:
            state.provider.pause_sent(pause_s, reply, state.now())
        else:
            state.reports.put_back(load, now=state.now())
        return reply

    def _apply(self, reply: Reserved, batch: list[Waiter]) -> None:
        state, now = self._state, self._state.now()
        if reply.status is not ReserveStatus.OK:
            state.callers.put_back(batch)
            self._follow(reply, now)
            return
        starts_after = state.provider.learn(reply, now)
        state.reports.enter(reply.health)
        state.in_flight.note(proven=reply.health.proven)
        self._hand_out(reply, batch, now)
        if state.terms.dims and batch and (reply.retry_s > 0 or max(reply.waits_s) > 0):
            self._answers.limited(until=now + max(reply.waits_s, default=0.0))
        state.processes, state.pace_s = reply.processes, reply.pace_s
        self._window.resize(reply.pace_s, reply.processes)
        self.retry_at = now + min(reply.retry_s, ASK_AGAIN_S) if batch else 0.0
        if starts_after is not None:
            state.issuing.recall(starts_after)
        if reply.health.hold:
            self.retry_at = 0.0  # callers do not wait for a hold to end: each is refused at once
            state.issuing.refuse_all(QuotaHeld(state.quota.id, reply.health.hold))

    def _follow(self, reply: Reserved, now: float) -> None:
        """Follow a reply by which Redis did nothing.

        It has lost the quota, or other terms are in force."""
        state = self._state
        if reply.in_force is not None:
            state.in_force.adopt(reply.in_force)
            return
        log.warning(
            "quota %s: Redis has lost it; installing it again with an empty bucket", state.quota.id
        )
        state.reports.drop_refunds()
        state.provider.forgotten(now)
        state.in_force.version = ""

    def _hand_out(self, reply: Reserved, batch: list[Waiter], now: float) -> None:
        state, counters = self._state, reply.counters
        for waiter, wait_s in zip(batch, reply.waits_s, strict=False):
            counters = tuple(
                before + amount for before, amount in zip(counters, waiter.amounts, strict=False)
            )
            waiter.grant = Grant(reply.health.generation, counters)
            state.issuing.issue(waiter, now + wait_s if wait_s > 0 else None)
        state.callers.put_back(batch[len(reply.waits_s) :])
        state.callers.arm()
