"""What a fleet of limiters does when the provider says no: pauses, the breaker, holds, gentler
slopes, other limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from limiter_fleet import Fleet, Play, now

from penstock_ratelimit import (
    PerMinute,
    PerSecond,
    Quota,
    QuotaHeld,
    SharedLimiter,
    Signal,
    Slope,
    Usage,
)
from penstock_ratelimit.shared.concurrency import PROBE_S
from penstock_ratelimit.shared.reserving import ASK_AGAIN_S

FREE = Quota("q")
PACED = Quota("q", {"requests": PerSecond(40)}, burst_s=0.5, horizon_s=1.0, margin=1.0)
PROBED = Quota("q", {"requests": PerSecond(40)}, burst_s=0.5, horizon_s=1.0, margin=1.0, probe=True)
Run = Callable[[Play], None]


async def send(limiter: SharedLimiter, signal: Signal = Signal.OK, **options: Any) -> None:
    async with limiter.ticket("q", {"requests": 1}) as ticket:
        if signal is Signal.OK:
            ticket.answered(**options)
        else:
            ticket.failed(signal, **options)


@pytest.mark.parametrize("quota", [FREE, PACED], ids=["without limits", "paced"])
@pytest.mark.parametrize("signal", [Signal.OUT_OF_MONEY, Signal.UNAUTHORIZED])
def test_an_account_in_trouble_is_held_for_all(play: Run, quota: Quota, signal: Signal) -> None:
    """Who waits and who comes later gets the reason, in every process, until the hold is lifted."""

    async def body(fleet: Fleet) -> None:
        one, other = fleet.process(quota), fleet.process(quota)
        await send(one)
        await send(other)
        await send(one, signal, reason="the card was refused")
        await asyncio.sleep(1.5)
        for limiter in (one, other):
            await send_ignoring(limiter)
            await asyncio.sleep(1.5)
            with pytest.raises(QuotaHeld, match="the card was refused"):
                await send(limiter)
            assert limiter.stats()["q"].held == "the card was refused"
        await one.lift("q")
        for limiter in (one, other):
            await send(limiter)

    play(body)


async def send_ignoring(limiter: SharedLimiter) -> None:
    """A quota without limits may let one more through before it hears of the hold."""
    with contextlib.suppress(QuotaHeld):
        await send(limiter)


def test_a_hold_frees_those_who_wait(play: Run) -> None:
    """Callers in line when the account is held do not wait for their turn to hear it."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(PACED)
        waiting = [asyncio.create_task(send(limiter)) for _ in range(400)]
        await asyncio.sleep(1)
        await send(fleet.process(PACED), Signal.OUT_OF_MONEY, reason="empty")
        await asyncio.sleep(3)
        done = [task for task in waiting if task.done()]
        assert len(done) == 400
        assert sum(isinstance(task.exception(), QuotaHeld) for task in done) > 200

    play(body)


def test_another_key_ends_a_hold(play: Run) -> None:
    """A process that starts with another key is not kept from trying it."""

    async def body(fleet: Fleet) -> None:
        await send(
            fleet.process(Quota("q", {"requests": PerSecond(40)}, account="old")),
            Signal.UNAUTHORIZED,
        )
        await asyncio.sleep(1)
        with pytest.raises(QuotaHeld):
            await send(fleet.process(Quota("q", {"requests": PerSecond(40)}, account="old")))
        await send(fleet.process(Quota("q", {"requests": PerSecond(40)}, account="new")))

    play(body)


def test_one_request_per_process_finds_out(play: Run) -> None:
    """With a probed quota, hundreds wait while one request per process shows that the key is
    refused."""

    async def body(fleet: Fleet) -> None:
        sent = []

        async def call(limiter: SharedLimiter) -> None:
            async with limiter.ticket("q", {"requests": 1}) as ticket:
                sent.append(now())
                await asyncio.sleep(0.2)
                ticket.failed(Signal.UNAUTHORIZED, reason="401")

        limiters = [fleet.process(PROBED) for _ in range(4)]
        callers = [asyncio.create_task(call(limiter)) for limiter in limiters for _ in range(100)]
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert 1 <= len(sent) <= 4
        assert sum(isinstance(result, QuotaHeld) for result in results) == 400 - len(sent)

    play(body)


