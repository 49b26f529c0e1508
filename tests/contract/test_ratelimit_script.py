"""The Lua scripts on a real Redis, with the time passed in: what they guarantee to all who share a
quota."""

from __future__ import annotations

import pytest
from one_quota import Redis, both, run, tokens, without_limits
from servers import RedisServer

from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.store.messages import Breaker, ProviderReport, ReserveStatus


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
    """A call that has advanced the quota by its share gets no further item, so that others come in
    between."""
    redis = Redis(redis_server, tokens())
    assert len(redis.reserve(*[(100,)] * 20, share_s=0.35).waits_s) == 4


def test_settling_alone_needs_no_items(redis_server: RedisServer) -> None:
    """An idle process can settle without asking for anything."""
    redis = Redis(redis_server, tokens())
    before = redis.field("t:tokens")
    reply = redis.reserve(settle={"tokens": 250})
    assert (reply.status, reply.waits_s) == (ReserveStatus.OK, [])
    assert redis.field("t:tokens") - before == pytest.approx(250_000)


def test_a_pause_is_shared_and_only_grows(redis_server: RedisServer) -> None:
    """After a pause nothing starts before its end; a shorter one later changes nothing."""
    redis = Redis(redis_server, tokens())
    first = redis.reserve(pause_s=5.0)
    second = redis.reserve((1,), pause_s=1.0)
    assert second.waits_s == pytest.approx([5.0])
    assert second.pause_left_s == pytest.approx(5.0)
    assert second.pause_id == first.pause_id
    redis.sleep(6)
    assert redis.reserve((1,)).waits_s == [0]


def test_a_small_step_back_of_the_clock_hands_out_nothing_twice(redis_server: RedisServer) -> None:
    """While Redis's clock is up to a second behind what it was, time stands still."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    assert redis.reserve((500,)).waits_s == [0]
    redis.sleep(-0.9)
    assert redis.reserve((500,)).waits_s == pytest.approx([0.5])
    redis.sleep(0.9)
    assert redis.reserve((500,)).waits_s == pytest.approx([1.0])


def test_a_large_step_back_of_the_clock_stalls_nobody(redis_server: RedisServer) -> None:
    """After a step back of an hour, waits and pauses are as long as they were before it."""
    redis = Redis(redis_server, tokens())
    redis.reserve((1000,), pause_s=2.0)
    redis.sleep(-3600)
    reply = redis.reserve((500,))
    assert reply.pause_left_s == pytest.approx(2.0)
    assert reply.waits_s == pytest.approx([3.0])


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
    assert redis.reserve((1,)).status is ReserveStatus.MISSING
    redis.version = redis.install(replaces="")
    assert redis.reserve((500,)).waits_s == pytest.approx([0.5])


def test_installing_again_changes_nothing(redis_server: RedisServer) -> None:
    """A process that starts with the same limits neither refills nor empties the bucket."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    assert redis.install() == redis.version
    assert redis.reserve((500,)).waits_s == [0]


def test_coming_back_after_an_outage_empties_the_bucket(redis_server: RedisServer) -> None:
    """What was done without Redis is unknown: a process that comes back finds no burst, and coming
    twice costs no more."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    redis.install(empty=True)
    redis.install(empty=True)
    assert redis.reserve((500,)).waits_s == pytest.approx([0.5])


def test_new_limits_keep_the_level(redis_server: RedisServer) -> None:
    """Halving or doubling a limit keeps what is in the bucket, in units; raising it hands out no
    burst."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    assert redis.reserve((400,)).waits_s == [0]  # 100 of 500 left
    half = Quota(redis.quota.id, {"tokens": PerSecond(500)}, burst_s=0.5, margin=1.0)
    redis.version, redis.terms = redis.install(half), half.terms()
    assert redis.reserve((100,), (50,)).waits_s == [0, pytest.approx(0.1)]
    redis.sleep(0.1)
    double = Quota(redis.quota.id, {"tokens": PerSecond(2000)}, burst_s=0.5, margin=1.0)
    redis.version, redis.terms = redis.install(double), double.terms()
    assert redis.reserve((200,)).waits_s == pytest.approx([0.1])


