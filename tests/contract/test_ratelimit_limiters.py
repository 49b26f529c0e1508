"""One suite for every limiter: the shared one (on a real Redis) and the local one.

Virtual time, exact numbers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from servers import RedisServer

from penstock_ratelimit import (
    BadCost,
    Limiter,
    LimiterClosed,
    LocalLimiter,
    NeverFits,
    PerSecond,
    Quota,
    SharedLimiter,
    Signal,
    Ticket,
    UnknownQuota,
)
from penstock_ratelimit.testing import BlockingScripts, run_virtual

REQUESTS = Quota("q", {"requests": PerSecond(10)}, burst_s=0.5, margin=1.0)
BOTH = Quota("q", {"requests": PerSecond(10), "tokens": PerSecond(100)}, burst_s=0.5, margin=1.0)
TOKENS = Quota("q", {"tokens": PerSecond(100)}, burst_s=0.5, margin=1.0)
FREE = Quota("q")

Body = Callable[[Limiter], Coroutine[Any, Any, None]]
Check = Callable[[Quota, Body], None]


@pytest.fixture(params=["local", "shared"])
def limiters(request: pytest.FixtureRequest) -> Callable[[Quota], Limiter]:
    if request.param == "local":
        return lambda quota: LocalLimiter([quota])
    server: RedisServer = request.getfixturevalue("redis_server")
    client = BlockingScripts(server.client())
    return lambda quota: SharedLimiter(
        client, [quota], clock_us=lambda: 10**15 + round(asyncio.get_running_loop().time() * 1e6)
    )


@pytest.fixture
def check(limiters: Callable[[Quota], Limiter]) -> Check:
    def run(quota: Quota, body: Body) -> None:
        async def main() -> None:
            limiter = limiters(quota)
            try:
                await body(limiter)
            finally:
                await limiter.aclose()

        run_virtual(main())

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def about(*seconds: float) -> Any:
    """Equal but for what rounding to microseconds does."""
    return pytest.approx(list(seconds), abs=1e-5)


async def start_times(limiter: Limiter, *costs: Mapping[str, float]) -> list[float]:
    """When each of the callers, asking one after the other without waiting, was let go."""

    async def one(cost: Mapping[str, float]) -> float:
        (await limiter.acquire("q", cost)).start()
        return now()

    return list(await asyncio.gather(*(one(cost) for cost in costs)))


def test_starts_follow_the_rate_exactly(check: Check) -> None:
    """At 10 a second, from an empty bucket, the nth request starts after n tenths of a second."""

    async def body(limiter: Limiter) -> None:
        starts = await start_times(limiter, *[{"requests": 1}] * 30)
        assert starts == about(*[0.1 * n for n in range(1, 31)])

    check(REQUESTS, body)


def test_an_idle_quota_saves_up_one_burst_and_no_more(check: Check) -> None:
    """After any idle time, half a second's worth starts at once and the rest follows the rate."""

    async def body(limiter: Limiter) -> None:
        await start_times(limiter, {"requests": 1})
        await asyncio.sleep(99.9)
        began = now()
        starts = await start_times(limiter, *[{"requests": 1}] * 7)
        assert [start - began for start in starts] == about(0, 0, 0, 0, 0, 0.1, 0.2)

    check(REQUESTS, body)


def test_the_scarcest_dimension_sets_the_pace(check: Check) -> None:
    """With requests and tokens limited, 20-token requests run at the token rate."""

    async def body(limiter: Limiter) -> None:
        starts = await start_times(limiter, *[{"requests": 1, "tokens": 20}] * 10)
        assert starts == about(*[0.2 * n for n in range(1, 11)])

    check(BOTH, body)


def test_a_large_request_is_not_overtaken(check: Check) -> None:
    """Small requests that came later start after the large one that came before them."""

    async def body(limiter: Limiter) -> None:
        starts = await start_times(limiter, {"tokens": 50}, *[{"tokens": 1}] * 5)
        assert starts == about(0.5, *[0.5 + 0.01 * n for n in range(1, 6)])

    check(TOKENS, body)


def test_more_than_a_burst_waits_for_a_full_bucket_and_leaves_a_debt(check: Check) -> None:
    """A request of 80 tokens with a burst of 50 starts when the bucket is full, and the next pays
    for its 80."""

    async def body(limiter: Limiter) -> None:
        assert await start_times(limiter, {"tokens": 80}, {"tokens": 10}) == about(
            0.5, 0.5 + 0.8 - 0.4
        )

    check(TOKENS, body)


