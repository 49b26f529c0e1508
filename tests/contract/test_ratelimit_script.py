"""The Lua scripts on a real Redis, with the time passed in: what they guarantee to everybody who shares a quota."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import RedisServer

from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.quota_hash import QuotaHash, Reserve, Reserved, Verdict
from penstock_ratelimit.testing import BlockingScripts

START_US = 10**15
RATES = {"requests": 10.0, "tokens": 1000.0}
BURST_S = 0.5
SLACK = 1e-3  # start times are whole microseconds

_names = itertools.count()


class Clock:
    def __init__(self) -> None:
        self.us = START_US

    def __call__(self) -> int:
        return self.us


class Redis:
    """One quota on the server, with a clock to set."""

    def __init__(self, server: RedisServer, quota: Quota) -> None:
        self.clock = Clock()
        self.raw = server.client(decode_responses=True)
        self.quota, self.terms = quota, quota.terms()
        self.hash = QuotaHash(BlockingScripts(self.raw), quota.id, clock_us=self.clock)
        self.version = self.install()

    def install(self, quota: Quota | None = None, *, replaces: str = "any", empty: bool = False) -> str:
        return run(self.hash.install((quota or self.quota).terms(), replaces=replaces, empty=empty)).version

    def reserve(
        self, *items: tuple[float, ...], settle: dict[str, float] | None = None, ahead_s: float = 1e6, **more: Any
    ) -> Reserved:
        ask = Reserve(self.version, self.terms, items, settle or {}, ahead_s, more.pop("share_s", 0.0), **more)
        return run(self.hash.reserve(ask))

    def sleep(self, seconds: float) -> None:
        self.clock.us += round(seconds * 1e6)

    def field(self, name: str) -> float:
        value = self.raw.hget(self.hash.key, name)
        assert isinstance(value, str), f"no field {name}"
        return float(value)


def run(step: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await step

    return asyncio.run(main())


def tokens(burst_s: float = BURST_S, rate: float = 1000.0) -> Quota:
    return Quota(f"t{next(_names)}", {"tokens": PerSecond(rate)}, burst_s=burst_s, margin=1.0)


def both() -> Quota:
    limits = {name: PerSecond(rate) for name, rate in RATES.items()}
    return Quota(f"b{next(_names)}", limits, burst_s=BURST_S, margin=1.0)


call = st.tuples(
    st.integers(0, 3_000_000),  # microseconds since the last call
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 1000)), max_size=8),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(call, min_size=1, max_size=12), ahead_s=st.sampled_from([0.0, 1.0, 30.0]))
def test_no_interval_exceeds_the_rate_plus_one_burst(
    redis_server: RedisServer, calls: list[tuple[int, list[tuple[int, int]]]], ahead_s: float
) -> None:
    """In every interval, what starts costs at most rate times time plus one burst, plus one item that was too large."""
    redis = Redis(redis_server, both())
    starts: list[tuple[float, tuple[float, ...]]] = []
    for pause_us, items in calls:
        redis.clock.us += pause_us
        reply = redis.reserve(*items, ahead_s=ahead_s)
        now = (redis.clock.us - START_US) / 1e6
        starts += [(now + wait, item) for wait, item in zip(reply.waits_s, items, strict=False)]
    for column, rate in enumerate(RATES.values()):
        for first in range(len(starts)):
            spent = 0.0
            for at, item in starts[first:]:
                spent += item[column]
                debt = max(item[column] - rate * BURST_S, 0.0)
                assert spent - debt <= rate * (at - starts[first][0] + BURST_S) + rate * SLACK


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(call, min_size=1, max_size=12))
def test_start_times_are_first_come_first_served(
    redis_server: RedisServer, calls: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    """Nobody who came later starts earlier, whatever he costs."""
    redis = Redis(redis_server, both())
    last = 0.0
    for pause_us, items in calls:
        redis.clock.us += pause_us
        for wait_s in redis.reserve(*items).waits_s:
            start = redis.clock.us / 1e6 + wait_s
            assert start >= last - SLACK
            last = start


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    charges=st.lists(st.tuples(st.integers(0, 500_000), st.integers(1, 1000), st.floats(-1.5, 1.5)), max_size=15),
)
def test_settling_never_makes_more_room_than_was_taken(
    redis_server: RedisServer, charges: list[tuple[int, int, float]]
) -> None:
    """Whatever is settled, charged or refunded twice over, no burst is ever larger than the burst."""
    redis = Redis(redis_server, tokens())
    for pause_us, cost, part in charges:
        redis.clock.us += pause_us
        redis.reserve((cost,), settle={"tokens": cost * part})
    redis.sleep(0.001)
    at_once = [wait for wait in redis.reserve(*[(10,)] * 64).waits_s if wait == 0]
    assert len(at_once) * 10 <= 1000 * BURST_S


def test_an_item_takes_from_all_dimensions_or_from_none(redis_server: RedisServer) -> None:
    """What must wait too long for tokens takes no request slot either."""
    redis = Redis(redis_server, both())
    redis.reserve((1, 1000))
    before = redis.field("t:requests"), redis.field("t:tokens")
    reply = redis.reserve((1, 1000), ahead_s=0.1)
    assert reply.waits_s == []
    assert reply.retry_s == pytest.approx(1.5 - 0.1, abs=1e-5)
    assert (redis.field("t:requests"), redis.field("t:tokens")) == before


def test_a_process_gets_no_more_than_its_share_per_call(redis_server: RedisServer) -> None:
    """A call that has advanced the quota by its share gets no further item, so that others come in between."""
    redis = Redis(redis_server, tokens())
    assert len(redis.reserve(*[(100,)] * 20, share_s=0.35).waits_s) == 4


def test_settling_alone_needs_no_items(redis_server: RedisServer) -> None:
    """An idle process can settle without asking for anything."""
    redis = Redis(redis_server, tokens())
    before = redis.field("t:tokens")
    reply = redis.reserve(settle={"tokens": 250})
    assert (reply.verdict, reply.waits_s) == (Verdict.OK, [])
    assert redis.field("t:tokens") - before == pytest.approx(250_000)


def test_a_pause_is_shared_and_only_grows(redis_server: RedisServer) -> None:
    """After a pause nobody starts before its end; a shorter one later changes nothing."""
    redis = Redis(redis_server, tokens())
    first = redis.reserve(pause_s=5.0)
    second = redis.reserve((1,), pause_s=1.0)
    assert second.waits_s == [pytest.approx(5.0)]
    assert (second.pause_left_s, second.pause_id) == (pytest.approx(5.0), first.pause_id)
    redis.sleep(6)
    assert redis.reserve((1,)).waits_s == [0]


def test_a_small_step_back_of_the_clock_hands_out_nothing_twice(redis_server: RedisServer) -> None:
    """While Redis's clock is up to a second behind what it was, time stands still."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    assert redis.reserve((500,)).waits_s == [0]
    redis.sleep(-0.9)
    assert redis.reserve((500,)).waits_s == [pytest.approx(0.5)]
    redis.sleep(0.9)
    assert redis.reserve((500,)).waits_s == [pytest.approx(1.0)]


