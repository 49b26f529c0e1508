"""Machines that work on calls, steep ramps, the account and the budget bound calls.

A meter is how much of one thing may still be used: a bucket that refills all the time, or a fixed
window. Time is passed in.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import deque
from itertools import accumulate
from typing import Protocol

from penstock_simulate.choices import Crowded
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.reply import Turn


class ServerSlots:
    """An unbounded first-come-first-served queue in front of ``slots`` equal servers.

    Times are known at once."""

    def __init__(self, slots: int) -> None:
        self._ends: list[float] = []  # when each server is free, a heap
        self._starts: deque[float] = deque()  # of the calls that wait, the earliest first
        self._slots = slots

    def enter(self, now: float, service_s: float) -> float:
        """Return the seconds that a call waits before its ``service_s`` seconds begin."""
        if len(self._ends) < self._slots:
            heapq.heappush(self._ends, now + service_s)
            return 0.0
        start = max(now, self._ends[0])
        heapq.heapreplace(self._ends, start + service_s)
        self._forget(now)
        if start > now:
            self._starts.append(start)
        return start - now

    def change(self, slots: int) -> None:
        """Change the number of servers.

        More are there at once; with fewer, those that are free last stay."""
        self._slots = slots
        while len(self._ends) > slots:
            heapq.heappop(self._ends)

    def running(self, now: float) -> int:
        return sum(1 for end in self._ends if end > now)

    def waiting(self, now: float) -> int:
        self._forget(now)
        return len(self._starts)

    def _forget(self, now: float) -> None:
        while self._starts and self._starts[0] <= now:
            self._starts.popleft()


class PriorityQueue:
    """The same queue in the order of the calls' priorities, lower first; none is interrupted."""

    def __init__(self, slots: int) -> None:
        self._ends: list[float] = []  # when each server is free, a heap
        self._queue: list[Turn] = []  # a heap
        self._slots, self._entered = slots, 0

    def enter(self, now: float, service_s: float, priority: int) -> Turn:
        self._catch_up(now)
        self._entered += 1
        turn = Turn(priority, self._entered, now, service_s)
        heapq.heappush(self._queue, turn)
        self._catch_up(now)
        return turn

    def wait_s(self, turn: Turn, now: float) -> float:
        """Return the seconds until it begins, if no other passes it; 0 once it has begun."""
        self._catch_up(now)
        if turn.start is not None:
            return 0.0
        ends, start = list(self._ends), now
        for one in sorted(self._queue):
            start = heapq.heappop(ends)
            if one is turn:
                break
            heapq.heappush(ends, start + one.service_s)
        return start - now

    def change(self, slots: int) -> None:
        """Change the number of servers, as those of the other queue."""
        self._slots = slots
        while len(self._ends) > slots:
            heapq.heappop(self._ends)

    def running(self, now: float) -> int:
        self._catch_up(now)
        return sum(1 for end in self._ends if end > now)

    def waiting(self, now: float) -> int:
        self._catch_up(now)
        return len(self._queue)

    def _catch_up(self, now: float) -> None:
        """Begin what has had its turn by now, each call when a server was free for it."""
        while self._queue and (len(self._ends) < self._slots or self._ends[0] <= now):
            free = heapq.heappop(self._ends) if len(self._ends) >= self._slots else now
            turn = heapq.heappop(self._queue)
            turn.start = max(free, turn.arrived)
            heapq.heappush(self._ends, turn.start + turn.service_s)


Queue = ServerSlots | PriorityQueue


def resized(slots: Queue | None, config: SimulatorConfig) -> Queue | None:
    """Return the queue under these settings, with the calls that are in it.

    It is None where none is kept.
    """
    metering = config.metering
    if metering.crowded != Crowded.QUEUED or metering.max_concurrency is None:
        return None
    if slots is None:
        kind = PriorityQueue if config.by_priority else ServerSlots
        return kind(metering.max_concurrency)
    slots.change(metering.max_concurrency)
    return slots