def test_other_limits_in_force_are_told_and_nothing_is_done(redis_server: RedisServer) -> None:
    """A process with old limits learns the new ones from its next call, which changes nothing."""
    redis = Redis(redis_server, tokens())
    changed = Quota(redis.quota.id, {"tokens": PerSecond(500)}, margin=1.0)
    version = redis.install(changed)
    before = redis.field("t:tokens")
    reply = redis.reserve((1,), settle={"tokens": 100})
    assert reply.status is ReserveStatus.CHANGED
    assert reply.in_force is not None
    assert (reply.in_force.version, reply.in_force.terms) == (version, changed.terms())
    assert redis.field("t:tokens") == before


def test_limits_change_by_compare_and_set(redis_server: RedisServer) -> None:
    """Of two who replace the same version, the first wins; one who only fills gaps replaces
    nothing."""
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
    assert sorted(fields) == [
        "b:tokens",
        "c:tokens",
        "config",
        "lt",
        "mg",
        "mga",
        "r:tokens",
        "t:tokens",
        "v",
    ]


def test_rates_of_a_hundred_million_a_minute_are_exact(redis_server: RedisServer) -> None:
    """Rounding to microseconds loses nothing at high rates: ten thousand calls take as long as they
    should."""
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
    pace_s = 0.0
    for _ in range(10):
        pace_s = redis.reserve(*[(1, 500)] * 50).pace_s
    assert pace_s == pytest.approx(0.5, rel=0.01)


def test_counters_tell_what_was_charged_before_each_batch(redis_server: RedisServer) -> None:
    """The counter of a dimension is all charges less all refunds, as it stood before the first item
    of the call."""
    redis = Redis(redis_server, both())
    assert redis.reserve((1, 100), (1, 50.25)).counters == (0, 0)
    reply = redis.reserve((2, 7), settle={"tokens": -0.25})
    assert list(reply.counters) == [2, 150]
    assert redis.reserve().counters == (4, 157)
    assert redis.field("n") == 3


def test_counters_outlive_a_change_of_limits(redis_server: RedisServer) -> None:
    """What was charged under the old limits is still counted under the new ones: answers under way
    refer to it."""
    redis = Redis(redis_server, tokens())
    redis.reserve((100,))
    redis.adopt(Quota(redis.quota.id, {"tokens": PerSecond(500)}, margin=1.0))
    assert redis.reserve().counters == (100,)


def test_what_happened_is_counted(redis_server: RedisServer) -> None:
    """Refusals and failures are counted for readers, by kind."""
    redis = Redis(redis_server, tokens())
    redis.report(ProviderReport(throttled=2, ramp=1, losses=3))
    redis.report(ProviderReport(throttled=1, hold="unauthorized"))
    counts = [redis.field(f"x:{name}") for name in ("throttled", "ramp", "failed", "held")]
    assert counts == [3, 1, 3, 1]


def test_each_episode_of_refusals_costs_one_hundredth_of_the_margin(
    redis_server: RedisServer,
) -> None:
    """Refusals of one overshoot count once, a clean minute gives a thousandth back, the floor is
    nine tenths."""
    redis = Redis(redis_server, tokens(margin=0.995))
    assert redis.report().share == 0.995
    redis.sleep(10)
    for _ in range(3):
        redis.report(ProviderReport(throttled=5))
        redis.sleep(1)
    assert redis.report().share == pytest.approx(0.985)
    redis.sleep(180)
    assert redis.report().share == pytest.approx(0.988)
    for _ in range(20):
        redis.report(ProviderReport(throttled=1))
        redis.sleep(6)
    assert redis.report().share == pytest.approx(0.9)
    redis.sleep(86_400)
    assert redis.report().share == 1


def test_refusals_during_a_pause_belong_to_the_episode_that_began_it(
    redis_server: RedisServer,
) -> None:
    """Calls that were under way when the pause began say nothing new."""
    redis = Redis(redis_server, tokens())
    redis.sleep(10)
    redis.reserve(report=ProviderReport(throttled=1), pause_s=9)
    redis.sleep(8)
    assert redis.report(ProviderReport(throttled=1)).share == pytest.approx(0.99)


def test_a_margin_declared_low_stays(redis_server: RedisServer) -> None:
    """Who leaves a fifth of the limit to others keeps leaving it, however clean the minutes."""
    redis = Redis(redis_server, tokens(margin=0.8))
    redis.sleep(86_400)
    assert redis.report(ProviderReport(throttled=1)).share == 0.8
    redis.sleep(100)
    redis.reserve(*[(100,)] * 4)
    assert redis.reserve((400,)).waits_s == pytest.approx([0.5])  # 400 of 800 a second


