"""What the provider says is left: others on the same key are noticed, and a healthy quota is left
alone.

A fleet in virtual time works against a strict bucket that plays the provider; only the script is
real.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from one_quota import Redis, tokens
from servers import RedisServer

from penstock_ratelimit.store.messages import ProviderReport, Remaining

RATE = 1000.0
COST = 25.0
JITTER_S = 0.04
TURN_S = 0.1
AHEAD_S = 1.0


@dataclass
class Provider:
    """A strict bucket: refuses what does not fit."""

    depth_s: float
    rounding: float = 1.0

    def __post_init__(self) -> None:
        self.level, self.at = RATE * self.depth_s, 0.0

    def take(self, now: float, cost: float) -> bool:
        self.level = min(RATE * self.depth_s, self.level + RATE * (now - self.at))
        self.at = now
        if fits := self.level >= cost:
            self.level -= cost
        return fits

    @property
    def remaining(self) -> float:
        return round(self.level / self.rounding) * self.rounding


@dataclass
class Second:
    sent: int = 0
    refused: int = 0
    units: float = 0.0


@dataclass
class Fleet:
    """One dispatcher that always has work, and others who use the same key with a part of its rate
    from second 10 on."""

    redis: Redis
    provider: Provider
    latency_s: float
    foreign: float = 0.0
    foreign_until: float = 1e9
    looks: bool = True
    demand: float = 1.0
    seconds: list[Second] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(7)
        self.events: list[tuple[float, int, str, tuple[float, ...]]] = []
        self.order = itertools.count()
        self.unstarted: dict[float, float] = {}  # counter -> start time
        self.seen: tuple[float, float, float] | None = None
        self.throttled, self.paused_until, self.retry_at = 0, 0.0, 0.0
        self.at(0, "ask")
        if self.foreign:
            self.at(10, "foreign")

    def at(self, when: float, kind: str, *details: float) -> None:
        heapq.heappush(self.events, (when, next(self.order), kind, details))

    def work(self, until: float) -> Fleet:
        """Up to this second; going on later is fine."""
        self.seconds += [Second() for _ in range(len(self.seconds), int(until) + 1)]
        while self.events[0][0] <= until:
            now, _, kind, details = heapq.heappop(self.events)
            getattr(self, f"on_{kind}")(now, *details)
        return self

    def on_ask(self, now: float) -> None:
        self.at(now + TURN_S, "ask")
        self.redis.clock.us = 10**15 + round(now * 1e6)
        room = round(AHEAD_S * RATE / COST) - len(self.unstarted)
        if self.demand < 1:
            room = min(room, self.rng.random() < self.demand * RATE * TURN_S / COST)
        items = [(COST,)] * room if now >= self.retry_at else []
        seen = (
            {"tokens": Remaining(self.seen[0], self.seen[1], now - self.seen[2])}
            if self.seen and self.looks
            else {}
        )
        reply = self.redis.reserve(
            *items,
            ahead_s=30,
            pause_s=max(0.0, self.paused_until - now),
            report=ProviderReport(throttled=self.throttled),
            remaining=seen,
        )
        self.seen, self.throttled = None, 0
        self.retry_at = now + reply.retry_s
        for nth, wait_s in enumerate(reply.waits_s, start=1):
            counter = reply.counters[0] + nth * COST
            self.unstarted[counter] = now + wait_s
            self.at(now + wait_s, "start", counter)

    def on_start(self, now: float, counter: float) -> None:
        if self.unstarted.get(counter) == now:  # not recalled
            del self.unstarted[counter]
            self.at(now + self.rng.uniform(0, JITTER_S), "arrive", counter, now)

    def on_arrive(self, now: float, counter: float, sent_at: float) -> None:
        second = self.seconds[int(now)]
        second.sent += 1
        if self.provider.take(now, COST):
            second.units += COST
            answers_at = now + self.rng.lognormvariate(0, 0.4) * self.latency_s
            self.at(answers_at, "answer", self.provider.remaining, counter, sent_at)
            return
        second.refused += 1
        self.throttled += 1
        retry_after = 1.0 + int((COST - self.provider.level) / RATE)
        self.paused_until = max(self.paused_until, now + retry_after)
        self.unstarted = {key: at for key, at in self.unstarted.items() if at >= self.paused_until}

    def on_answer(self, _: float, remaining: float, counter: float, sent_at: float) -> None:
        if self.seen is None or sent_at > self.seen[2]:
            self.seen = remaining, counter, sent_at

    def on_foreign(self, now: float) -> None:
        self.provider.take(now, COST)
        if now < self.foreign_until:
            self.at(now + self.rng.expovariate(self.foreign * RATE / COST), "foreign")

    def refused(self, first: int, last: int) -> float:
        """Part of what was sent in these seconds."""
        rows = self.seconds[first:last]
        return sum(row.refused for row in rows) / sum(row.sent for row in rows)

    def used(self, first: int, last: int) -> float:
        """Part of the provider's limit in these seconds."""
        return sum(row.units for row in self.seconds[first:last]) / RATE / (last - first)


