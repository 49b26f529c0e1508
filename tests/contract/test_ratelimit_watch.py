"""Looking at quotas from outside, on a real Redis with a clock to set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis
from one_quota import Redis, both, run, tokens, without_limits
from servers import RedisServer

from penstock_ratelimit import Estimator, Learned, Quota
from penstock_ratelimit.store.messages import Breaker, ProviderReport, Remaining
from penstock_ratelimit.store.quota_hash import QuotaHash
from penstock_ratelimit.testing import BlockingScripts
from penstock_ratelimit.watch import QuotaView, read_quotas


def look(quota: Redis) -> QuotaView:
    (view,) = read_quotas(quota.raw, quota_ids=[quota.quota.id], clock_us=quota.clock)
    return view


def test_a_quota_in_use_is_seen_with_all_of_its_limits(redis_server: RedisServer) -> None:
    """Limits, what is allowed now, what was charged and what may start at once, in units."""
    quota = Redis(redis_server, both(margin=0.8))
    quota.sleep(100)
    quota.reserve((1, 200), (1, 100))
    view = look(quota)
    requests, of_tokens = view.dimensions
    assert (view.granted, view.margin, view.declared_margin, view.share) == (2, 0.8, 0.8, 1.0)
    assert (requests.name, requests.limit, requests.allowed, requests.charged) == pytest.approx(
        ("requests", 10, 8, 2)
    )
    assert (of_tokens.allowed, of_tokens.burst, of_tokens.charged) == pytest.approx((800, 400, 300))
    assert (of_tokens.level, requests.level) == pytest.approx((100, 2))


def test_the_level_is_what_starts_at_once(redis_server: RedisServer) -> None:
    """So many units wait for nothing and one more waits: also while the rate comes back along a
    slope."""
    quota = Redis(redis_server, tokens())
    quota.sleep(100)
    quota.reserve((100,))
    assert look(quota).dimensions[0].level == pytest.approx(400)
    quota.reserve(pause_s=11)
    quota.sleep(13)
    view = look(quota)
    level = view.dimensions[0].level
    assert view.share == pytest.approx(0.25 * 2 ** (2 / 5), rel=1e-3)
    assert quota.reserve((level,)).waits_s[0] == pytest.approx(0, abs=1e-4)
    assert look(quota).dimensions[0].level == pytest.approx(0, abs=0.1)
    assert quota.reserve((10,)).waits_s[0] > 0.01
    assert look(quota).dimensions[0].level == pytest.approx(-10, abs=0.1)


def test_looking_changes_nothing(redis_server: RedisServer) -> None:
    """Not even after the clock stepped back, which moves the times that are written."""
    quota = Redis(redis_server, both())
    quota.reserve((1, 200), report=ProviderReport(losses=3, throttled=1))
    before = quota.raw.hgetall(quota.hash.key)
    quota.sleep(60)
    look(quota)
    quota.sleep(-3600)
    assert look(quota).at >= look(quota).at
    assert quota.raw.hgetall(quota.hash.key) == before


def test_two_looks_show_what_went_through(redis_server: RedisServer) -> None:
    """The difference of two looks is the time between them, and the tickets and units granted in
    it."""
    quota = Redis(redis_server, both())
    quota.sleep(100)
    first = look(quota)
    quota.reserve((1, 200), (1, 100))
    quota.sleep(2)
    quota.reserve(settle={"tokens": -100})
    traffic = look(quota).since(first)
    assert traffic is not None
    assert (traffic.seconds, traffic.granted) == (2, 1)
    assert traffic.units == {"requests": 1, "tokens": 100}
    assert first.since(first) is None


def test_a_quota_that_redis_forgot_has_no_past(redis_server: RedisServer) -> None:
    """Counters that start over are not taken for traffic."""
    quota = Redis(redis_server, both())
    quota.reserve((1, 200))
    before = look(quota)
    quota.raw.delete(quota.hash.key)
    assert read_quotas(quota.raw, quota_ids=[quota.quota.id]) == []
    quota.install()
    quota.sleep(5)
    assert look(quota).since(before) is None


def test_trouble_is_seen(redis_server: RedisServer) -> None:
    """Pauses, refusals, failures, the breaker and the margin, with how long they last."""
    quota = Redis(redis_server, both())
    quota.sleep(1000)
    quota.report(ProviderReport(wins=1))
    quota.sleep(7)
    quota.reserve(pause_s=30, report=ProviderReport(throttled=2, ramp=1))
    quota.sleep(10)
    view = look(quota)
    assert (view.throttled, view.ramps, view.pause_left_s, view.answered_ago_s) == (2, 1, 20, 17)
    assert view.margin < view.declared_margin
    assert view.share < 1
    quota.report(ProviderReport(losses=8, generation=view.breaker.value))
    view = look(quota)
    assert (view.breaker, view.failures) == (Breaker.OPEN, 8)
    assert 1 <= view.open_left_s <= 5
    quota.sleep(view.open_left_s + 30)
    health = quota.report()
    quota.report(ProviderReport(wins=1, generation=health.generation))
    view = look(quota)
    assert (view.breaker, view.probes_won, view.open_left_s) == (Breaker.HALF_OPEN, 1, 0)


def test_a_hold_is_seen_with_its_reason(redis_server: RedisServer) -> None:
    """A view of a held quota has the reason and the seconds since, and neither once it is
    lifted."""
    quota = Redis(redis_server, without_limits())
    quota.report(ProviderReport(hold="out_of_credit"))
    quota.sleep(90)
    view = look(quota)
    assert (view.hold, view.held_s, view.holds, view.dimensions) == ("out_of_credit", 90, 1, ())
    run(quota.hash.lift())
    assert (look(quota).hold, look(quota).held_s) == ("", 0)


def test_somebody_else_at_the_key_is_seen(redis_server: RedisServer) -> None:
    """The provider says that more is gone than we took."""
    quota = Redis(redis_server, tokens())
    quota.sleep(100)
    for second in range(1, 6):
        quota.reserve(remaining={"tokens": Remaining(60_000 - 1300.0 * second, 0, 0)})
        quota.sleep(1)
    assert look(quota).dimensions[0].others > 100


def test_the_figures_of_the_living_are_summed(redis_server: RedisServer) -> None:
    """What died or talks nonsense is not; processes that say nothing are counted all the same."""
    quota = Redis(redis_server, both())
    said = {"waiting": 3, "in_flight": 5, "concurrency": None}
    run(quota.hash.heartbeat("dead", 1e6, json.dumps(said)))
    quota.sleep(3600)
    for name, stats in [
        ("a", said),
        ("b", said | {"concurrency": 8}),
        ("c", ["nonsense"]),
        ("d", None),
    ]:
        run(quota.hash.heartbeat(name, 1e6, json.dumps(stats) if stats else ""))
    view = look(quota)
    assert (view.processes, view.waiting, view.in_flight, view.concurrency) == (4, 6, 10, 8)


def test_what_was_learned_is_seen(redis_server: RedisServer) -> None:
    """The busiest key first; a field of other software is passed over."""
    quota = Redis(redis_server, both())
    estimator = Estimator()
    learned = Learned(BlockingScripts(quota.raw), quota.quota.id, estimator, clock_us=quota.clock)
    for key, times in (("rare", 1), ("often", 9)):
        for _ in range(times):
            estimator.observe(key, 4000, 1500, 100)
    run(learned.flush())
    quota.raw.hset(learned.key, mapping={"odd": "{}", "broken": "[", "short": "[1]"})
    often, rare = look(quota).learned
    assert (often.key, often.ratio, often.observations) == ("often", 1.5, 9)
    assert often.output_p75 == pytest.approx(100, rel=0.1)
    assert (rare.key, rare.observations) == ("rare", 1)


def test_all_quotas_are_found_in_two_round_trips(redis_server: RedisServer) -> None:
    """Those ever installed, in order of their ids; a quota of an older release is left out."""
    quotas = [Redis(redis_server, Quota(name)) for name in ("b", "a", "c")]
    raw = quotas[0].raw
    raw.sadd("penstock:quotas", "gone", "old")
    raw.hset("penstock:{q:old}", mapping={"v": "1:x", "config": "{}", "lt": "1"})
    raw.config_resetstat()
    assert [
        view.quota_id for view in read_quotas(redis_server.client(), clock_us=quotas[0].clock)
    ] == ["a", "b", "c"]
    stats = raw.info("commandstats")
    assert (stats["cmdstat_srandmember"]["calls"], stats["cmdstat_eval"]["calls"]) == (1, 5)
    assert [view.quota_id for view in read_quotas(raw, quota_ids=["c", "undeclared"])] == ["c"]
    assert read_quotas(raw, prefix="other:") == []


def test_a_cluster_is_read_as_well(tmp_path: Path) -> None:
    """All keys of one quota are in one slot, and no call spans two."""
    server = RedisServer.start_cluster(tmp_path / "cluster")
    try:
        asked = (server.command("CLUSTER", "INFO") for _ in range(100_000))
        assert any(b"cluster_state:ok" in state for state in asked)
        client = redis.RedisCluster(host="127.0.0.1", port=server.port)
        for name in ("a", "b", "c"):
            quota = Quota(name)
            run(QuotaHash(BlockingScripts(client), name).install(quota.terms(), replaces="any"))
            client.sadd("penstock:quotas", name)
        assert [view.quota_id for view in read_quotas(client)] == ["a", "b", "c"]
        client.close()
    finally:
        server.stop()
