"""After a restart the rate comes back along a slope, and flattens when the provider says that it
grows too steeply."""

from __future__ import annotations

import math

import pytest
from one_quota import BURST_S, Redis, both, tokens
from servers import RedisServer

from penstock_ratelimit.rates import Slope
from penstock_ratelimit.store.messages import ProviderReport

LONG = 11.0
"""A pause that is a restart."""
SLOW = 1.5 ** (1 / 15)
"""Growth per minute after a ramp signal."""


def paused(server: RedisServer, slope: Slope | None = None, *, pause_s: float = LONG) -> Redis:
    """A quota at the end of a pause, with a bucket that had been full."""
    redis = Redis(server, tokens(slope=slope))
    redis.sleep(100)
    redis.reserve(pause_s=pause_s)
    redis.sleep(pause_s)
    return redis


def started(redis: Redis, seconds: float, cost: float = 10.0) -> float:
    """Tokens that start within so many seconds from now, when there is always a waiter."""
    waits = redis.reserve(*[(cost,)] * 2500).waits_s
    return cost * sum(wait <= seconds for wait in waits)


def test_a_short_pause_is_no_restart(redis_server: RedisServer) -> None:
    """Ten seconds without a start change nothing: the whole rate and the whole burst."""
    redis = paused(redis_server, pause_s=10.0)
    assert redis.report().share == 1
    assert redis.reserve((500,)).waits_s == [0]


def test_a_long_pause_brings_a_quarter_back_that_doubles_every_five_seconds(
    redis_server: RedisServer,
) -> None:
    """The share in force is 25, 50 and 100 % after 0, 5 and 10 s, and stays."""
    redis = paused(redis_server)
    shares = []
    for _ in range(4):
        shares.append(redis.report().share)
        redis.sleep(5)
    assert shares == [0.25, 0.5, 1, 1]
    assert not redis.raw.hexists(redis.hash.key, "rf")


def test_starts_follow_the_slope(redis_server: RedisServer) -> None:
    """What starts within t seconds is the slope's integral plus a quarter of a burst, given ahead
    or step by step."""
    scale = 5 / math.log(2)
    for seconds, share in ((5, scale * 0.25), (10, scale * 0.75), (15, scale * 0.75 + 5)):
        redis = paused(redis_server)
        assert started(redis, seconds) == pytest.approx(1000 * (share + 0.25 * BURST_S), abs=20)
    redis, total = paused(redis_server), 0.0
    for _ in range(150):
        total += 10 * len(redis.reserve(*[(10,)] * 50, ahead_s=0).waits_s)
        redis.sleep(0.1)
    assert total == pytest.approx(1000 * (scale * 0.75 + 4.9 + 0.25 * BURST_S), abs=150)


def test_the_burst_is_a_part_of_itself_too(redis_server: RedisServer) -> None:
    """Right after the restart an eighth of a second's worth starts at once."""
    redis = paused(redis_server)
    assert 5 * len(redis.reserve(*[(5,)] * 64, ahead_s=0).waits_s) == 1000 * BURST_S * 0.25


def test_a_large_item_gets_its_turn_on_the_slope(redis_server: RedisServer) -> None:
    """An item larger than the shrunken burst waits a moment, not for ever, and those behind it wait
    for its debt."""
    redis = paused(redis_server)
    first, second = redis.reserve((500,), (10,)).waits_s
    assert 0 < first < 1.4
    assert first < second < 3.2


def test_a_slope_of_one_is_none(redis_server: RedisServer) -> None:
    """Who wants no slope says so."""
    redis = paused(redis_server, Slope(start=1.0))
    assert redis.reserve((500,)).waits_s == [0]


