"""Strict limits of a provider, checked together: a call is charged for all or refused.

A call is charged at admission, corrected at the end, or charged as the answer is produced. Other
clients of the same key use a fixed share.

Sources: the providers' rate-limit pages, named in penstock_ratelimit/provider/profiles.py.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from penstock_simulate.capacity import DAY_S, MINUTE_S, TEN_S, ContinuousBucket, FixedWindow, Meter
from penstock_simulate.choices import Mode
from penstock_simulate.config import SimulatorConfig


class Charge(NamedTuple):
    """Units of one call, by what can be limited. Negative ones are given back."""

    requests: int
    tokens: int
    input_tokens: int
    output_tokens: int


def charge(requests: int, input_tokens: int, output_tokens: int) -> Charge:
    return Charge(requests, input_tokens + output_tokens, input_tokens, output_tokens)


def correction(
    mode: Mode, charged: Charge, output: int, *, burndown: int, refund: bool
) -> Charge | None:
    """Return what is still due when the answer leaves; None is nothing.

    ``output``: tokens it had; ``burndown``: how many tokens each of them counts for where input and
    output share a limit; ``refund``: the call failed, and failing is free.
    """
    if refund:
        return charge(-charged.requests, -charged.input_tokens, -charged.output_tokens)
    if mode is not Mode.SETTLE:
        return None
    reserved = charged.output_tokens
    return Charge(0, output * burndown - reserved, 0, output - reserved)


Event = Callable[[float, float], None]  # (when it was due, the time now)


class Timeline:
    """Events in the order in which they are due.

    The caller looks before anything that they could change."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self.next_at = math.inf

    def add(self, at: float, event: Event) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), event))
        self.next_at = self._due[0][0]

    def run(self, now: float) -> None:
        """Run everything due by ``now``, including what these events add."""
        while self.next_at <= now:
            at, _, event = heapq.heappop(self._due)
            self.next_at = self._due[0][0] if self._due else math.inf
            event(at, now)


TOKENS_PER_CALL = 1_000  # of a foreign call where only tokens are limited
# arrivals further back are left out: no minute feels them, and a long pause costs no long catching
# up
MEMORY_S = 600.0


class ForeignLoad:
    """Takes ``share`` of each limit, room or not, so that the rest is left for the caller."""

    def __init__(self, share: float, meters: Mapping[str, Meter], seed: int) -> None:
        self.share = share
        self.taken = dict.fromkeys(meters, 0.0)  # units by dimension
        self._meters = meters
        self._random = random.Random(seed)
        self._running = False

    def start(self, timeline: Timeline, now: float) -> None:
        """Let the load begin; it goes on by itself until the share is 0."""
        if self._running or not self.share or not self._meters:
            return
        self._running, self._timeline = True, timeline
        timeline.add(now + self._gap_s(), self._arrive)

    def _arrive(self, at: float, now: float) -> None:
        if not self.share or not self._meters:
            self._running = False
            return
        at = max(at, now - MEMORY_S)
        per_s = self._per_s()
        for name, meter in self._meters.items():
            units = self.share * meter.rate / per_s
            meter.take(units, at)
            self.taken[name] = self.taken.get(name, 0.0) + units
        self._timeline.add(at + self._gap_s(), self._arrive)

    def _gap_s(self) -> float:
        return self._random.expovariate(self._per_s())

    def _per_s(self) -> float:
        """Return calls per second, by the request limit where there is one.

        So a call costs one request."""
        for name in ("requests", "requests_per_day"):
            if name in self._meters:
                return self.share * self._meters[name].rate
        return self.share * max(meter.rate for meter in self._meters.values()) / TOKENS_PER_CALL


SLOTS_PER_S = 100  # finer slots cost memory on every call and show nothing more


class LastSecond:
    """The calls admitted within the last second, in slots of 10 ms; a slot leaves as a whole."""

    def __init__(self) -> None:
        self._sum = [0] * len(Charge._fields)
        self._now = [0] * len(Charge._fields)  # in the newest slot
        self._past: deque[tuple[int, list[int]]] = deque()  # what older slots hold, by their number
        self._slot = 0

    def add(self, now: float, charge: Charge) -> list[int]:
        """Return the sum with this one, by the parts of a charge."""
        slot = int(now * SLOTS_PER_S)
        if slot != self._slot:
            self._turn(slot)
        newest, total = self._now, self._sum
        for part, units in enumerate(charge):
            newest[part] += units
            total[part] += units
        return total

    def _turn(self, slot: int) -> None:
        past = self._past
        past.append((self._slot, self._now))
        self._slot, self._now = slot, [0] * len(Charge._fields)
        while past and past[0][0] <= slot - SLOTS_PER_S:
            _, gone = past.popleft()
            self._sum = [units - left for units, left in zip(self._sum, gone, strict=True)]


WINDOWS_S = {"10s": TEN_S, "minute": MINUTE_S}


class Dimension(NamedTuple):
    """One thing that is limited: the setting of its limit, and which part of a charge counts."""

    setting: str
    part: int  # of Charge
    per_s: float = MINUTE_S  # the span that the setting is a limit for


REQUESTS, TOKENS, INPUT, OUTPUT = range(len(Charge._fields))
WITH_OUTPUT = (TOKENS, OUTPUT)