def test_an_estimate_above_the_cap_is_clipped(check: Check) -> None:
    """An estimate of a million tokens is charged as the most that one request can cost, and does
    not wait for ever."""

    async def body(limiter: Limiter) -> None:
        assert await start_times(limiter, {"tokens": 1e6}, {"tokens": 50}) == about(0.5, 1.5)

    check(TOKENS, body)


def test_a_certain_cost_above_the_cap_fails_at_once(check: Check) -> None:
    """What can never fit fails before it waits, says what to do, and costs the others nothing."""

    async def body(limiter: Limiter) -> None:
        with pytest.raises(
            NeverFits, match=r"tokens costs 101 and no more than 100 can ever fit: make the request"
        ):
            await limiter.acquire("q", {"tokens": 101}, certain={"tokens": 101})
        assert now() == pytest.approx(0, abs=1e-6)
        assert await start_times(limiter, {"tokens": 10}) == about(0.1)

    check(TOKENS, body)


@pytest.mark.parametrize(("actual", "next_start"), [(10, 0.6), (80, 1.3), (150, 2.0)])
def test_settling_replaces_the_estimate(check: Check, actual: float, next_start: float) -> None:
    """The next request waits for what the last one used, not for what it was thought to use."""

    async def body(limiter: Limiter) -> None:
        async with limiter.ticket("q", {"tokens": 80}) as ticket:
            assert now() == pytest.approx(0.5, abs=1e-5)
            ticket.settle({"tokens": actual})
            assert ticket.charged == {"tokens": actual}
        assert await start_times(limiter, {"tokens": 50}) == about(next_start)

    check(TOKENS, body)


def test_a_refund_never_overfills_the_bucket(check: Check) -> None:
    """A refund that comes when the bucket is full again is worth nothing."""

    async def body(limiter: Limiter) -> None:
        ticket = await limiter.acquire("q", {"tokens": 50})
        await asyncio.sleep(100)
        ticket.settle({"tokens": 0})
        began = now()
        starts = await start_times(limiter, {"tokens": 50}, {"tokens": 50})
        assert [start - began for start in starts] == about(0, 0.5)

    check(TOKENS, body)


def test_a_ticket_given_back_unstarted_costs_nothing(check: Check) -> None:
    """Release refunds an unstarted ticket, once."""

    async def body(limiter: Limiter) -> None:
        ticket = await limiter.acquire("q", {"tokens": 50})
        ticket.release()
        ticket.release()
        ticket.settle({"tokens": 50})
        assert await start_times(limiter, {"tokens": 50}, {"tokens": 50}) == about(0.5, 1.0)
        assert limiter.stats()["q"].refunded == 1
        assert limiter.stats()["q"].used["tokens"] == pytest.approx(100)

    check(TOKENS, body)


def test_a_started_ticket_is_charged_even_if_released_later(check: Check) -> None:
    """Providers charge for failed requests, so release after start gives nothing back."""

    async def body(limiter: Limiter) -> None:
        ticket = await limiter.acquire("q", {"tokens": 50})
        ticket.start()
        ticket.release()
        assert await start_times(limiter, {"tokens": 50}) == about(1.0)
        assert limiter.stats()["q"].refunded == 0

    check(TOKENS, body)


def test_a_failing_block_is_charged(check: Check) -> None:
    """Leaving ``async with`` by an exception charges the ticket: something may have been sent."""

    async def body(limiter: Limiter) -> None:
        with pytest.raises(ZeroDivisionError):
            async with limiter.ticket("q", {"tokens": 50}):
                raise ZeroDivisionError
        async with limiter.ticket("q", {"tokens": 50}) as ticket:
            assert now() == pytest.approx(1.0, abs=1e-5)
            ticket.release()
        assert await start_times(limiter, {"tokens": 50}) == about(1.0)

    check(TOKENS, body)


def test_a_cancelled_wait_costs_nothing(check: Check) -> None:
    """A waiter that gives up frees all dimensions for those who come later."""

    async def body(limiter: Limiter) -> None:
        first = asyncio.create_task(limiter.acquire("q", {"requests": 1, "tokens": 50}))
        second = asyncio.create_task(limiter.acquire("q", {"requests": 1, "tokens": 50}))
        await asyncio.sleep(0.2)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        late = asyncio.create_task(start_times(limiter, {"requests": 5, "tokens": 50}))
        await first
        assert now() == pytest.approx(0.5, abs=1e-5)
        assert await late == about(1.0)

    check(BOTH, body)


