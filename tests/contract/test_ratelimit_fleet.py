"""Several processes on one quota, played in one loop: real Redis, virtual time, exact numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from limiter_fleet import QUOTA, Fleet, Play, now

from penstock_ratelimit import NeverFits, PerSecond, Quota
from penstock_ratelimit.shared.dispatcher import HEARTBEAT_S
from penstock_ratelimit.shared.redis_outage import GRACE_S

GONE = ConnectionError("the test took Redis away")


def busiest(starts: list[float], span_s: float) -> int:
    """The most starts in any interval of ``span_s``."""
    starts = sorted(starts)
    return max(sum(first <= start < first + span_s for start in starts) for first in starts)


def test_equal_processes_get_equal_parts_of_the_whole(play: Callable[[Play], None]) -> None:
    """Four busy processes use the whole quota, each a quarter of it, and ask Redis for at most 0.4
    of their items."""

    async def body(fleet: Fleet) -> None:
        limiters = [fleet.process() for _ in range(4)]
        for name, limiter in zip("abcd", limiters, strict=True):
            fleet.work(name, limiter, slots=60)
        await asyncio.sleep(10)
        calls = fleet.redis.calls
        await asyncio.sleep(60)
        counts = [fleet.count(name, 10) for name in "abcd"]
        assert sum(counts) == pytest.approx(40 * 60, rel=0.005)
        assert sum(counts) ** 2 / (4 * sum(count**2 for count in counts)) > 0.999
        assert (fleet.redis.calls - calls) / sum(counts) <= 0.4
        assert busiest(fleet.all_starts(), 1.0) <= 40 * 1.5

    play(body)


def test_idle_processes_leave_the_whole_to_the_busy_one(play: Callable[[Play], None]) -> None:
    """One busy process among four gets the full rate."""

    async def body(fleet: Fleet) -> None:
        for _ in range(3):
            async with fleet.process().ticket("q", {"requests": 1}):
                pass
        fleet.work("busy", fleet.process(), slots=60)
        await asyncio.sleep(40)
        assert fleet.count("busy", 10) == pytest.approx(40 * 30, rel=0.005)

    play(body)


def test_a_429_in_one_process_stops_all(play: Callable[[Play], None]) -> None:
    """When the provider asks one process to wait, the others stop as they next ask, and none starts
    with a burst then."""

    async def body(fleet: Fleet) -> None:
        limiters = [fleet.process() for _ in range(4)]
        for name, limiter in zip("abcd", limiters, strict=True):
            fleet.work(name, limiter, slots=60)
        await asyncio.sleep(20)
        limiters[0].not_before("q", 5.0)
        await asyncio.sleep(10)
        starts = [start for name in "abcd" for start in fleet.starts[name] if start > 20]
        assert not [start for start in fleet.starts["a"] if 20 < start < 25 - 1e-4]
        assert not [start for start in starts if 20 + QUOTA.horizon_s < start < 25 - 1e-4]
        assert busiest(starts, 1.0) <= 40 * 1.5
        assert sum(start >= 25 for start in starts) == pytest.approx(5 * 40 + 20, abs=2)

    play(body)


def test_unstarted_tickets_of_a_closing_process_go_back(play: Callable[[Play], None]) -> None:
    """A process that leaves gives its tickets back, and is no longer counted."""

    async def body(fleet: Fleet) -> None:
        leaving, staying = fleet.process(), fleet.process()
        waiting = [asyncio.create_task(leaving.acquire("q", {"requests": 1})) for _ in range(100)]
        await asyncio.sleep(0.2)
        before = now()
        await leaving.aclose()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with staying.ticket("q", {"requests": 1}):
            assert now() == pytest.approx(before, abs=0.05)
        assert leaving.stats()["q"].refunded > 0
        assert fleet.raw.zcard("penstock:{q:q}:w") == 1

    play(body)


def test_a_redis_that_forgets_costs_one_burst_of_patience(play: Callable[[Play], None]) -> None:
    """FLUSHALL in the middle: the pace goes on, nothing starts above the limit, half a second is
    lost."""

    async def body(fleet: Fleet) -> None:
        for name in "ab":
            fleet.work(name, fleet.process(), slots=60)
        await asyncio.sleep(10)
        fleet.raw.flushall()
        await asyncio.sleep(20)
        starts = fleet.all_starts()
        assert busiest([start for start in starts if start > 9], 1.0) <= 40 * 2
        assert sum(start > 10 for start in starts) == pytest.approx(20 * 40, abs=40)

    play(body)


def test_a_redis_that_forgets_a_pause_is_told_again(play: Callable[[Play], None]) -> None:
    """A pause outlives FLUSHALL: a process that knows of it repeats it with its next call."""

    async def body(fleet: Fleet) -> None:
        limiter, other = fleet.process(), fleet.process()
        for one in (limiter, other):
            async with one.ticket("q", {"requests": 1}):
                pass
        began = now()
        limiter.not_before("q", 5.0)
        await asyncio.sleep(1)
        fleet.raw.flushall()
        for one in (limiter, other):
            async with one.ticket("q", {"requests": 1}):
                assert now() - began == pytest.approx(5.0, abs=0.1)

    play(body)


def test_a_short_outage_makes_callers_wait_and_then_go_on(play: Callable[[Play], None]) -> None:
    """While Redis is away for less than the grace, nothing starts beyond the tickets in hand; then
    the pace goes on."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process()
        fleet.work("a", limiter, slots=100)
        await asyncio.sleep(10)
        fleet.redis.fault = GONE
        await asyncio.sleep(2.9)
        assert not limiter.stats()["q"].degraded
        assert not [start for start in fleet.starts["a"] if start > 10 + 2 * QUOTA.horizon_s]
        fleet.redis.fault = None
        await asyncio.sleep(10)
        assert fleet.count("a", 13.5) == pytest.approx(9.4 * 40, abs=25)
        assert busiest(fleet.starts["a"], 1.0) <= 40 * 1.5

    play(body)