def test_the_slope_waits_for_the_end_of_the_pause(redis_server: RedisServer) -> None:
    """A pause of an hour is followed by a slope, not by what the slope would have become meanwhile;
    telling it twice is once."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    redis.reserve(pause_s=3600)
    redis.reserve(pause_s=3600)
    waits = redis.reserve(*[(10,)] * 64).waits_s
    assert sum(wait <= 3600 for wait in waits) == 12
    assert waits[-1] - 3600 == pytest.approx(1.7, abs=0.2)


@pytest.mark.parametrize(("idle_s", "share"), [(59, 1), (61, 0.1)])
def test_idleness_is_a_restart_where_the_slope_says_so(
    redis_server: RedisServer, idle_s: float, share: float
) -> None:
    """After the last start and so many seconds without one, the next start begins a slope; asking
    for nothing does not."""
    redis = Redis(redis_server, tokens(slope=Slope(0.1, 10.0, after_idle_s=60)))
    redis.reserve((10,))
    redis.sleep(30)
    redis.reserve((10,))
    redis.sleep(idle_s)
    assert redis.report().share == 1
    assert redis.reserve((10,)).health.share == share


def test_idleness_is_no_restart_by_default(redis_server: RedisServer) -> None:
    """A day without work, then the whole rate."""
    redis = Redis(redis_server, tokens())
    redis.reserve((10,))
    redis.sleep(86_400)
    assert redis.reserve((10,)).health.share == 1


def test_a_ramp_signal_cuts_the_share_once_per_episode(redis_server: RedisServer) -> None:
    """30 % less for all signals of one overshoot, then 1.5 times more each quarter of an hour."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    for _ in range(4):
        redis.report(ProviderReport(ramp=3))
        redis.sleep(1)
    assert redis.report().share == pytest.approx(0.7, rel=0.01)
    redis.sleep(60)
    assert redis.report().share == pytest.approx(0.7 * SLOW, rel=0.01)
    redis.report(ProviderReport(ramp=1))
    assert redis.report().share == pytest.approx(0.7 * 0.7 * SLOW, rel=0.01)
    redis.sleep(3600)
    assert redis.report().share == 1


def test_ramp_signals_never_stop_the_quota(redis_server: RedisServer) -> None:
    """However often the provider says so, a twentieth of the rate is left."""
    redis = Redis(redis_server, tokens())
    for _ in range(30):
        redis.sleep(6)
        redis.report(ProviderReport(ramp=1))
    assert redis.report().share == pytest.approx(0.05, rel=0.01)
    assert 10 * len(redis.reserve(*[(10,)] * 64, ahead_s=10.0).waits_s) == pytest.approx(
        500, abs=30
    )


def test_a_restart_on_a_flattened_slope_keeps_it_flat(redis_server: RedisServer) -> None:
    """A pause after a ramp signal holds the share and does not put a steeper slope in its place."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    redis.reserve(report=ProviderReport(ramp=1), pause_s=60)
    redis.sleep(60)
    assert redis.report().share == pytest.approx(0.7)
    redis.sleep(20)
    assert redis.report().share == pytest.approx(0.7, rel=0.02)


def test_new_limits_on_the_slope_keep_the_level(redis_server: RedisServer) -> None:
    """Installing other terms in the middle of a slope counts the time since the last call by the
    slope, too."""
    redis, same = paused(redis_server), paused(redis_server)
    for one in (redis, same):
        assert one.reserve((125,)).waits_s == [0]
        one.sleep(2)
    quota = redis.quota
    redis.adopt(
        type(quota)(
            quota.id, quota.limits, burst_s=quota.burst_s, margin=1.0, caps={"tokens": 5000}
        )
    )
    assert redis.reserve((250,)).waits_s == pytest.approx(same.reserve((250,)).waits_s, abs=1e-5)


def test_a_clock_that_steps_back_takes_the_slope_along(redis_server: RedisServer) -> None:
    """After a step back of an hour the share is what it was before it."""
    redis = paused(redis_server)
    redis.sleep(5)
    redis.reserve()
    redis.sleep(-3600)
    assert redis.report().share == 0.5
    redis.sleep(5)
    assert redis.report().share == 1


def test_both_dimensions_follow_one_slope(redis_server: RedisServer) -> None:
    """Requests and tokens come back together."""
    redis = Redis(redis_server, both())
    redis.sleep(100)
    redis.reserve(pause_s=LONG)
    redis.sleep(LONG)
    by_requests = redis.reserve(*[(1, 0)] * 30).waits_s
    tokens_only = Redis(redis_server, both())
    tokens_only.sleep(100)
    tokens_only.reserve(pause_s=LONG)
    tokens_only.sleep(LONG)
    assert tokens_only.reserve(*[(0, 100)] * 30).waits_s == pytest.approx(by_requests, abs=1e-5)
