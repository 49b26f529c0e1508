"""What always holds: no interval gets too much, no request overtakes an earlier one or starves, and
what a fault may cost.

Random histories on a real Redis with the clock set. Derandomised: the same histories in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_quota import BURST_S, RATES, SLACK, START_US, Redis, both, run, tokens
from servers import RedisServer, as_bytes

from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.rates import Slope
from penstock_ratelimit.store.messages import NOTHING, ProviderReport, ReserveStatus

Start = tuple[float, tuple[float, ...]]
"""When, in seconds, and what it costs."""

RATE = RATES["tokens"]

histories = settings(
    max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
items = st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 1000)), max_size=8)
single_items = st.lists(st.tuples(st.integers(0, 1000)), max_size=8)


@dataclass(frozen=True)
class Step:
    """Some time passes; then one process reports and asks."""

    after_us: int
    items: Sequence[tuple[float, ...]]
    report: ProviderReport = NOTHING
    pause_s: float = 0.0


reports = st.builds(
    ProviderReport,
    throttled=st.sampled_from([0, 0, 0, 1]),
    ramp=st.sampled_from([0, 0, 0, 1]),
    wins=st.sampled_from([0, 1, 3]),
    losses=st.sampled_from([0, 0, 0, 8]),
)
quiet = st.builds(Step, after_us=st.integers(0, 3_000_000), items=items)
eventful = st.builds(
    Step,
    after_us=st.integers(0, 6_000_000),
    items=items,
    report=reports,
    pause_s=st.sampled_from([0.0, 0.0, 0.0, 2.0, 12.0]),
)


def follow(redis: Redis, steps: Sequence[Step], *, ahead_s: float = 1e6) -> list[Start]:
    """All starts that came of it, in the order in which they were granted."""
    starts: list[Start] = []
    for step in steps:
        redis.clock.us += step.after_us
        generation = redis.report().generation if step.report.losses or step.report.wins else 0
        seen = ProviderReport(
            step.report.throttled,
            step.report.ramp,
            step.report.wins,
            step.report.losses,
            generation,
        )
        reply = redis.reserve(*step.items, ahead_s=ahead_s, report=seen, pause_s=step.pause_s)
        starts += [
            (redis.now + wait, item) for wait, item in zip(reply.waits_s, step.items, strict=False)
        ]
    return starts


def check_no_interval_exceeds(
    starts: Sequence[Start],
    column: int,
    allowed: Callable[[float, float], float],
    burst: float,
    extra: float = 0.0,
) -> None:
    """In every interval the cost is at most what is allowed in it plus one burst, less what one was
    too large."""
    in_order = sorted(starts)
    for first, (since, _) in enumerate(in_order):
        spent = 0.0
        for at, item in in_order[first:]:
            spent += item[column]
            debt = max(item[column] - burst, 0.0)
            assert spent - debt <= allowed(since, at) + burst + extra + RATE * SLACK


def at_rate(rate: float) -> Callable[[float, float], float]:
    return lambda since, at: rate * (at - since)


@histories
@given(
    steps=st.lists(quiet | eventful, min_size=1, max_size=12),
    ahead_s=st.sampled_from([0.0, 1.0, 30.0, 1e6]),
)
def test_no_interval_exceeds_the_rate_plus_one_burst(
    redis_server: RedisServer, steps: list[Step], ahead_s: float
) -> None:
    """Also while slope, margin and breaker move: starts cost at most rate times time plus a burst
    (plus one too large)."""
    redis = Redis(redis_server, both(slope=Slope(0.25, 5.0, after_idle_s=5.0)))
    starts = follow(redis, steps, ahead_s=ahead_s)
    for column, rate in enumerate(RATES.values()):
        check_no_interval_exceeds(starts, column, at_rate(rate), rate * BURST_S)


@histories
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2_000_000),
            single_items,
            st.sampled_from([None, None, 200.0, 500.0, 1000.0]),
        ),
        max_size=14,
    )
)
def test_no_interval_exceeds_the_limits_that_were_in_force(
    redis_server: RedisServer, steps: list[tuple[int, list[tuple[float]], float | None]]
) -> None:
    """When limits change, what starts costs at most the limit of each moment, and no change hands
    out a burst."""
    redis = Redis(redis_server, tokens())
    changes, starts = [(0.0, 1000.0)], []
    for after_us, batch, rate in steps:
        redis.clock.us += after_us
        if rate is not None:
            redis.adopt(
                Quota(redis.quota.id, {"tokens": PerSecond(rate)}, burst_s=BURST_S, margin=1.0)
            )
            changes.append((redis.now, rate))
        reply = redis.reserve(*batch, ahead_s=0)
        starts += [(redis.now, item) for item in batch[: len(reply.waits_s)]]

    def allowed(since: float, at: float) -> float:
        ends = [when for when, _ in changes[1:]] + [at]
        return sum(
            rate * max(0.0, min(end, at) - max(begin, since))
            for (begin, rate), end in zip(changes, ends, strict=True)
        )

    smallest = min(rate for _, rate in changes) * BURST_S
    check_no_interval_exceeds(starts, 0, allowed, smallest, extra=RATE * BURST_S - smallest)


@histories
@given(steps=st.lists(quiet | eventful, min_size=1, max_size=12))
def test_start_times_are_first_come_first_served(
    redis_server: RedisServer, steps: list[Step]
) -> None:
    """No request that came later starts earlier, whatever it costs and whatever happened in
    between."""
    redis = Redis(redis_server, both(slope=Slope(0.25, 5.0, after_idle_s=5.0)))
    starts = [at for at, _ in follow(redis, steps)]
    assert all(later >= earlier - SLACK for earlier, later in itertools.pairwise(starts))


@histories
@given(
    charges=st.lists(
        st.tuples(st.integers(0, 500_000), st.integers(1, 1000), st.floats(-1.5, 1.5)), max_size=15
    ),
)
def test_settling_never_makes_more_room_than_was_taken(
    redis_server: RedisServer, charges: list[tuple[int, int, float]]
) -> None:
    """Whatever is settled, charged or refunded twice over, no burst is ever larger than the
    burst."""
    redis = Redis(redis_server, tokens())
    for pause_us, cost, part in charges:
        redis.clock.us += pause_us
        redis.reserve((cost,), settle={"tokens": cost * part})
    redis.sleep(0.001)
    at_once = [wait for wait in redis.reserve(*[(10,)] * 64).waits_s if wait == 0]
    assert len(at_once) * 10 <= 1000 * BURST_S


@histories
@given(large=st.integers(500, 5000), small=st.integers(1, 100), ahead_s=st.sampled_from([1.0, 5.0]))
def test_large_items_do_not_starve(
    redis_server: RedisServer, large: int, small: int, ahead_s: float
) -> None:
    """Among small ones that always fill the seconds ahead, a large one starts as soon as all before
    it are paid for."""
    redis = Redis(redis_server, tokens())
    for _ in range(4):
        while len(redis.reserve(*[(small,)] * 64, ahead_s=ahead_s).waits_s) == 64:
            continue
        wait_s = redis.reserve((large,), ahead_s=ahead_s + BURST_S).waits_s
        assert wait_s == pytest.approx([ahead_s + BURST_S], abs=small / RATE + SLACK)
        redis.sleep(wait_s[0] + large / RATE)


@histories
@given(
    steps=st.lists(st.tuples(st.integers(0, 1_000_000), single_items), min_size=4, max_size=14),
    back_s=st.sampled_from([0.3, 1.0, 10.0, 86_400.0]),
    when=st.integers(0, 13),
)
def test_a_clock_that_steps_back_neither_stalls_nor_bursts(
    redis_server: RedisServer, steps: list[tuple[int, list[tuple[float]]]], back_s: float, when: int
) -> None:
    """Redis's clock jumps back: by true time nothing is given out twice, and no caller waits a
    second longer."""
    redis, steady = Redis(redis_server, tokens()), Redis(redis_server, tokens())
    starts, true_us = [], 0
    for nth, (after_us, batch) in enumerate(steps):
        true_us += after_us
        steady.clock.us = START_US + true_us
        redis.clock.us = steady.clock.us - (round(back_s * 1e6) if nth >= when else 0)
        waits = redis.reserve(*batch).waits_s
        starts += [(true_us / 1e6 + wait, item) for wait, item in zip(waits, batch, strict=True)]
        for wait, usual in zip(waits, steady.reserve(*batch).waits_s, strict=True):
            # what passed between the last call and this one is not known to a clock that stepped
            # back meanwhile
            assert wait <= usual + 1.0 + after_us / 1e6 + SLACK
    check_no_interval_exceeds(starts, 0, at_rate(RATE), RATE * BURST_S)


@histories
@given(
    steps=st.lists(st.tuples(st.integers(0, 1_000_000), single_items), min_size=2, max_size=14),
    lost=st.sets(st.integers(0, 13), min_size=1, max_size=3),
)
def test_a_redis_that_forgets_everything_hands_out_nothing_twice(
    redis_server: RedisServer, steps: list[tuple[int, list[tuple[float]]]], lost: set[int]
) -> None:
    """After FLUSHALL the bucket is empty: no interval across it exceeds the rate plus a burst.

    What an item was larger than the burst is owed until then, and is forgotten with all else.
    """
    redis = Redis(redis_server, tokens())
    starts: list[Start] = []
    for nth, (after_us, batch) in enumerate(steps):
        redis.clock.us += after_us
        if nth in lost:
            redis.raw.delete(redis.hash.key)
            assert redis.reserve(*batch).status is ReserveStatus.MISSING
            redis.version = redis.install(replaces="")
        reply = redis.reserve(*batch, ahead_s=0)
        starts += [(redis.now, item) for item in batch[: len(reply.waits_s)]]
    burst = RATE * BURST_S
    forgotten = (
        sum(sorted(max(cost - burst, 0.0) for _, (cost, *_) in starts)[-len(lost) :])
        if lost
        else 0.0
    )
    check_no_interval_exceeds(starts, 0, at_rate(RATE), burst, extra=forgotten)


def busy(redis: Redis, seconds: float, cost: float = 10.0) -> list[Start]:
    """A caller that always has work takes what may start now, fifty times a second."""
    starts: list[Start] = []
    for _ in range(round(seconds * 50)):
        redis.sleep(0.02)
        starts += [(redis.now, (cost,)) for _ in redis.reserve(*[(cost,)] * 64, ahead_s=0).waits_s]
    return starts


@pytest.mark.parametrize("lag_s", [0.1, 1.0, 3.0])
def test_a_replica_that_was_behind_costs_no_more_than_it_was_behind(
    redis_server: RedisServer, lag_s: float
) -> None:
    """After a failover to an older copy of the hash, at most rate times lag is given out twice."""
    redis = Redis(redis_server, tokens())
    starts = busy(redis, 2)
    raw = redis_server.client()  # the dump is bytes, and ``redis.raw`` decodes
    copy = as_bytes(raw.dump(redis.hash.key))
    starts += busy(redis, lag_s)
    raw.restore(redis.hash.key, 0, copy, replace=True)
    starts += busy(redis, 2)
    check_no_interval_exceeds(starts, 0, at_rate(RATE), RATE * BURST_S, extra=RATE * lag_s)
    total = sum(item[0] for _, item in starts)
    assert total >= RATE * (4 + lag_s) - 20  # and no caller waits for what was forgotten


def test_a_killed_worker_costs_its_window_and_nothing_else(redis_server: RedisServer) -> None:
    """Tickets of a process that dies are lost to the fleet, no more and no less: the others go on
    behind them."""
    redis = Redis(redis_server, tokens())
    window, cost = 64, 10.0
    lost = [(redis.now + wait, (cost,)) for wait in redis.reserve(*[(cost,)] * window).waits_s]
    starts = busy(redis, 5)
    check_no_interval_exceeds(lost + starts, 0, at_rate(RATE), RATE * BURST_S)
    total = sum(item[0] for _, item in starts)
    assert total == pytest.approx(RATE * 5 - window * cost, abs=2 * cost)
    run(redis.hash.heartbeat("the survivor", 15))
    assert redis.reserve().processes == 1