def test_a_long_outage_is_lived_through_on_the_local_share(play: Callable[[Play], None]) -> None:
    """After three seconds without Redis each of two processes goes on with 45 % of the limit, and
    then shares again."""

    async def body(fleet: Fleet) -> None:
        limiters = [fleet.process(), fleet.process()]
        for name, limiter in zip("ab", limiters, strict=True):
            fleet.work(name, limiter, slots=60)
        await asyncio.sleep(10)
        fleet.redis.fault = GONE
        await asyncio.sleep(30)
        assert all(limiter.stats()["q"].degraded for limiter in limiters)
        began = 10 + GRACE_S + 1
        for name in "ab":
            alone = sum(began <= start < 40 for start in fleet.starts[name])
            assert alone == pytest.approx((40 - began) * 40 * 0.45, rel=0.02)
        fleet.redis.fault = None
        await asyncio.sleep(20)
        assert not any(limiter.stats()["q"].degraded for limiter in limiters)
        assert fleet.count("a", 41) + fleet.count("b", 41) == pytest.approx(19 * 40, rel=0.02)
        assert busiest(fleet.all_starts(), 1.0) <= 40 * 1.5

    play(body)


def test_without_ever_having_met_redis_nobody_starts(play: Callable[[Play], None]) -> None:
    """A process that does not know how many share the quota has no share of its own: it waits for
    Redis."""

    async def body(fleet: Fleet) -> None:
        fleet.redis.fault = GONE
        limiter = fleet.process()
        waiting = asyncio.create_task(limiter.acquire("q", {"requests": 1}))
        await asyncio.sleep(60)
        assert not waiting.done()
        fleet.redis.fault = None
        await asyncio.wait_for(waiting, 1)

    play(body)


def test_new_limits_reach_running_processes(play: Callable[[Play], None]) -> None:
    """When a process starts with other limits, the running ones follow with their next call."""

    async def body(fleet: Fleet) -> None:
        old = fleet.process()
        fleet.work("old", old, slots=60)
        await asyncio.sleep(10)
        halved = Quota("q", {"requests": PerSecond(20)}, burst_s=0.5, margin=1.0)
        fleet.work("new", fleet.process(halved), slots=60)
        await asyncio.sleep(30)
        assert old.stats()["q"].allowed == {"requests": 20}
        assert fleet.count("old", 20) + fleet.count("new", 20) == pytest.approx(20 * 20, rel=0.02)

    play(body)


def test_a_cost_that_new_limits_rule_out_fails_its_caller_only(
    play: Callable[[Play], None],
) -> None:
    """A waiter whose certain cost is above a lowered cap gets NeverFits; the others go on."""

    async def body(fleet: Fleet) -> None:
        old = fleet.process()
        async with old.ticket("q", {"requests": 1}):
            pass
        lowered = Quota("q", {"requests": PerSecond(10)}, margin=1.0)
        async with fleet.process(lowered).ticket("q", {"requests": 1}):
            pass
        outcomes = await asyncio.gather(
            old.acquire("q", {"requests": 30}, certain={"requests": 30}),
            old.acquire("q", {"requests": 1}),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], NeverFits)
        assert not isinstance(outcomes[1], BaseException)

    play(body)


def test_an_idle_process_settles_all_the_same(play: Callable[[Play], None]) -> None:
    """What a finished request gave back reaches the others within a moment, without a further
    request."""

    async def body(fleet: Fleet) -> None:
        idle, busy = fleet.process(), fleet.process()
        async with idle.ticket("q", {"requests": 40}) as ticket:
            ticket.settle({"requests": 1})
        await asyncio.sleep(0.3)
        began = now()
        await busy.acquire("q", {"requests": 10})
        assert now() - began < 0.1

    play(body)


def test_a_limiter_at_rest_calls_nobody(play: Callable[[Play], None]) -> None:
    """An idle limiter beats, and makes no other call."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process()
        async with limiter.ticket("q", {"requests": 1}):
            pass
        await asyncio.sleep(1)
        calls = fleet.redis.calls
        await asyncio.sleep(60)
        assert fleet.redis.calls - calls == 60 / HEARTBEAT_S

    play(body)


def test_a_broken_script_fails_callers_instead_of_hanging_them(
    play: Callable[[Play], None],
) -> None:
    """An unexpected exception reaches every waiter, now and later."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process()
        async with limiter.ticket("q", {"requests": 1}):
            pass
        fleet.redis.fault = ZeroDivisionError("a bug")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(limiter.acquire("q", {"requests": 1}), 1)
        fleet.redis.fault = None

    play(body)