def test_a_probe_that_is_answered_opens_the_quota_to_all(play: Run) -> None:
    """After the first good answer all others follow at the full rate."""

    async def body(fleet: Fleet) -> None:
        async def call(limiter: SharedLimiter) -> None:
            async with limiter.ticket("q", {"requests": 1}) as ticket:
                await asyncio.sleep(0.2)
                ticket.answered()

        limiters = [fleet.process(PROBED) for _ in range(2)]
        await asyncio.gather(*(call(limiter) for limiter in limiters for _ in range(100)))
        assert now() < 200 / 40 + 1.5

    play(body)


def test_a_slow_answer_to_the_probe_does_not_hold_up_the_others(play: Run) -> None:
    """A refusal comes at once; who has not refused the probe within three seconds is working on
    it."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(PROBED)
        waiting = [asyncio.create_task(limiter.acquire("q", {"requests": 1})) for _ in range(40)]
        await asyncio.sleep(PROBE_S - 0.1)
        assert sum(task.done() for task in waiting) == 1
        await asyncio.sleep(3)
        assert all(task.done() for task in waiting)

    play(body)


@pytest.mark.parametrize("quota", [FREE, PACED], ids=["without limits", "paced"])
def test_probes_of_which_nothing_comes_hold_nothing_up(play: Run, quota: Quota) -> None:
    """The first in line have ended meanwhile, as calls do whose callers have gone: each gives its
    probe to the next, and the fleet goes on as soon as the server answers."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(quota)
        for _ in range(8):
            await send(limiter, Signal.TRANSIENT)
        await asyncio.sleep(1.5)
        began, ended = now(), [asyncio.create_task(nothing_sent(limiter)) for _ in range(40)]
        given_up = asyncio.create_task(send(limiter))
        await asyncio.gather(*ended)
        given_up.cancel()
        for _ in range(3):
            await send(limiter)
        await asyncio.sleep(1.5)
        assert limiter.stats()["q"].breaker == "closed"
        assert now() - began < 30

    play(body)


async def nothing_sent(limiter: SharedLimiter) -> None:
    async with limiter.ticket("q", {"requests": 1}):
        """It is given back at the end."""


@pytest.mark.parametrize("quota", [FREE, PACED], ids=["without limits", "paced"])
def test_a_failing_server_is_left_alone_by_all(play: Run, quota: Quota) -> None:
    """When everything fails the breaker opens for the whole fleet; what is sent then is three
    probes, not the queue."""

    async def body(fleet: Fleet) -> None:
        ill = True
        sent: list[float] = []

        async def call(limiter: SharedLimiter) -> None:
            async with limiter.ticket("q", {"requests": 1}) as ticket:
                sent.append(now())
                await asyncio.sleep(0.1)
                if ill:
                    ticket.failed(Signal.TRANSIENT)
                else:
                    ticket.answered()

        async def work(limiter: SharedLimiter) -> None:
            while True:
                await call(limiter)

        limiters = [fleet.process(quota) for _ in range(4)]
        workers = [asyncio.create_task(work(limiter)) for limiter in limiters for _ in range(5)]
        await asyncio.sleep(10)
        assert {limiter.stats()["q"].breaker for limiter in limiters} == {"open"}
        before = len(sent)
        await asyncio.sleep(60)
        assert len(sent) - before <= 60
        ill = False
        await asyncio.sleep(180)
        assert {limiter.stats()["q"].breaker for limiter in limiters} == {"closed"}
        assert sum(start > now() - 10 for start in sent) >= 350
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    play(body)