def test_a_large_step_back_of_the_clock_stalls_nobody(redis_server: RedisServer) -> None:
    """After a step back of an hour, waits and pauses are as long as they were before it."""
    redis = Redis(redis_server, tokens())
    redis.reserve((1000,), pause_s=2.0)
    redis.sleep(-3600)
    reply = redis.reserve((500,))
    assert reply.pause_left_s == pytest.approx(2.0)
    assert reply.waits_s == [pytest.approx(3.0)]


def test_a_step_forward_of_the_clock_gives_one_burst(redis_server: RedisServer) -> None:
    """A clock that jumps ahead by a day fills the bucket once."""
    redis = Redis(redis_server, tokens())
    redis.sleep(86_400)
    assert redis.reserve(*[(250,)] * 3).waits_s == [0, 0, pytest.approx(0.25)]


def test_a_quota_that_redis_forgot_comes_back_empty(redis_server: RedisServer) -> None:
    """After FLUSHALL nothing is granted before an install, and then without a burst."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    redis.raw.flushall()
    assert redis.reserve((1,)).verdict is Verdict.MISSING
    redis.version = redis.install(replaces="")
    assert redis.reserve((500,)).waits_s == [pytest.approx(0.5)]


def test_installing_again_changes_nothing(redis_server: RedisServer) -> None:
    """A process that starts with the same limits neither refills nor empties the bucket."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    assert redis.install() == redis.version
    assert redis.reserve((500,)).waits_s == [0]


