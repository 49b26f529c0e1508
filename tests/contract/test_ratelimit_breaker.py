"""One breaker for the whole fleet, in the quota's hash: every way from state to state, with the
clock set."""

from __future__ import annotations

import pytest
from one_quota import Redis, run, tokens
from servers import RedisServer

from penstock_ratelimit.store.messages import Breaker, Health, ProviderReport

OPEN, HALF_OPEN, CLOSED = Breaker.OPEN, Breaker.HALF_OPEN, Breaker.CLOSED


def ready(server: RedisServer) -> Redis:
    redis = Redis(server, tokens())
    redis.sleep(100)
    return redis


def fail(redis: Redis, losses: int = 8) -> Health:
    """Losses of calls that were granted just now."""
    return redis.report(ProviderReport(losses=losses, generation=redis.report().generation))


def win(redis: Redis, wins: int = 1) -> Health:
    return redis.report(ProviderReport(wins=wins, generation=redis.report().generation))


def half_open(server: RedisServer) -> Redis:
    redis = ready(server)
    redis.sleep(fail(redis).left_s)
    assert redis.report().breaker is HALF_OPEN
    return redis


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ([(0, 7)], CLOSED),
        ([(0, 8)], OPEN),
        ([(0, 4), (0, 4)], OPEN),
        ([(0, 7), (1, 0), (0, 7)], CLOSED),
        ([(9, 10)], CLOSED),  # 19 answers are not enough
        ([(10, 10)], OPEN),
        ([(11, 10)], CLOSED),  # 48 %
        ([(100, 0), (0, 7), (1, 0), (0, 7)], CLOSED),
        ([(3, 3), (3, 3), (3, 3), (1, 1)], OPEN),
    ],
)
def test_it_opens_at_half_of_twenty_or_eight_in_a_row(
    redis_server: RedisServer, reports: list[tuple[int, int]], state: Breaker
) -> None:
    """At least 50 % of at least 20 answers within 15 s, or 8 losses without a win between them."""
    redis = ready(redis_server)
    for wins, losses in reports:
        redis.report(ProviderReport(wins=wins, losses=losses))
        redis.sleep(0.1)
    assert redis.report().breaker is state


def test_losses_of_an_older_window_are_forgotten(redis_server: RedisServer) -> None:
    """Ten losses a quarter of a minute ago do not add to ten now."""
    redis = ready(redis_server)
    redis.report(ProviderReport(wins=8, losses=9))
    redis.sleep(15.1)
    assert redis.report(ProviderReport(wins=9, losses=9)).breaker is CLOSED


def test_refusals_do_not_open_it(redis_server: RedisServer) -> None:
    """A 429 is about the quota, not about the server."""
    redis = ready(redis_server)
    assert redis.report(ProviderReport(throttled=100, ramp=100)).breaker is CLOSED


def test_an_open_breaker_grants_nothing_and_takes_everything_in(redis_server: RedisServer) -> None:
    """While it is open nothing starts, the answer says when to come back, and settlements still
    count."""
    redis = ready(redis_server)
    left_s = fail(redis).left_s
    assert 1 <= left_s <= 5
    reply = redis.reserve((10,), settle={"tokens": 70})
    assert reply.waits_s == []
    assert reply.retry_s == pytest.approx(left_s)
    assert redis.reserve().counters == (70,)
    redis.sleep(left_s - 0.001)
    assert redis.reserve((10,)).waits_s == []
    redis.sleep(0.002)
    assert redis.reserve((10,)).waits_s == [0]


def test_the_opening_call_grants_nothing_itself(redis_server: RedisServer) -> None:
    """The report that opens the breaker and the items that ride with it are one step."""
    redis = ready(redis_server)
    assert redis.reserve((1,), report=ProviderReport(losses=8)).waits_s == []


def test_half_open_lets_three_probes_through_for_the_whole_fleet(redis_server: RedisServer) -> None:
    """However many ask, in however many calls, three start; the others are asked to come again
    soon."""
    redis = half_open(redis_server)
    first = redis.reserve((1,), (1,))
    second = redis.reserve(*[(1,)] * 10)
    third = redis.reserve((1,))
    assert [len(reply.waits_s) for reply in (first, second, third)] == [2, 1, 0]
    assert 0 < second.retry_s <= 1
    assert 0 < third.retry_s <= 1


@pytest.mark.parametrize("lost", [0, 1])
def test_two_wins_close_it(redis_server: RedisServer, lost: int) -> None:
    """Most of the three probes decide, in one report or in several; everything may start again,
    along the slope."""
    redis = half_open(redis_server)
    redis.reserve(*[(1,)] * 3)
    generation = redis.report().generation
    health = redis.report(ProviderReport(wins=1, losses=lost, generation=generation))
    assert health.breaker is HALF_OPEN
    health = win(redis)
    assert (health.breaker, health.share) == (CLOSED, 0.25)
    assert len(redis.reserve(*[(1,)] * 20).waits_s) == 20