def test_a_429_without_limits_stops_all(play: Run) -> None:
    """Processes that share a quota without limits share its pauses."""

    async def body(fleet: Fleet) -> None:
        one, other = fleet.process(FREE), fleet.process(FREE)
        await send(one)
        await send(other)
        await asyncio.sleep(2)
        began = now()
        await send(one, Signal.THROTTLED, retry_after_s=10.0)
        await send(other)
        await asyncio.sleep(1.5)
        await send(other)
        assert now() - began == pytest.approx(10.0, abs=0.2)

    play(body)


def test_headers_bring_limits_nobody_declared(play: Run) -> None:
    """A quota that discovers is paced by what the first answer's headers tell, in every process."""

    async def body(fleet: Fleet) -> None:
        quota = Quota("q", profile="openai", discover=True, margin=1.0)
        headers = {
            "x-ratelimit-limit-requests": "600",
            "x-ratelimit-remaining-requests": "599",
            "x-ratelimit-reset-requests": "100ms",
        }
        limiters = [fleet.process(quota) for _ in range(2)]
        await send(limiters[0], headers=headers)
        await asyncio.sleep(2)
        sent = []

        async def work(limiter: SharedLimiter) -> None:
            while True:
                async with limiter.ticket("q", {"requests": 1}) as ticket:
                    sent.append(now())
                    await asyncio.sleep(0.1)
                    ticket.answered()

        workers = [asyncio.create_task(work(limiter)) for limiter in limiters for _ in range(20)]
        await asyncio.sleep(30)
        assert sum(start > now() - 20 for start in sent) == pytest.approx(200, abs=6)
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    play(body)


def test_a_limit_lowered_mid_run_reaches_all_and_is_raised_again_no_higher_than_declared(
    play: Run,
) -> None:
    """Half the limit in one answer's headers halves the pace of the whole fleet; ten times the
    limit only restores it."""

    async def body(fleet: Fleet) -> None:
        quota = Quota("q", {"requests": PerMinute(600)}, profile="openai", margin=1.0)
        limiters = [fleet.process(quota) for _ in range(2)]

        def told(limit: int) -> dict[str, str]:
            return {
                "x-ratelimit-limit-requests": str(limit),
                "x-ratelimit-remaining-requests": str(limit - 1),
                "x-ratelimit-reset-requests": f"{60 / limit:.6f}s",
            }

        for limit, allowed in ((300, 5.0), (6000, 10.0)):
            await send(limiters[0], headers=told(limit))
            await asyncio.sleep(30)  # the slope of a start is over by then
            for limiter in limiters:
                await send(limiter)
            await asyncio.sleep(1)
            for limiter in limiters:
                assert limiter.stats()["q"].allowed["requests"] == pytest.approx(allowed, rel=0.01)

    play(body)


def test_a_ramp_signal_lowers_the_pace_and_lets_it_grow_slowly(play: Run) -> None:
    """After `slow_down` the fleet sends less, and a minute later not yet what it did before."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(Quota("q", {"requests": PerSecond(40)}, margin=1.0))
        fleet.work("a", limiter, slots=60)
        await asyncio.sleep(10)
        async with limiter.ticket("q", {"requests": 1}) as ticket:
            ticket.failed(Signal.RAMP)
        await asyncio.sleep(20)
        slow = fleet.count("a", now() - 10) / 10
        assert 15 <= slow <= 32
        await asyncio.sleep(60)
        assert slow <= fleet.count("a", now() - 10) / 10 < 38

    play(body)


def test_a_long_idle_quota_starts_gently_where_the_provider_wants_it(play: Run) -> None:
    """With a slope after idle time, the first seconds run at a part of the rate, and the whole
    follows."""

    async def body(fleet: Fleet) -> None:
        slope = Slope(start=0.25, doubling_s=5.0, after_idle_s=60.0)
        limiter = fleet.process(Quota("q", {"requests": PerSecond(40)}, margin=1.0, slope=slope))
        await send(limiter)
        await asyncio.sleep(120)
        began = now()
        fleet.work("a", limiter, slots=100)
        await asyncio.sleep(4)
        assert fleet.count("a", began) <= 4 * 20 + 10
        await asyncio.sleep(20)
        assert fleet.count("a", now() - 5) == pytest.approx(200, abs=10)

    play(body)


def test_an_overestimate_is_settled_by_the_profile(play: Run) -> None:
    """What an answer used replaces what was reserved, in the provider's own way of counting."""

    async def body(fleet: Fleet) -> None:
        quota = Quota("q", {"tokens": PerSecond(1000)}, margin=1.0)
        limiter = fleet.process(quota)
        async with limiter.ticket("q", {"requests": 1, "tokens": 800}) as ticket:
            ticket.answered(usage=Usage(100, 50))
        assert limiter.stats()["q"].used["tokens"] == 150

    play(body)