def test_all_dimensions_are_charged_at_the_start_or_none(check: Check) -> None:
    """A request that gave up while it waited for tokens has used no request slot."""

    async def body(limiter: Limiter) -> None:
        await start_times(limiter, {"requests": 5, "tokens": 100})
        waiting = asyncio.create_task(limiter.acquire("q", {"requests": 5, "tokens": 50}))
        await asyncio.sleep(0.9)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.1)
        began = now()
        assert (await start_times(limiter, {"requests": 5}))[0] == pytest.approx(began, abs=1e-5)

    check(BOTH, body)


def test_a_pause_holds_everybody_and_then_the_pace_goes_on(check: Check) -> None:
    """After a 429, those who wait start no sooner than the provider said, and then with no more
    than one burst."""

    async def body(limiter: Limiter) -> None:
        waiting = asyncio.create_task(start_times(limiter, *[{"requests": 1}] * 10))
        await asyncio.sleep(0.25)
        limiter.not_before("q", 2.0)
        starts = await waiting
        assert starts == about(0.1, 0.2, *[2.25] * 5, 2.35, 2.45, 2.55)
        assert limiter.stats()["q"].throttled == 1

    check(REQUESTS, body)


def test_a_shorter_pause_does_not_end_a_longer_one(check: Check) -> None:
    """Of two pauses the later end counts, and nonsense pauses for nothing."""

    async def body(limiter: Limiter) -> None:
        await start_times(limiter, {"requests": 1})
        limiter.not_before("q", 3.0)
        limiter.not_before("q", 1.0)
        limiter.not_before("q", -5.0)
        limiter.not_before("q", math.nan)
        assert await start_times(limiter, {"requests": 1}) == about(3.1)

    check(REQUESTS, body)


def test_no_limits_means_no_waiting_but_a_pause_still_holds(check: Check) -> None:
    """A quota without limits lets everything go, except while the provider has said 429."""

    async def body(limiter: Limiter) -> None:
        assert await start_times(limiter, *[{"requests": 1, "tokens": 1e9}] * 3) == about(0, 0, 0)
        limiter.not_before("q", 2.0)
        assert await start_times(limiter, {"requests": 1}) == about(2.0)
        assert await start_times(limiter, {"requests": 1}) == about(2.0)

    check(FREE, body)


@pytest.mark.parametrize("quota", [FREE, REQUESTS])
def test_a_ticket_at_once_is_one_that_need_not_be_waited_for(check: Check, quota: Quota) -> None:
    """A shared quota without limits gives one, and it counts like any other; none does while a
    pause holds requests."""

    async def body(limiter: Limiter) -> None:
        async with limiter.ticket("q", {"requests": 1}) as ticket:
            ticket.answered()
        at_once = limiter.at_once("q")
        assert (at_once is not None) == (quota is FREE and isinstance(limiter, SharedLimiter))
        if at_once is not None:
            at_once.start()
            at_once.answered()
            assert limiter.stats()["q"].in_flight == 0
        limiter.not_before("q", 2.0)
        assert limiter.at_once("q") is None
        [started] = await start_times(limiter, {"requests": 1})
        assert started >= 2.0

    check(quota, body)


async def answered(limiter: Limiter, times: int) -> None:
    """So many good answers, one after the other."""
    for _ in range(times):
        async with limiter.ticket("q", {"requests": 1}) as ticket:
            ticket.answered()


async def refused(limiter: Limiter, times: int, *, retry_after_s: float) -> None:
    """So many 429s of one flight."""
    tickets = [await limiter.acquire("q", {"requests": 1}) for _ in range(times)]
    for ticket in tickets:
        ticket.failed(Signal.THROTTLED, retry_after_s=retry_after_s)


@pytest.mark.parametrize(
    ("good", "refusals", "retry_after_s", "held_s"),
    [
        (20, 1, 10.0, 0.0),  # a lone one among many good answers
        (19, 1, 10.0, 10.0),  # too few good answers
        (20, 2, 10.0, 10.0),  # the second of a flight
        (500, 2, 10.0, 10.0),  # patience is not saved up
        (500, 1, 60.0, 0.0),
        (500, 1, 61.0, 61.0),  # longer than a minute: not a limit per minute
    ],
)
def test_a_stray_429_holds_back_nobody_else(
    check: Check, good: int, refusals: int, retry_after_s: float, held_s: float
) -> None:
    """One refusal among twenty good answers stops no caller; all pause from the second of a flight
    (E3)."""

    async def body(limiter: Limiter) -> None:
        await answered(limiter, good)
        began = now()
        await refused(limiter, refusals, retry_after_s=retry_after_s)
        await answered(limiter, 1)
        assert [now() - began] == about(held_s)
        assert limiter.stats()["q"].throttled == refusals

    check(FREE, body)