DEPTHS = [60.0, 10.0, 1.0]


def fleet(
    server: RedisServer,
    depth_s: float,
    *,
    rounding: float = 1.0,
    latency_s: float = 5.0,
    **more: Any,
) -> Fleet:
    return Fleet(
        Redis(server, tokens(margin=0.995)), Provider(depth_s, rounding), latency_s, **more
    )


@pytest.mark.parametrize("depth_s", DEPTHS)
def test_a_healthy_quota_is_left_alone(redis_server: RedisServer, depth_s: float) -> None:
    """Without others on the key, what is left never holds a request back, however deep the
    provider's bucket is."""
    looking = fleet(redis_server, depth_s).work(40)
    assert looking.used(5, 40) >= 0.98
    assert looking.refused(0, 40) == 0


@pytest.mark.parametrize("depth_s", DEPTHS)
def test_others_on_the_key_are_made_room_for(redis_server: RedisServer, depth_s: float) -> None:
    """When others take 30 %, less than one in a hundred is refused, and the fleet settles on what
    they leave."""
    shared = fleet(redis_server, depth_s, foreign=0.3, latency_s=10.0)
    # most of a minute's depth is gone already
    shared.provider.level = min(shared.provider.level, 8 * RATE)
    shared.work(120)
    assert shared.refused(0, 120) < 0.01
    assert shared.used(60, 120) == pytest.approx(0.7, abs=0.04)


def test_without_looking_more_is_refused(redis_server: RedisServer) -> None:
    """The same fleet that does not look at what is left meets refusals: the test above can fail."""
    blind = fleet(redis_server, 10.0, foreign=0.3, looks=False).work(100)
    assert blind.refused(40, 100) > 0.005


def test_when_the_others_are_gone_the_rate_comes_back(redis_server: RedisServer) -> None:
    """Half a minute after the others stopped, the fleet uses the whole limit again."""
    shared = fleet(redis_server, 10.0, foreign=0.3, foreign_until=70.0).work(120)
    assert shared.used(50, 70) == pytest.approx(0.7, abs=0.06)
    assert shared.used(100, 120) >= 0.98


def test_remainders_rounded_to_thousands_choke_nobody(redis_server: RedisServer) -> None:
    """A provider that rounds to a whole second of rate gets the whole rate, of a bucket of a minute
    or of ten seconds."""
    for depth_s in (60.0, 10.0):
        looking = fleet(redis_server, depth_s, rounding=1000.0).work(30)
        assert looking.used(5, 30) >= 0.98


def test_a_quiet_fleet_that_gets_busy_is_not_held_back(redis_server: RedisServer) -> None:
    """What a shallow bucket let run over while the fleet was idle is not taken for others."""
    surging = fleet(redis_server, 1.0, latency_s=10.0, demand=0.2).work(40)
    surging.demand = 1.0
    surging.work(80)
    assert surging.used(42, 80) >= 0.98
    assert surging.refused(42, 80) == 0