def test_the_retry_budget_runs_out_and_recovers(play: Run) -> None:
    """Fifty retries without a success are enough while others wait; with none waiting all may;
    successes earn more."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(PACED)
        await send(limiter)
        for _ in range(60):
            async with limiter.ticket("q", {"requests": 1}, retry=True) as ticket:
                ticket.failed(Signal.THROTTLED, retry_after_s=0.01)
            await asyncio.sleep(0.1)
        await send(limiter)
        assert limiter.may_retry("q")
        fleet.work("others", limiter, slots=100)
        await asyncio.sleep(2)
        assert not limiter.may_retry("q")
        for _ in range(500):
            await send(limiter)
        await asyncio.sleep(2)
        assert limiter.may_retry("q")

    play(body)


def test_nothing_is_put_off_when_only_retries_are_left(play: Run) -> None:
    """With a spent budget a retry gives way to requests that were never sent, not to other retries
    (E4)."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(PACED)
        for number in range(60):
            async with limiter.ticket("q", {"requests": 1}, retry=True) as ticket:
                ticket.failed(Signal.TRANSIENT if number % 2 else Signal.REFUSED)
        retries = [
            asyncio.create_task(limiter.acquire("q", {"requests": 1}, retry=True))
            for _ in range(200)
        ]
        await asyncio.sleep(1)
        assert limiter.stats()["q"].waiting > 0
        assert limiter.may_retry("q")
        first = asyncio.create_task(limiter.acquire("q", {"requests": 1}))
        await asyncio.sleep(0)
        assert not limiter.may_retry("q")
        for task in (*retries, first):
            task.cancel()
        await asyncio.gather(*retries, first, return_exceptions=True)

    play(body)


def test_a_start_fills_256_slots_in_six_round_trips(play: Run) -> None:
    """One for the probe and five for the doublings: at 200 ms per call all slots are taken after
    1.2 s (E5)."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(Quota("q", concurrency=256, probe=True))
        full_at: list[float] = []

        async def work() -> None:
            while not full_at:
                async with limiter.ticket("q", {"requests": 1}) as ticket:
                    if limiter.stats()["q"].in_flight == 256:
                        full_at.append(now())
                    await asyncio.sleep(0.2)
                    ticket.answered(usage=Usage(10, 10))

        await asyncio.gather(*(work() for _ in range(300)))
        assert full_at[0] == pytest.approx(1.2, abs=0.01)

    play(body)


def test_stray_429s_cost_a_job_next_to_nothing(play: Run) -> None:
    """2,000 requests of 30 ms, one in two hundred refused with a Retry-After of 1 s, take as long
    as without refusals (E3)."""

    async def took(fleet: Fleet, refuse_every: int) -> float:
        limiter = fleet.process(Quota("q", concurrency=256, probe=True))
        began, numbers = now(), iter(range(1, 2001))

        async def work() -> None:
            for number in numbers:
                async with limiter.ticket("q", {"requests": 1}) as ticket:
                    await asyncio.sleep(0.03)
                    if number % refuse_every == 0:
                        ticket.failed(Signal.THROTTLED, retry_after_s=1.0)
                    else:
                        ticket.answered(usage=Usage(10, 10))

        await asyncio.gather(*(work() for _ in range(256)))
        return now() - began

    async def body(fleet: Fleet) -> None:
        undisturbed = await took(fleet, refuse_every=10_000)
        assert await took(fleet, refuse_every=200) == pytest.approx(undisturbed, rel=0.1)

    play(body)


def test_in_flight_follows_the_server_where_no_limit_is_published(play: Run) -> None:
    """With adaptive concurrency a server that sheds load above 20 in flight is kept near that, not
    at 200."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(Quota("q", concurrency=200))
        busy, refused, served = 0, 0, 0

        async def work() -> None:
            nonlocal busy, refused, served
            while True:
                async with limiter.ticket("q", {"requests": 1}) as ticket:
                    busy += 1
                    shed = busy > 20
                    await asyncio.sleep(0.01 if shed else 1.0)
                    busy -= 1
                    if shed:
                        refused += 1
                        ticket.failed(Signal.OVERLOADED)
                    else:
                        served += 1
                        ticket.answered(usage=Usage(10, 10))

        workers = [asyncio.create_task(work()) for _ in range(200)]
        await asyncio.sleep(60)
        refused = served = 0
        await asyncio.sleep(120)
        assert served >= 0.7 * 20 * 120
        assert refused <= 0.2 * served
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    play(body)