DIMENSIONS: Mapping[str, Dimension] = {
    "requests": Dimension("rpm", REQUESTS),
    "tokens": Dimension("tpm", TOKENS),
    "input_tokens": Dimension("itpm", INPUT),
    "output_tokens": Dimension("otpm", OUTPUT),
    "requests_per_day": Dimension("rpd", REQUESTS, DAY_S),
    "tokens_per_day": Dimension("tpd", TOKENS, DAY_S),
}


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A call that does not fit: what it ran into, and when it would fit (infinite: never)."""

    dimension: str
    wait_s: float
    limit: float  # units per minute, or per day
    cost: float


class KeyLimits:
    """The meters of one key, what other clients do to them, and the accounts of both."""

    def __init__(self, config: SimulatorConfig) -> None:
        self.meters: dict[str, Meter] = {}
        self._timeline = Timeline()
        self._foreign = ForeignLoad(config.foreign_share, self.meters, config.seed)
        self._last_second = LastSecond()
        self._peaks: dict[str, float] = {}
        self._wasted: dict[str, float] = {}  # units that refused calls used up
        self._set(config, 0.0)

    def change(self, config: SimulatorConfig, now: float) -> None:
        """Change the limits from ``now`` on.

        What is used stays used, and a new limit starts full."""
        self.catch_up(now)
        self._set(config, now)

    def _set(self, config: SimulatorConfig, now: float) -> None:
        self._charge_failed = config.charge_failed
        for name, dimension in DIMENSIONS.items():
            limit = getattr(config, dimension.setting)
            if limit is None:
                for accounts in (self.meters, self._peaks, self._wasted, self._foreign.taken):
                    accounts.pop(name, None)
            elif name in self.meters:
                self.meters[name].change(limit / dimension.per_s, now)
            else:
                self.meters[name] = _meter(name, limit / dimension.per_s, config)
                self._peaks[name] = 0.0
        # What a call is measured by, in this order: the dimension, its part of a charge, its meter.
        self._measured = [
            (name, DIMENSIONS[name].part, meter) for name, meter in self.meters.items()
        ]
        self._foreign.share = config.foreign_share

    def catch_up(self, now: float) -> None:
        """Let everything happen that was due by ``now``."""
        self._foreign.start(self._timeline, now)
        if self._timeline.next_at <= now:
            self._timeline.run(now)

    def admit(self, cost: Charge, now: float) -> OverLimit | None:
        """Charge a call that fits, and return None.

        A refused one costs a request, as far as one is left."""
        if not self._measured:
            return None
        self.catch_up(now)
        over = self._over(cost, now)
        if over is not None:
            self._waste(now)
            return over
        second = self._last_second.add(now, cost)
        for name, part, meter in self._measured:
            meter.take(cost[part], now)
            peak = second[part] + meter.drain
            if peak > self._peaks[name]:
                self._peaks[name] = peak
        return None

    def correct(self, due: Charge, at: float) -> None:
        """Charge more, or give back, at a time that is known already."""

        def happen(when: float, _now: float) -> None:
            for _, part, meter in self._measured:
                if due[part]:
                    meter.take(due[part], when)

        self._timeline.add(at, happen)

    def produce(self, output: int, start: float, end: float) -> None:
        """Charge ``output`` tokens evenly between the two times, or at once where they are one."""
        if end <= start:
            self.correct(charge(0, 0, output), start)
            return
        per_s = output / (end - start)
        self._timeline.add(start, lambda at, _: self._flow(per_s, at))
        self._timeline.add(end, lambda at, _: self._flow(-per_s, at))

    def stats(self, now: float) -> dict[str, dict[str, float]]:
        """Return the use of each dimension, in its units.

        Utilisation is ``accepted / (per_s x seconds)``. A peak is of any one second."""
        self.catch_up(now)
        return {name: self._account(name, meter, now) for name, meter in self.meters.items()}

    def _account(self, name: str, meter: Meter, now: float) -> dict[str, float]:
        available = meter.available(now)  # asked first: it brings what is used up to now
        wasted, taken = self._wasted.get(name, 0.0), self._foreign.taken.get(name, 0.0)
        found = {
            "per_s": meter.rate,
            "accepted": meter.used - wasted - taken,
            "used_by_refused": wasted,
            "used_by_foreign": taken,
            "peak_1s": self._peaks[name],
            "available": available,
        }
        return {key: round(value, 6) for key, value in found.items()}

    def _over(self, cost: Charge, now: float) -> OverLimit | None:
        for name, part, meter in self._measured:
            # A cost of 0 asks for no room, but a limit in debt lets nothing start.
            wait_s = meter.wait_s(cost[part], now)
            if wait_s > 0:
                return OverLimit(name, wait_s, meter.rate * DIMENSIONS[name].per_s, cost[part])
        return None

    def _waste(self, now: float) -> None:
        if not self._charge_failed:
            return
        for name, part, meter in self._measured:
            if part == REQUESTS and (left := min(1.0, max(0.0, meter.available(now)))):
                meter.take(left, now)
                self._wasted[name] = self._wasted.get(name, 0.0) + left

    def _flow(self, per_s: float, at: float) -> None:
        for name, part, meter in self._measured:
            if part in WITH_OUTPUT:
                meter.available(at)
                meter.drain = max(0.0, meter.drain + per_s)
                self._peaks[name] = max(self._peaks[name], meter.drain)


def _meter(name: str, rate: float, config: SimulatorConfig) -> Meter:
    dimension, metering = DIMENSIONS[name], config.metering
    if dimension.per_s == DAY_S:
        return ContinuousBucket(rate, DAY_S)
    window = metering.window if dimension.part == REQUESTS else metering.tokens_window
    return (
        FixedWindow(rate, WINDOWS_S[window])
        if window in WINDOWS_S
        else ContinuousBucket(rate, metering.depth_s)
    )