def test_a_large_flight_may_have_several_stray_429s(check: Check) -> None:
    """With 100 under way five refusals are one in twenty; the sixth stops all of them (E3)."""

    async def body(limiter: Limiter) -> None:
        flight = [await limiter.acquire("q", {"requests": 1}) for _ in range(206)]
        for ticket in flight[:100]:
            ticket.answered()
        for ticket, paused in zip(flight[100:], [False] * 5 + [True], strict=False):
            ticket.failed(Signal.THROTTLED, retry_after_s=1.0)
            began = now()
            await answered(limiter, 1)
            assert now() - began == pytest.approx(1.0 if paused else 0.0, abs=1e-5)

    check(FREE, body)


def test_a_429_while_the_limits_make_others_wait_stops_everybody(check: Check) -> None:
    """At the limit a refusal says that the provider's bucket is empty, however good the answers
    before it were (E3)."""

    async def body(limiter: Limiter) -> None:
        await answered(limiter, 100)
        began = now()
        await refused(limiter, 1, retry_after_s=10.0)
        await answered(limiter, 1)
        assert now() - began >= 10.0

    check(REQUESTS, body)


def test_a_429_well_inside_the_limits_is_stray(check: Check) -> None:
    """Where no caller has waited for the limits for five seconds, a lone refusal is not about them
    (E3)."""

    async def body(limiter: Limiter) -> None:
        for _ in range(100):
            await answered(limiter, 1)
            await asyncio.sleep(0.5)
        began = now()
        await refused(limiter, 1, retry_after_s=10.0)
        await answered(limiter, 1)
        assert [now() - began] == about(0.0)

    check(REQUESTS, body)


def test_costs_without_a_limit_are_free(check: Check) -> None:
    """A caller may always name requests and tokens; only limited dimensions count."""

    async def body(limiter: Limiter) -> None:
        assert await start_times(limiter, *[{"requests": 1, "tokens": 1e9}] * 2) == about(0.1, 0.2)

    check(REQUESTS, body)


@pytest.mark.parametrize("cost", [-1.0, math.nan])
def test_a_cost_that_is_no_cost_is_refused(check: Check, cost: float) -> None:
    """A negative cost or NaN would make the shared quota wrong for all who use it."""

    async def body(limiter: Limiter) -> None:
        with pytest.raises(BadCost, match="tokens"):
            await limiter.acquire("q", {"tokens": cost})
        ticket: Ticket = await limiter.acquire("q", {"tokens": 1})
        with pytest.raises(BadCost, match="tokens"):
            ticket.settle({"tokens": cost})

    check(TOKENS, body)


def test_an_undeclared_quota_is_named(check: Check) -> None:
    """The error for an unknown quota names it and those that are declared."""

    async def body(limiter: Limiter) -> None:
        with pytest.raises(UnknownQuota, match=r"'x' is not declared.*declared: q"):
            await limiter.acquire("x", {"requests": 1})

    check(REQUESTS, body)


def test_closing_wakes_those_who_wait(check: Check) -> None:
    """No caller hangs on a closed limiter, neither one that waited before nor one that asks
    afterwards."""

    async def body(limiter: Limiter) -> None:
        waiting = [asyncio.create_task(limiter.acquire("q", {"tokens": 100})) for _ in range(50)]
        await asyncio.sleep(0.1)
        await limiter.aclose()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} == {LimiterClosed}
        with pytest.raises(LimiterClosed):
            await limiter.acquire("q", {"tokens": 1})

    check(TOKENS, body)


def test_a_closed_limiter_opens_no_quota(check: Check) -> None:
    """A limiter that was closed before its first use stays closed."""

    async def body(limiter: Limiter) -> None:
        await limiter.aclose()
        with pytest.raises(LimiterClosed, match="'q': the limiter is closed; open a new one"):
            await limiter.acquire("q", {"tokens": 1})

    check(TOKENS, body)


def test_the_books_add_up(check: Check) -> None:
    """Stats say what may be used, what was, and who waits."""

    async def body(limiter: Limiter) -> None:
        async with limiter.ticket("q", {"requests": 1, "tokens": 40}) as ticket:
            ticket.settle({"tokens": 30})
        waiting = [
            asyncio.create_task(limiter.acquire("q", {"requests": 1, "tokens": 100}))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stats = limiter.stats()["q"]
        assert (stats.allowed, stats.granted, stats.waiting) == (
            {"requests": 10, "tokens": 100},
            1,
            3,
        )
        await asyncio.gather(*waiting)
        stats = limiter.stats()["q"]
        assert stats.used == {"requests": pytest.approx(4), "tokens": pytest.approx(330)}
        assert (stats.granted, stats.waiting) == (4, 0)

    check(BOTH, body)
