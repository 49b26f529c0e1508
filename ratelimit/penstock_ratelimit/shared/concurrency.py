"""Requests in flight are bounded at a server that publishes no limits.

That may be a self-hosted vLLM, or shared capacity.

Three things move the limit, each by a rule of its own:

refusals   An overloaded or throttling server takes 30 % off, once per episode: refusals of requests that were sent before
           the last cut belong to it (inspect_ai#5137 froze by letting Retry-After extend the
           episode). A stray refusal among many good answers (``strays``) changes nothing. Failures
           without an answer halve the limit, but only as a run of them: a lone 500 says nothing
           about load.
goodput    vLLM refuses nothing and queues without bound (vllm#13395), and its latency follows the length of the answers, so
           latency says little. What counts is tokens per second: more in flight is right while it
           brings more. After each window: grow while goodput rose by 2 % or more, stay while it is
           flat, go back when it fell. Where the server works on less than half of the limit on
           average (Little's law), the worker's own steps take the rest of the time, and goodput
           says nothing about the server: grow.
queueing   Several processes at one server would each win goodput from the others for ever. So where a token takes three times
           as long as in the best window known, requests wait in the server's queue, and 15 % come
           off. Answers that come within a quarter of a second are exempt: what they waver by is the
           worker's own loop. Where vLLM's own gauges are reachable, they say it directly: waiting
           above 10 % of running.

Growth doubles the limit per round trip of answers, as TCP does, until it did not pay twice in a row
or was refused; then it adds 10 % per window of a second or more. Nothing grows while less than half
of the limit is in use: an unused limit proves nothing (Gradient2 of Netflix's concurrency-limits).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_ratelimit.provider.refusals import OK, OVERLOADS, Signal
from penstock_ratelimit.quota import Quota
from penstock_ratelimit.strays import Patience
from penstock_ratelimit.tickets import Feedback

START: Final = 8
REFUSED_CUT: Final = 0.7
FAILED_CUT: Final = 0.5
QUEUED_CUT: Final = 0.85
FAILURES: Final = 3
"""Failures in a row, all sent since the last cut, that make an episode."""
WAITING_PART: Final = 0.1
"""Waiting requests per running one that a server may have: enough never to run dry."""
SLOW_START: Final = 2.0
STEP: Final = 1.1
RISE: Final = 1.02
"""Goodput that grew by less did not grow: it wavers as much by chance."""
FALL: Final = 0.95
CLIMB_ANSWERS: Final = 1
"""While the limit doubles, a window is a round trip: one answer per place,"""
CLIMB_PART: Final = 0.75
"""and as long as this part of what an answer takes: the answers of one round trip do not come in
one instant."""
CLIMB_WINDOW_S: Final = 0.05
"""And no shorter: answers of some milliseconds come in bunches of the worker's own loop."""
WINDOW_ANSWERS: Final = 2
"""Afterwards a window has so many answers per place at least: a step of 10 % is small beside
chance."""
WINDOW_S: Final = 1.0
"""And lasts so long: the server's own steps must not show."""
WINDOW_MAX_S: Final = 30.0
"""And no longer, however slow the answers are."""
HOLD_WINDOWS: Final = 4
"""Windows at a flat limit before one step more is tried: the server may have become faster."""
GAUGE_EVERY_S: Final = 5.0
QUEUEING: Final = 3.0
"""Times the best seconds per token: the engine's own slowing down under load stays below."""
QUEUEING_FROM_S: Final = 0.25
"""An answer that takes less has not waited long in any queue. A worker with hundreds in flight
reads each so late by itself."""
SERVER_PART: Final = 0.5
"""Of the limit, that the server must have had on average before its goodput is asked."""
FORGET: Final = 1.01
"""Per window: the best pace known fades, because the server or the documents may have changed."""