@pytest.mark.parametrize("quota", [FREE, PACED], ids=["without limits", "paced"])
def test_a_lift_ends_a_long_pause_in_every_process(play: Run, quota: Quota) -> None:
    """After a Retry-After of 800 s, one lift starts those who wait, in each process, within seconds
    (A2)."""

    async def body(fleet: Fleet) -> None:
        limiters = [fleet.process(quota) for _ in range(3)]
        for limiter in limiters:
            await send(limiter)
        await send(limiters[0], Signal.THROTTLED, retry_after_s=800.0)
        await asyncio.sleep(1.5)
        waiting = [asyncio.create_task(send(limiter)) for limiter in limiters for _ in range(5)]
        await asyncio.sleep(20)
        assert not [task for task in waiting if task.done()]
        await limiters[1].lift("q")
        done, late = await asyncio.wait(waiting, timeout=ASK_AGAIN_S + 1.0)
        assert (len(done), len(late)) == (15, 0)
        await asyncio.wait_for(send(limiters[2]), timeout=1.0)

    play(body)


def test_a_pause_that_is_not_lifted_lasts_as_long_as_it_was_told(play: Run) -> None:
    """Asking again meanwhile neither shortens a pause nor makes it longer (A2)."""

    async def body(fleet: Fleet) -> None:
        limiters = [fleet.process(PACED) for _ in range(2)]
        for limiter in limiters:
            await send(limiter)
        began = now()
        await send(limiters[0], Signal.THROTTLED, retry_after_s=61.0)
        await asyncio.gather(*(send(limiter) for limiter in limiters))
        assert now() - began == pytest.approx(61.0, abs=1.1)

    play(body)