def test_starts_keep_to_the_margin_in_force(redis_server: RedisServer) -> None:
    """After a refusal the rate is lower for all: a hundred starts take a hundredth longer."""
    redis = Redis(redis_server, tokens())
    redis.sleep(10)
    redis.report(ProviderReport(throttled=1))
    waits = redis.reserve(*[(100,)] * 60).waits_s
    assert waits[-1] - waits[10] == pytest.approx(49 * 0.1 / 0.99, abs=1e-4)


def test_nobody_bursts_right_after_a_refusal(redis_server: RedisServer) -> None:
    """A refusal says that the provider has nothing left: after the pause the rate goes on, without
    a burst."""
    redis = Redis(redis_server, tokens(margin=0.9))
    redis.sleep(100)
    redis.reserve(report=ProviderReport(throttled=1), pause_s=2)
    assert redis.reserve((90,), (90,)).waits_s == pytest.approx([2.1, 2.2])


def test_retries_draw_on_a_budget_that_good_answers_refill(redis_server: RedisServer) -> None:
    """A retry costs one, a good answer gives a tenth back, and the budget stays within 0 and
    100."""
    redis = Redis(redis_server, tokens())
    assert redis.report().retry_budget == 100
    assert redis.report(ProviderReport(wins=50)).retry_budget == 100
    assert redis.report(ProviderReport(retries=10, wins=20)).retry_budget == 92
    assert redis.report(ProviderReport(retries=200)).retry_budget == 0
    assert redis.report(ProviderReport(wins=15)).retry_budget == 1.5


def test_a_good_answer_proves_the_account_for_an_hour(redis_server: RedisServer) -> None:
    """Proven is what answered well within the last hour."""
    redis = Redis(redis_server, tokens())
    assert not redis.report().proven
    assert redis.report(ProviderReport(wins=1)).proven
    redis.sleep(3599)
    assert redis.report().proven
    redis.sleep(2)
    assert not redis.report().proven


def test_a_quota_without_limits_never_waits_unless_told(redis_server: RedisServer) -> None:
    """No dimensions: everything starts at once, but a pause, a breaker and a hold count all the
    same."""
    redis = Redis(redis_server, without_limits())
    reply = redis.reserve((), (), ())
    assert (reply.waits_s, reply.counters, reply.pace_s) == ([0, 0, 0], (), 0)
    assert redis.reserve((), pause_s=2).waits_s == pytest.approx([2])
    assert redis.report(ProviderReport(losses=8)).breaker is Breaker.OPEN
    assert redis.reserve(()).waits_s == []
    assert redis.field("n") == 4
    redis.raw.flushall()
    assert redis.reserve(()).status is ReserveStatus.MISSING


def test_a_process_leaves_its_stats_for_readers_until_it_goes(redis_server: RedisServer) -> None:
    """What a process says with its heartbeat is there as long as the process is."""
    redis = Redis(redis_server, tokens())
    said = f"{redis.hash.key}:s"
    for name in ("a", "b", "c"):
        run(redis.hash.heartbeat(name, 15, f'{{"granted": "{name}"}}'))
    run(redis.hash.heartbeat("a", 15))
    assert redis.raw.hget(said, "a") == '{"granted": "a"}'
    run(redis.hash.heartbeat("b", 0))
    assert sorted(redis.raw.hkeys(said)) == ["a", "c"]
    redis.sleep(16)
    run(redis.hash.heartbeat("d", 15, "{}"))
    assert redis.raw.hkeys(said) == ["d"]


def test_every_quota_ever_installed_is_listed(redis_server: RedisServer) -> None:
    """Readers find the quotas without scanning the keys."""
    names = {Redis(redis_server, quota).quota.id for quota in (tokens(), both(), without_limits())}
    assert redis_server.client(decode_responses=True).smembers("penstock:quotas") == names


def test_a_hash_of_an_older_release_starts_over(redis_server: RedisServer) -> None:
    """Terms that were stored before margins existed are replaced, and the bucket is empty."""
    redis = Redis(redis_server, tokens())
    redis.raw.delete(redis.hash.key)
    redis.raw.hset(
        redis.hash.key,
        mapping={"v": "7:abc", "config": '{"tokens": [1, 2, 3]}', "lt": redis.clock.us},
    )
    redis.version = redis.install(replaces="")
    assert redis.reserve((500,)).waits_s == pytest.approx([0.5])