class Window:
    """The answers since the limit last changed, or was last rated."""

    def __init__(self, now: float, in_flight: int) -> None:
        self._at = now
        self.answers, self._goods, self.busy_s = 0, 0.0, 0.0
        self.most_in_flight = in_flight

    def add(self, latency_s: float, output_tokens: float) -> None:
        """Add an answer; without tokens it counts as one."""
        self.answers += 1
        self._goods += output_tokens or 1.0
        self.busy_s += latency_s

    def age(self, now: float) -> float:
        return now - self._at

    @property
    def pace(self) -> float:
        """Seconds per token."""
        return self.busy_s / self._goods

    def goodput(self, age: float) -> float:
        """Return the tokens per second."""
        return self._goods / max(age, 1e-9)


class AdaptiveConcurrency:
    """Counts requests in flight and says how many may be.

    Owned by one task; ``clock`` gives seconds that never step back."""

    def __init__(
        self, *, maximum: int, clock: Callable[[], float], start: int | None = None
    ) -> None:
        self._maximum, self._clock = maximum, clock
        self._limit = float(min(START if start is None else start, maximum))
        self.limit = int(self._limit)
        """Requests that this process may have in flight now: ``_limit`` in whole requests."""
        self._growth = SLOW_START
        self._in_flight = 0
        self._cut_at = float("-inf")
        self._failures = 0
        self._patience = Patience()
        self._gauge_at = float("-inf")
        self._unpaid = False  # the last doubling did not pay in its first window
        self._held = 0  # windows since the limit last changed
        self._before: tuple[float, float] | None = None  # limit and goodput before the last growth
        self._best_pace = float("inf")  # seconds per token
        self._open_window()

    @property
    def maximum(self) -> int:
        return self._maximum

    @property
    def climbing(self) -> bool:
        """Return whether the limit still doubles, as after a start.

        Then no growth failed to pay, and nothing was refused."""
        return self._growth == SLOW_START and self.limit < self._maximum

    def started(self) -> None:
        self._in_flight += 1
        self._window.most_in_flight = max(self._window.most_in_flight, self._in_flight)

    def finished(self, signal: Signal, latency_s: float, output_tokens: float) -> None:
        """Learn from a request that took ``latency_s``."""
        self._in_flight -= 1
        now = self._clock()
        since_cut = now - latency_s >= self._cut_at
        if signal in OVERLOADS:
            if since_cut and (signal is Signal.RAMP or not self._patience.is_stray()):
                self._cut(REFUSED_CUT, now)
        elif signal is Signal.TRANSIENT:
            self._failures += since_cut
            if self._failures >= FAILURES:
                self._cut(FAILED_CUT, now)
        else:
            self._failures = 0
            self._patience.answered_well(self._in_flight)
            self._window.add(latency_s, output_tokens)
            self._close_window(now)

    def gauge(self, running: float, waiting: float) -> None:
        """Take the server's own gauges: requests that it works on, and that wait there."""
        now = self._clock()
        if waiting > max(1.0, WAITING_PART * running) and now - self._gauge_at >= GAUGE_EVERY_S:
            self._gauge_at = now
            self._cut(QUEUED_CUT, now)

    def _cut(self, part: float, now: float) -> None:
        self._cut_at = now
        self._failures = 0
        self._growth = STEP
        self._move(max(1.0, self._limit * part))
        self._before = None

    def _move(self, limit: float) -> None:
        self._limit = min(float(self._maximum), limit)
        self.limit = max(1, int(self._limit))
        self._held, self._unpaid = 0, False
        self._open_window()

    def _open_window(self) -> None:
        self._window = Window(self._clock(), self._in_flight)

    def _is_whole(self, age: float) -> bool:
        """Return whether the window has enough answers to rate the limit."""
        window = self._window
        if self._growth != SLOW_START:
            return window.answers >= WINDOW_ANSWERS * self.limit and age >= WINDOW_S
        if window.answers < CLIMB_ANSWERS * self.limit:
            return False
        round_trip = window.busy_s / window.answers
        return age >= max(CLIMB_PART * round_trip, CLIMB_WINDOW_S)

    def _close_window(self, now: float) -> None:
        window, age = self._window, self._window.age(now)
        enough = self._is_whole(age)
        if not enough and age < WINDOW_MAX_S:
            return
        self._best_pace = min(self._best_pace * FORGET, window.pace)
        queues = window.pace > QUEUEING * self._best_pace
        if queues and window.busy_s >= QUEUEING_FROM_S * window.answers:
            self._cut(QUEUED_CUT, now)
            return
        goodput = window.goodput(age)
        if window.most_in_flight < self.limit / 2:
            self._open_window()
            return
        before, self._before = self._before, None
        if enough and window.busy_s / age < SERVER_PART * self.limit:
            self._move(self._limit * SLOW_START)
            return
        if before is not None and goodput < before[1] * RISE:
            if self._growth == SLOW_START and not self._unpaid:
                self._before, self._unpaid = before, True  # a round trip is short: look once more
                self._open_window()
                return
            self._growth = STEP
            self._move(before[0] if goodput < before[1] * FALL else self._limit)
            return
        self._held += 1
        if before is None and self._growth == STEP and self._held < HOLD_WINDOWS:
            self._open_window()
            return
        if self._limit < self._maximum:
            self._before = (self._limit, goodput)
            self._move(max(self._limit + 1, self._limit * self._growth))
        else:
            self._open_window()