def test_two_losses_open_it_again_for_longer(redis_server: RedisServer) -> None:
    """Two probes that failed open it at once; each time in a row the longest time doubles, up to two
    minutes."""
    redis = half_open(redis_server)
    longest = 5.0
    for _ in range(8):
        longest = min(120.0, 2 * longest)
        redis.reserve(*[(1,)] * 3)
        health = redis.report(
            ProviderReport(wins=1, losses=2, generation=redis.report().generation)
        )
        assert health.breaker is OPEN
        assert 1 <= health.left_s <= longest
        redis.sleep(health.left_s)
    assert redis.field("bk") == 9


def test_open_times_are_spread(redis_server: RedisServer) -> None:
    """Full jitter: fleets of different quotas do not come back together, and no time is shorter
    than a second."""
    times = [fail(ready(redis_server)).left_s for _ in range(40)]
    assert min(times) >= 1
    assert max(times) <= 5
    assert len(set(times)) > 20


def test_closing_forgets_how_often_it_opened(redis_server: RedisServer) -> None:
    """After a good time the first open time is short again."""
    redis = half_open(redis_server)
    redis.reserve((1,))
    redis.sleep(fail(redis, 2).left_s)
    win(redis, 2)
    assert fail(redis).left_s <= 5


def test_probes_that_nobody_answers_for_are_let_through_again(redis_server: RedisServer) -> None:
    """A worker that died with the probes does not keep the fleet waiting for more than a minute."""
    redis = half_open(redis_server)
    assert len(redis.reserve(*[(1,)] * 5).waits_s) == 3
    redis.sleep(59)
    assert redis.reserve((1,)).waits_s == []
    redis.sleep(1.1)
    assert len(redis.reserve(*[(1,)] * 5).waits_s) == 3


def test_probes_of_a_process_that_died_go_out_again(redis_server: RedisServer) -> None:
    """A run that is killed with the probes under way keeps the one that goes on waiting until it is
    missed, and no longer."""
    redis = half_open(redis_server)
    run(redis.hash.heartbeat("killed", 15))
    redis.reserve(*[(1,)] * 3)
    redis.sleep(14)
    run(redis.hash.heartbeat("next", 15))
    assert redis.reserve((1,)).waits_s == []
    redis.sleep(1.1)
    run(redis.hash.heartbeat("next", 15))
    assert len(redis.reserve(*[(1,)] * 5).waits_s) == 3


def test_a_probe_that_is_throttled_is_free_again(redis_server: RedisServer) -> None:
    """A 429 decides nothing: another probe may go in its place."""
    redis = half_open(redis_server)
    redis.reserve(*[(1,)] * 3)
    redis.report(ProviderReport(throttled=2, generation=redis.report().generation))
    assert len(redis.reserve(*[(1,)] * 5).waits_s) == 2


def test_a_probe_that_was_not_sent_is_free_again(redis_server: RedisServer) -> None:
    """Its item had ended meanwhile: another may go in its place at once, but never more than three;
    one of an older generation frees none."""
    redis = half_open(redis_server)
    generation = redis.report().generation
    redis.reserve(*[(1,)] * 3)
    redis.report(ProviderReport(unused=2, generation=generation - 1))
    assert redis.reserve((1,)).waits_s == []
    redis.report(ProviderReport(unused=2, generation=generation))
    assert len(redis.reserve(*[(1,)] * 5).waits_s) == 2
    redis.report(ProviderReport(unused=9, generation=generation))
    assert len(redis.reserve(*[(1,)] * 5).waits_s) == 3


def test_answers_to_calls_of_before_do_not_count(redis_server: RedisServer) -> None:
    """Late failures reopen nothing, and late successes close nothing: they were sent in an older
    generation."""
    redis = ready(redis_server)
    sent = redis.report().generation
    opened = fail(redis)
    assert opened.generation == sent + 1
    redis.report(ProviderReport(losses=50, generation=sent))
    redis.sleep(opened.left_s)
    probing = redis.report(ProviderReport(wins=50, generation=sent))
    assert (probing.breaker, probing.generation) == (HALF_OPEN, opened.generation + 1)
    assert (
        redis.report(ProviderReport(losses=50, generation=opened.generation)).breaker is HALF_OPEN
    )
    assert redis.report(ProviderReport(wins=3, generation=probing.generation)).breaker is CLOSED


def test_late_answers_count_for_all_but_the_breaker(redis_server: RedisServer) -> None:
    """A good answer to an old call still proves the account and earns retries."""
    redis = ready(redis_server)
    sent = redis.report().generation
    fail(redis)
    redis.report(ProviderReport(retries=10, generation=sent))
    health = redis.report(ProviderReport(wins=10, generation=sent))
    assert (health.proven, health.retry_budget, health.breaker) == (True, 91, OPEN)


def test_a_clock_that_steps_back_keeps_no_breaker_open(redis_server: RedisServer) -> None:
    """After a step back of an hour it is open for as long as it was before."""
    redis = ready(redis_server)
    left_s = fail(redis).left_s
    redis.sleep(-3600)
    assert redis.report().left_s == pytest.approx(left_s)
    redis.sleep(left_s + 0.001)
    assert redis.report().breaker is HALF_OPEN
