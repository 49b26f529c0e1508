"""The few fields that the dashboard reads of a quota say what the rate limiter itself says of
it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from limiter_fleet import Fleet, Play
from one_quota import Redis, both, run
from servers import RedisServer

from penstock_ledger import quotas_seen
from penstock_ledger.in_redis.seen import YieldsSeen
from penstock_ratelimit import Quota, SharedLimiter
from penstock_ratelimit.shared.interactive import Yielding
from penstock_ratelimit.store.messages import ProviderReport
from penstock_ratelimit.watch import read_quotas


def test_the_dashboard_sees_of_a_quota_what_the_limiter_sees(redis_server: RedisServer) -> None:
    """Limits, calls started, 429s, a pause that the provider asked for and a hold, by the same
    clock."""
    quota = Redis(redis_server, both())
    quota.sleep(100)
    quota.reserve((1, 200), (1, 100))
    quota.reserve(pause_s=30, report=ProviderReport(throttled=1, ramp=2))
    quota.report(ProviderReport(hold="out_of_credit"))
    quota.sleep(5)
    (view,) = read_quotas(quota.raw, quota_ids=[quota.quota.id], clock_us=quota.clock)
    (seen,) = quotas_seen(quota.raw, clock_us=quota.clock)
    assert seen.limits == {one.name: pytest.approx(one.limit) for one in view.dimensions}
    assert (seen.granted, seen.throttled, seen.failures) == (
        2,
        view.throttled + view.ramps,
        view.failures,
    )
    assert (view.granted, seen.throttled) == (2, 3)
    assert (seen.hold, view.hold) == ("out_of_credit", "out_of_credit")
    assert [seen.held_s, view.held_s] == pytest.approx([5, 5])
    assert seen.pause_left_s == pytest.approx(view.pause_left_s)
    assert seen.open_left_s == pytest.approx(view.open_left_s)


def test_the_dashboard_sees_why_a_fleet_is_held_back(redis_server: RedisServer) -> None:
    """The same figures as the limiter's own view, for as long; odd texts are none."""
    quota = Redis(redis_server, both())
    decided = Yielding("over", 26.0, 0.5, 1.25, why="so", binds=True)
    run(quota.hash.look("a", 5, decided.to_json(), {"a": 26}))

    def seen() -> list[object]:
        (view,) = read_quotas(quota.raw, quota_ids=[quota.quota.id], clock_us=quota.clock)
        (of_page,) = quotas_seen(quota.raw, clock_us=quota.clock)
        return [view.yields, of_page.yields]

    of_limiter, of_page = seen()
    assert of_limiter == decided
    assert of_page == YieldsSeen("over", 26.0, 0.5, 1.25, "so", True)
    run(quota.hash.look("a", 5, '{"code": 7}', {"a": 26}))
    assert seen() == [None, None]
    run(quota.hash.look("a", 5, decided.to_json(), {"a": 26}))
    quota.sleep(16)
    assert seen() == [None, None]


def test_what_cannot_be_read_is_left_out(redis_server: RedisServer) -> None:
    """Anyone who reaches Redis may write there: odd texts are no figures, and stop no page."""
    client = redis_server.client()
    client.sadd("penstock:quotas", "odd", "gone")
    odd: dict[Any, Any] = {
        "config": b"{",
        "n": b"many",
        "bs": b"nan",
        "nb": b"inf",
        "hold": b"\xff",
        "hat": b"x",
    }
    client.hset("penstock:{q:odd}", mapping=odd)
    gone, seen = quotas_seen(client)
    assert (gone.quota_id, gone.granted, gone.hold) == ("gone", 0, "")
    assert (seen.limits, seen.granted, seen.pause_left_s, seen.hold) == ({}, 0, 0.0, "\ufffd")


def test_every_call_is_counted_where_nothing_limits_them(
    play: Callable[[Play], None], redis_server: RedisServer
) -> None:
    """Calls of a quota without limits start without asking Redis, and are in the count of both
    readers all the same (U6)."""
    counts: list[tuple[int, int]] = []

    async def body(fleet: Fleet) -> None:
        quota = Quota("free", concurrency=8)
        workers = [asyncio.create_task(calls(fleet.process(quota))) for _ in range(2)]
        await asyncio.gather(*workers)
        await asyncio.sleep(3)  # of the play's own clock: the last report has travelled
        (seen,), (view,) = quotas_seen(redis_server.client()), read_quotas(redis_server.client())
        counts.append((seen.granted, view.granted))

    play(body)
    assert counts == [(100, 100)]


async def calls(limiter: SharedLimiter) -> None:
    for _ in range(50):
        async with limiter.ticket("free", {"requests": 1}) as ticket:
            await asyncio.sleep(0.02)
            ticket.answered({})