TTFT = "vllm:time_to_first_token_seconds"
QUEUE_TIME = "vllm:request_queue_time_seconds"
BOUNDS_S = {  # as vLLM has them
    TTFT: (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    QUEUE_TIME: (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
        *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
}
MEANINGS = {
    TTFT: "Histogram of time to first token in seconds.",
    QUEUE_TIME: "Histogram of time spent in WAITING phase for request.",
}


class Latencies:
    """vLLM's histograms: each call is in them from the moment that there is something to see.

    Its first token when it comes, and its time in the queue once it has ended."""

    def __init__(self) -> None:
        self._coming: list[tuple[float, str, float]] = []  # a heap by time; of calls in flight
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in BOUNDS_S.items()}
        self._sums = dict.fromkeys(BOUNDS_S, 0.0)

    def add(self, now: float, wait_s: float, first_s: float, whole_s: float) -> None:
        """Add a call that waits, then takes so long to its first token and to its end."""
        self._catch_up(now)
        ttft_s = wait_s + first_s
        heapq.heappush(self._coming, (now + ttft_s, TTFT, ttft_s))
        heapq.heappush(self._coming, (now + wait_s + whole_s, QUEUE_TIME, wait_s))

    def text(self, now: float, labels: str) -> str:
        """Write them as Prometheus text."""
        self._catch_up(now)
        return "".join(self._histogram(name, labels) for name in BOUNDS_S)

    def _catch_up(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            _, name, seconds = heapq.heappop(self._coming)
            self._counts[name][bisect_left(BOUNDS_S[name], seconds)] += 1
            self._sums[name] += seconds

    def _histogram(self, name: str, labels: str) -> str:
        lines = [f"# HELP {name} {MEANINGS[name]}", f"# TYPE {name} histogram"]
        bounds = [*map(str, BOUNDS_S[name]), "+Inf"]
        counts = list(accumulate(self._counts[name]))
        for bound, count in zip(bounds, counts, strict=True):
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(count)}')
        lines.append(f"{name}_sum{{{labels}}} {self._sums[name]}")
        lines.append(f"{name}_count{{{labels}}} {float(counts[-1])}")
        return "\n".join(lines) + "\n"


def labels_of(model: str) -> str:
    return f'engine="0",model_name="{model}"'


def gauges(running: int, waiting: int, model: str) -> str:
    """Write vLLM's two queue gauges as Prometheus text."""
    labels = f"{{{labels_of(model)}}}"
    rows = (
        ("vllm:num_requests_running", "Number of requests in model execution batches.", running),
        ("vllm:num_requests_waiting", "Number of requests waiting to be processed.", waiting),
    )
    return "".join(
        f"# HELP {name} {meaning}\n# TYPE {name} gauge\n{name}{labels} {float(value)}\n"
        for name, meaning, value in rows
    )


TOKENS_PER_PRICE = 1e6  # prices are per million tokens


class Wallet:
    """The money that was spent, against what the configuration allows."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.spent_usd = 0.0
        self.ordinary_usd = 0.0  # the same without service tiers and the discount of batches
        self.change(config)

    def change(self, config: SimulatorConfig) -> None:
        """Change the credit and keep the spending: with more of it the account works again."""
        self._calls, self._usd = config.credit_calls, config.credit_usd
        self._usd_in = config.usd_per_mtok_in / TOKENS_PER_PRICE
        self._usd_out = config.usd_per_mtok_out / TOKENS_PER_PRICE
        self._usd_hour = config.usd_per_mtok_hour / TOKENS_PER_PRICE

    def empty(self, calls: int) -> bool:
        """Return whether the account is empty; ``calls`` arrived, this one included."""
        if self._calls is not None and calls > self._calls:
            return True
        return self._usd is not None and self.spent_usd >= self._usd

    def pay(
        self, input_tokens: int, output_tokens: int, price: float, cheaper: float = 0.0
    ) -> None:
        """Pay for tokens, at this part of the ordinary price.

        ``cheaper``: so many tokens of the prompt its cache takes off; below 0, it adds them."""
        ordinary = input_tokens * self._usd_in + output_tokens * self._usd_out
        self.ordinary_usd += ordinary
        self.spent_usd += price * (ordinary - cheaper * self._usd_in)

    def rent(self, token_hours: float) -> None:
        """Pay for tokens that are kept."""
        self.ordinary_usd += token_hours * self._usd_hour
        self.spent_usd += token_hours * self._usd_hour


SLOTS = 10  # a ramp's span is measured in this many slots
MINUTE_S = 60.0


class RampDetector:
    """Lets the accepted rate grow by ``percent`` within ``within_s``.

    It is measured against the best older slot.

    The span is cut into ten slots. A slot may accept ``1 + percent / 100`` times what the best slot
    accepted that lies one to two spans back, and never less than ``free_rpm`` requests per minute
    times the same. So traffic that grows no faster passes, a jump is refused, and after a pause of
    two spans the ramp starts over.
    """

    def __init__(self, percent: float, within_s: float, free_rpm: float) -> None:
        self._growth = 1 + percent / 100
        self._slot_s = within_s / SLOTS
        self._free = free_rpm / MINUTE_S * self._slot_s
        self._past: deque[int] = deque([0] * (2 * SLOTS), maxlen=2 * SLOTS)  # the newest last
        self._slot: int | None = None
        self._accepted = 0
        self._allowed = max(1.0, self._growth * self._free)

    def wait_s(self, now: float) -> float:
        """Return 0 when one more request may be accepted, else the seconds until the next slot."""
        self._turn(now)
        if self._accepted + 1 <= self._allowed or self._slot is None:
            return 0.0
        return (self._slot + 1) * self._slot_s - now

    def accepted(self) -> None:
        """Count one at the time of the last question."""
        self._accepted += 1

    def _turn(self, now: float) -> None:
        slot = int(now // self._slot_s)
        if self._slot is None:
            self._slot = slot
        if slot <= self._slot:
            return
        self._past.append(self._accepted)
        self._past.extend([0] * min(slot - self._slot - 1, 2 * SLOTS))
        self._slot, self._accepted = slot, 0
        # The slot that begins now is number 20 of the past: those from 10 slots back on are a whole
        # span old.
        best = max(list(self._past)[: SLOTS + 1])
        self._allowed = max(1.0, self._growth * max(best, self._free))


def ramp_settings(config: SimulatorConfig) -> tuple[float | None, float, float]:
    """Return what a detector is made of: while it stays the same, so does the detector."""
    return config.ramp_percent, config.ramp_s, config.ramp_free_rpm


def make_ramp(config: SimulatorConfig) -> RampDetector | None:
    percent, within_s, free_rpm = ramp_settings(config)
    return None if percent is None else RampDetector(percent, within_s, free_rpm)


TEN_S = 10.0
DAY_S = 86_400.0
# Rates are fractions, so a bucket that should be exactly full enough may miss by a rounding error.
TOLERANCE = 1e-6


class Meter(Protocol):
    """One limit.

    What it holds goes below zero when units are used that it did not grant: output, other
    clients."""

    rate: float  # units per second
    capacity: float  # what it holds when full: a single cost above this never fits
    window_s: float  # the span that its capacity is the budget of
    drain: float  # units per second that running answers use up just now
    used: float  # units used since the start, less those given back

    def available(self, now: float) -> float: ...

    def take(self, units: float, now: float) -> None:
        """Use units up, below zero where need be; negative units are given back."""
        ...

    def wait_s(self, cost: float, now: float) -> float:
        """Return the seconds until ``cost`` fits.

        0 when it fits now, infinite when it never will."""
        ...

    def reset_s(self, now: float) -> float:
        """Return the seconds until it is full again."""
        ...

    def change(self, rate: float, now: float) -> None:
        """Change the rate from now on; what is used stays used."""
        ...


class ContinuousBucket:
    """Refills all the time.

    Holds ``depth_s`` seconds of its rate (units per second), and at least one unit."""

    def __init__(self, rate: float, depth_s: float) -> None:
        self.window_s = depth_s
        self.rate = rate
        self.capacity = max(1.0, rate * depth_s)
        self.drain = 0.0
        self.used = 0.0
        self._level = self.capacity
        self._at: float | None = None

    def available(self, now: float) -> float:
        if self._at is None:
            self._at = now
        elif now > self._at:
            passed = now - self._at
            self._at = now
            self.used += passed * self.drain
            level = self._level + passed * (self.rate - self.drain)
            self._level = level if level < self.capacity else self.capacity
        return self._level

    def take(self, units: float, now: float) -> None:
        self._level = min(self.capacity, self.available(now) - units)
        self.used += units

    def wait_s(self, cost: float, now: float) -> float:
        if cost > self.capacity + TOLERANCE:
            return math.inf
        short = cost - self.available(now)
        return short / self.rate if short > TOLERANCE else 0.0

    def reset_s(self, now: float) -> float:
        return (self.capacity - self.available(now)) / self.rate

    def change(self, rate: float, now: float) -> None:
        level = self.available(now)
        self.rate, self.capacity = rate, max(1.0, rate * self.window_s)
        self._level = min(self.capacity, level)


class FixedWindow:
    """The whole budget of ``window_s`` at the start of each window, counted from the first use.

    Nothing carries over."""

    def __init__(self, rate: float, window_s: float) -> None:
        self.window_s = window_s
        self.rate = rate
        self.capacity = max(1.0, rate * window_s)
        self.drain = 0.0
        self.used = 0.0
        self._spent = 0.0  # in this window
        self._started: float | None = None
        self._at = -math.inf

    def available(self, now: float) -> float:
        if self._started is None:
            self._started = self._at = now
        elif now > self._at:
            if now - self._started >= self.window_s:
                self._started += (now - self._started) // self.window_s * self.window_s
                self._spent = (now - self._started) * self.drain
            else:
                self._spent += (now - self._at) * self.drain
            self.used += (now - self._at) * self.drain
            self._at = now
        return self.capacity - self._spent

    def take(self, units: float, now: float) -> None:
        self.available(now)
        self._spent = max(0.0, self._spent + units)
        self.used += units

    def wait_s(self, cost: float, now: float) -> float:
        if cost > self.capacity + TOLERANCE:
            return math.inf
        return 0.0 if cost <= self.available(now) + TOLERANCE else self._to_next(now)

    def reset_s(self, now: float) -> float:
        return self._to_next(now) if self.available(now) < self.capacity else 0.0

    def change(self, rate: float, now: float) -> None:
        self.available(now)
        self.rate, self.capacity = rate, max(1.0, rate * self.window_s)

    def _to_next(self, now: float) -> float:
        return self.window_s - (now - (self._started if self._started is not None else now))