def test_a_lift_lets_an_open_breaker_try_at_once(play: Run) -> None:
    """Who says that the provider is back is believed as far as three probes (A2)."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(PACED)
        await send(limiter)
        for _ in range(6):  # each opening lasts longer, up to two minutes
            while limiter.stats()["q"].breaker != "open":
                await send(limiter, Signal.TRANSIENT)
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.2)
            await limiter.lift("q")
            await asyncio.wait_for(send(limiter), timeout=ASK_AGAIN_S + 1.0)

    play(body)


def told(limit: float, *, of: str = "requests", every: str = "60s") -> dict[str, str]:
    """Headers of an empty bucket of ``limit`` per ``every``."""
    return {
        f"x-ratelimit-limit-{of}": f"{limit:g}",
        f"x-ratelimit-remaining-{of}": "0",
        f"x-ratelimit-reset-{of}": every,
    }


def limit_in_force(fleet: Fleet, dim: str) -> float:
    """Units per second, as Redis has it."""
    return float(str(fleet.raw.hget("penstock:{q:q}", f"r:{dim}")))


DISCOVERS = Quota("q", profile="openai", discover=True, margin=1.0)
DECLARED = Quota("q", {"requests": PerSecond(100)}, profile="openai", margin=1.0)


@pytest.mark.parametrize("quota", [DISCOVERS, DECLARED], ids=["discovered", "declared"])
def test_a_limit_that_is_told_no_more_is_forgotten(play: Run, quota: Quota) -> None:
    """One answer with "limit-requests: 1" does not make the fleet crawl: within a minute it goes as
    before (A11)."""

    async def body(fleet: Fleet) -> None:
        limiters = [fleet.process(quota) for _ in range(2)]
        for limiter in limiters:
            await send(limiter)
        await send(limiters[0], headers=told(60))
        await asyncio.sleep(2)
        sent = []

        async def work(limiter: SharedLimiter) -> None:
            while True:
                async with limiter.ticket("q", {"requests": 1}) as ticket:
                    sent.append(now())
                    await asyncio.sleep(0.1)
                    ticket.answered({"content-type": "application/json"})

        workers = [asyncio.create_task(work(limiter)) for limiter in limiters for _ in range(5)]
        await asyncio.sleep(10)
        assert len(sent) < 40  # the limit in the header is believed
        await asyncio.sleep(50)
        before = len(sent)
        await asyncio.sleep(10)
        assert len(sent) - before > 500
        assert limiters[1].stats()["q"].allowed == (
            {} if quota is DISCOVERS else {"requests": 100.0}
        )
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    play(body)


def test_a_limit_so_low_that_nothing_starts_is_forgotten_too(play: Run) -> None:
    """ "limit-tokens: 10" for requests of 241 tokens is no stall of minutes, and no request is
    refused as too large (A11)."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(DISCOVERS)

        async def call() -> None:
            async with limiter.ticket(
                "q", {"requests": 1, "tokens": 241}, certain={"tokens": 200}
            ) as ticket:
                await asyncio.sleep(0.1)
                ticket.answered({})

        await asyncio.gather(*(call() for _ in range(200)))
        await asyncio.sleep(1)
        await send(limiter, headers=told(10, of="tokens"))
        await asyncio.sleep(2)
        assert limit_in_force(fleet, "tokens") == pytest.approx(10 / 60)
        began = now()
        await asyncio.gather(*(call() for _ in range(50)))
        assert now() - began < 60

    play(body)


def test_a_limit_that_answers_go_on_telling_stays(play: Run) -> None:
    """What the provider tells with each answer is kept, in processes that are idle as well
    (A11)."""

    async def body(fleet: Fleet) -> None:
        busy, idle = fleet.process(DISCOVERS), fleet.process(DISCOVERS)
        await send(idle)
        for _ in range(100):
            await send(busy, headers=told(120))
            await asyncio.sleep(1)
        assert limit_in_force(fleet, "requests") == pytest.approx(2.0)

    play(body)


def test_an_idle_fleet_forgets_no_limit(play: Run) -> None:
    """Without answers nothing shows that the limit is gone: an hour's rest is followed by no burst
    (A11)."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(DISCOVERS)
        await send(limiter, headers=told(120))
        await asyncio.sleep(3600)
        assert limit_in_force(fleet, "requests") == pytest.approx(2.0)

    play(body)


def test_a_slow_limit_is_not_forgotten_between_its_own_answers(play: Run) -> None:
    """One request in two minutes tells its limit as rarely, and is still paced by it (A11)."""

    async def body(fleet: Fleet) -> None:
        limiter = fleet.process(DISCOVERS)
        await send(limiter, headers=told(1))
        sent = []

        async def call() -> None:
            async with limiter.ticket("q", {"requests": 1}) as ticket:
                sent.append(now())
                ticket.answered(told(1))

        await asyncio.gather(*(call() for _ in range(6)))
        assert min(later - earlier for earlier, later in pairwise(sent)) > 55

    play(body)
