"""A held account: no money, or no right. Nothing is sent until an operator lifts the hold."""

from __future__ import annotations

import pytest
from one_quota import Redis, both, run, tokens
from servers import RedisServer

from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.store.messages import ProviderReport

NO_MONEY = ProviderReport(hold="out_of_credit")


def held(server: RedisServer, *, account: str = "") -> Redis:
    redis = Redis(server, tokens(), account=account)
    redis.sleep(100)
    redis.report(ProviderReport(wins=1))
    redis.report(NO_MONEY)
    return redis


def test_a_held_account_grants_nothing_and_says_why(redis_server: RedisServer) -> None:
    """Every caller gets the reason instead of a start time, and asks again after a while."""
    redis = held(redis_server)
    reply = redis.reserve((1,))
    assert (reply.waits_s, reply.health.hold) == ([], "out_of_credit")
    assert 0 < reply.retry_s <= 60
    redis.sleep(86_400)
    assert redis.reserve((1,)).waits_s == []


def test_the_call_that_reports_the_hold_is_held_itself(redis_server: RedisServer) -> None:
    """Nothing is granted in the same step."""
    redis = Redis(redis_server, tokens())
    redis.sleep(100)
    assert redis.reserve((1,), report=NO_MONEY).waits_s == []


def test_the_first_reason_stays(redis_server: RedisServer) -> None:
    """Later refusals of the same account change neither the reason nor the time, and are
    counted."""
    redis = held(redis_server)
    since = redis.field("hat")
    redis.sleep(5)
    assert redis.report(ProviderReport(hold="unauthorized")).hold == "out_of_credit"
    assert (redis.field("hat"), redis.field("x:held")) == (since, 2)


def test_a_held_quota_still_settles(redis_server: RedisServer) -> None:
    """Refunds and charges of what was under way are not lost."""
    redis = held(redis_server)
    redis.reserve(settle={"tokens": 200})
    assert redis.reserve().counters == (200,)


def test_lifting_lets_go_at_once_and_the_account_proves_itself_again(
    redis_server: RedisServer,
) -> None:
    """After the lift start times are given again; proven is only who answers well again."""
    redis = held(redis_server)
    assert run(redis.hash.lift()) is True
    reply = redis.reserve((1,))
    assert (reply.waits_s, reply.health.hold, reply.health.proven) == ([0], "", False)
    assert run(redis.hash.lift()) is False


@pytest.mark.parametrize(
    ("account", "hold"), [("", "out_of_credit"), ("key1", "out_of_credit"), ("key2", "")]
)
def test_another_account_lifts_the_hold(redis_server: RedisServer, account: str, hold: str) -> None:
    """A process that comes with another key ends it; one with the same key, or that does not say,
    does not."""
    redis = held(redis_server, account="key1")
    redis.install(account=account)
    health = redis.report()
    assert (health.hold, health.proven) == (hold, account != "key2")


def test_other_limits_lift_the_hold(redis_server: RedisServer) -> None:
    """Who declares other limits has been at the account."""
    redis = held(redis_server)
    redis.adopt(Quota(redis.quota.id, {"tokens": PerSecond(500)}, margin=1.0))
    assert redis.report().hold == ""


def test_only_this_quota_is_held(redis_server: RedisServer) -> None:
    """Another quota on the same Redis knows nothing of it."""
    held(redis_server)
    other = Redis(redis_server, both())
    assert other.reserve((1, 1)).health.hold == ""