def test_coming_back_after_an_outage_empties_the_bucket(redis_server: RedisServer) -> None:
    """What was done without Redis is unknown: nobody who comes back finds a burst, and coming twice costs no more."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    redis.install(empty=True)
    redis.install(empty=True)
    assert redis.reserve((500,)).waits_s == [pytest.approx(0.5)]


def test_new_limits_keep_the_level(redis_server: RedisServer) -> None:
    """Halving or doubling a limit keeps what is in the bucket, in units; raising it hands out no burst."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    assert redis.reserve((400,)).waits_s == [0]  # 100 of 500 left
    half = Quota(redis.quota.id, {"tokens": PerSecond(500)}, burst_s=0.5, margin=1.0)
    redis.version, redis.terms = redis.install(half), half.terms()
    assert redis.reserve((100,), (50,)).waits_s == [0, pytest.approx(0.1)]
    redis.sleep(0.1)
    double = Quota(redis.quota.id, {"tokens": PerSecond(2000)}, burst_s=0.5, margin=1.0)
    redis.version, redis.terms = redis.install(double), double.terms()
    assert redis.reserve((200,)).waits_s == [pytest.approx(0.1)]


def test_other_limits_in_force_are_told_and_nothing_is_done(redis_server: RedisServer) -> None:
    """A process with old limits learns the new ones from its next call, which changes nothing."""
    redis = Redis(redis_server, tokens())
    changed = Quota(redis.quota.id, {"tokens": PerSecond(500)}, margin=1.0)
    version = redis.install(changed)
    before = redis.field("t:tokens")
    reply = redis.reserve((1,), settle={"tokens": 100})
    assert reply.verdict is Verdict.CHANGED
    assert reply.in_force is not None
    assert (reply.in_force.version, reply.in_force.terms) == (version, changed.terms())
    assert redis.field("t:tokens") == before


def test_limits_change_by_compare_and_set(redis_server: RedisServer) -> None:
    """Of two who replace the same version, the first wins; one who only fills gaps replaces nothing."""
    redis = Redis(redis_server, tokens())
    first = Quota(redis.quota.id, {"tokens": PerSecond(500)}, margin=1.0)
    second = Quota(redis.quota.id, {"tokens": PerSecond(700)}, margin=1.0)
    won = redis.install(first, replaces=redis.version)
    assert won != redis.version
    assert redis.install(second, replaces=redis.version) == won
    assert redis.install(second, replaces="") == won
    assert redis.field("r:tokens") == 500


def test_a_dimension_that_is_no_longer_limited_is_gone(redis_server: RedisServer) -> None:
    """New limits leave no fields of old dimensions behind."""
    redis = Redis(redis_server, both())
    redis.install(Quota(redis.quota.id, {"tokens": PerSecond(500)}))
    fields = redis.raw.hkeys(redis.hash.key)
    assert sorted(fields) == ["b:tokens", "c:tokens", "config", "lt", "mg", "mga", "r:tokens", "t:tokens", "v"]


def test_rates_of_a_hundred_million_a_minute_are_exact(redis_server: RedisServer) -> None:
    """Rounding to microseconds loses nothing at high rates: ten thousand calls take as long as they should."""
    rate = 100e6 / 60
    redis = Redis(redis_server, tokens(rate=rate))
    before = redis.field("t:tokens")
    for _ in range(200):
        redis.reserve(*[(1337,)] * 50)
    assert redis.field("t:tokens") - before == pytest.approx(1e6 * 1337 * 10_000 / rate, rel=1e-4)


def test_processes_are_counted_until_they_leave_or_fall_silent(redis_server: RedisServer) -> None:
    """A heartbeat counts for its time to live; leaving is at once."""
    redis = Redis(redis_server, tokens())
    assert [run(redis.hash.heartbeat(name, 15)) for name in ("a", "b", "c")] == [1, 2, 3]
    assert run(redis.hash.heartbeat("b", 0)) == 2
    redis.sleep(16)
    assert run(redis.hash.heartbeat("a", 15)) == 1
    redis.sleep(-3600)
    assert run(redis.hash.heartbeat("d", 15)) == 1


def test_the_fleet_learns_one_pace(redis_server: RedisServer) -> None:
    """The pace is the mean time per item of the scarcest dimension, and follows what items cost."""
    redis = Redis(redis_server, both())
    assert redis.reserve(settle={"tokens": 1}).pace_s == 0
    assert redis.reserve((0, 0)).pace_s == 1e-6
    redis = Redis(redis_server, both())
    assert redis.reserve((1, 10)).pace_s == pytest.approx(0.1)
    for _ in range(10):
        pace_s = redis.reserve(*[(1, 500)] * 50).pace_s
    assert pace_s == pytest.approx(0.5, rel=0.01)