# --- one sighting at a time
# ------------------------------------------------------------------------------------------


def full(server: RedisServer) -> Redis:
    redis = Redis(server, tokens())
    redis.sleep(100)
    return redis


def at_once(redis: Redis) -> float:
    return sum(10 for wait in redis.reserve(*[(10,)] * 64, ahead_s=0).waits_s if wait == 0)


def test_less_left_than_believed_takes_hold_at_once(redis_server: RedisServer) -> None:
    """A bucket of a minute with 2,200 left, of which two seconds are headroom: 200 may start, not
    500."""
    redis = full(redis_server)
    redis.reserve(remaining={"tokens": Remaining(60_000, 0, 0)})
    redis.sleep(1)
    redis.reserve(remaining={"tokens": Remaining(2_200, 0, 0)})
    assert at_once(redis) == 200


def test_more_left_than_believed_gives_nothing_at_once(redis_server: RedisServer) -> None:
    """However much the provider has left, no more than the burst starts."""
    redis = full(redis_server)
    redis.reserve(*[(10,)] * 50, remaining={"tokens": Remaining(1e9, 0, 0)})
    redis.sleep(0.1)
    redis.reserve(remaining={"tokens": Remaining(1e9, 0, 0)})
    assert at_once(redis) == 100


def test_what_was_charged_and_refilled_since_is_counted_in(redis_server: RedisServer) -> None:
    """200 left twelve seconds ago, 10,000 charged and 12,000 refilled since: 2,200, of which 2,000
    are headroom."""
    redis = full(redis_server)
    redis.reserve(remaining={"tokens": Remaining(60_000, 0, 0)})
    redis.reserve(*[(1000,)] * 10)
    redis.sleep(12)
    redis.reserve(remaining={"tokens": Remaining(200, 0, 12)})
    assert at_once(redis) == pytest.approx(200, abs=10)


def test_an_older_sighting_than_the_last_is_ignored(redis_server: RedisServer) -> None:
    """Answers come out of order; only the newest says what is left."""
    redis = full(redis_server)
    redis.reserve(remaining={"tokens": Remaining(60_000, 0, 1)})
    redis.reserve(remaining={"tokens": Remaining(0, 0, 20)})
    assert at_once(redis) == 500


def test_what_ran_over_is_not_taken_for_others(redis_server: RedisServer) -> None:
    """A bucket that was full for a while let its refill run over: that is no traffic of others."""
    redis = full(redis_server)
    redis.reserve(remaining={"tokens": Remaining(1000, 0, 0)})
    redis.sleep(10)
    redis.reserve(remaining={"tokens": Remaining(300, 700, 0)})
    assert redis.field("f:tokens") < 100


def test_what_others_took_lately_is_expected_to_go_on(redis_server: RedisServer) -> None:
    """Where little is left, the refill since an old sighting is credited without what others take
    of it."""
    redis = full(redis_server)
    redis.reserve(remaining={"tokens": Remaining(60_000, 0, 0)})
    redis.sleep(60)
    redis.reserve(remaining={"tokens": Remaining(10_000, 0, 40)})
    assert redis.field("f:tokens") == pytest.approx(1000)
    redis.sleep(10)
    redis.reserve(remaining={"tokens": Remaining(2_200, 0, 40)})
    assert at_once(redis) < 500


def test_an_odd_header_cannot_stop_the_quota(redis_server: RedisServer) -> None:
    """Whatever it says is left, a request is tried within a quarter of a minute."""
    redis = full(redis_server)
    redis.reserve(remaining={"tokens": Remaining(60_000, 0, 0)})
    redis.sleep(1)
    redis.reserve(remaining={"tokens": Remaining(-1e12, 0, 0)})
    assert redis.reserve((10,)).waits_s[0] <= 15