UNBOUNDED: Final = 1 << 30
PROBE_S: Final = 3.0
"""A probe that was not refused within so long is being worked on: a refusal needs no model. Then
the others follow."""


class InFlight:
    """Counts what is in flight.

    With ``Quota.concurrency`` an ``AdaptiveConcurrency`` says how many may be.

    A quota with ``probe`` lets one request through until one of the fleet was answered well, or was
    not refused for ``PROBE_S``: it shows whether the key works, and what the limits are, before
    hundreds are sent.
    """

    def __init__(self, quota: Quota, clock: Callable[[], float]) -> None:
        self._probe = quota.probe
        self._clock = clock
        self.control = (
            None
            if quota.concurrency is None
            else AdaptiveConcurrency(maximum=quota.concurrency, clock=clock, start=quota.start)
        )
        self.count = 0
        self.ceiling = UNBOUNDED
        """Requests in flight that are left to this process while others use the server, too."""
        self._probing_since = 0.0  # loop time
        self._proven = False  # as Redis last said, or by a good answer since

    @property
    def opens_at(self) -> float | None:
        """Loop time at which a probe counts as not refused; None when no probe is under way."""
        return self._probing_since + PROBE_S if self._probe and self.count else None

    @property
    def limit(self) -> int | None:
        """Requests in flight allowed by the server's behaviour; None = not controlled."""
        most = UNBOUNDED if self.control is None else self.control.limit
        bound = min(most, self.ceiling)
        return None if bound == UNBOUNDED else bound

    @property
    def most(self) -> int | None:
        """The largest that ``limit`` may become."""
        return None if self.control is None else self.control.maximum

    @property
    def climbing(self) -> bool:
        return self.control is not None and self.control.climbing

    def note(self, *, proven: bool) -> None:
        """Take from Redis whether one of the fleet was answered well."""
        self._proven = proven

    def places(self) -> int:
        """Return how many more may be granted now."""
        most = self.ceiling
        if self._probe and not self._proven and not self._probe_is_accepted():
            most = min(most, 1)
        elif self.control is not None:
            most = min(most, self.control.limit)
        return most - self.count

    def _probe_is_accepted(self) -> bool:
        return self.count > 0 and self._clock() >= self._probing_since + PROBE_S

    def granted(self) -> None:
        """Note that a ticket was granted."""
        if not self.count:
            self._probing_since = self._clock()
        self.count += 1

    def taken_back(self) -> None:
        """Note that it was taken back before its caller had it."""
        self.count -= 1

    def sent(self) -> None:
        """Note that the caller has it, and sends."""
        if self.control is not None:
            self.control.started()

    def ended(self, since: float, feedback: Feedback | None) -> None:
        """Note that its request, sent at ``since`` (loop time), is over."""
        self.count -= 1
        if feedback is not None and feedback.signal is OK:
            self._proven = True  # the next call reports it to Redis
        if self.control is not None:
            signal = Signal.REFUSED if feedback is None else feedback.signal
            tokens = 0.0 if feedback is None else feedback.output_tokens
            self.control.finished(signal, self._clock() - since, tokens)
