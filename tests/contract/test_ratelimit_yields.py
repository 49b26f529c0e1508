"""A fleet that holds back for others at a server: who looks, what each may have in flight, and what
is left of a key's limits, on a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf

import pytest
import redis.asyncio
from one_quota import Redis, run, without_limits
from servers import RedisServer

from penstock_ratelimit import (
    InteractiveTarget,
    PerSecond,
    Quota,
    ServerGauges,
    SharedLimiter,
    Ticket,
)
from penstock_ratelimit.interactive import START, Yielding
from penstock_ratelimit.watch import read_quotas

LASTS_S = 5.0
BUSY = '{"in_flight": 3, "waiting": 9}'


def fleet(server: RedisServer, *names: str) -> Redis:
    """A quota with these processes, which have said what they have to do."""
    quota = Redis(server, without_limits())
    for name in names:
        run(quota.hash.heartbeat(name, 15, BUSY))
    return quota


def test_one_process_of_all_looks(redis_server: RedisServer) -> None:
    """The first that asks, for as long as it gives signs; after five seconds without, another."""
    quota = fleet(redis_server, "a", "b")
    first = run(quota.hash.look("a", LASTS_S))
    assert (first.looks, first.part) == (True, None)
    assert first.said == {"a": BUSY, "b": BUSY}
    assert not run(quota.hash.look("b", LASTS_S)).looks
    quota.sleep(4.9)
    assert run(quota.hash.look("a", LASTS_S)).looks
    quota.sleep(4.9)
    assert not run(quota.hash.look("b", LASTS_S)).looks
    quota.sleep(0.2)
    assert run(quota.hash.look("b", LASTS_S)).looks
    assert not run(quota.hash.look("a", LASTS_S)).looks


def test_a_clock_that_steps_back_leaves_no_fleet_without_eyes(redis_server: RedisServer) -> None:
    """A lease that would last longer than any lease is none."""
    quota = fleet(redis_server, "a", "b")
    assert run(quota.hash.look("a", LASTS_S)).looks
    quota.sleep(-3_600)
    assert run(quota.hash.look("b", LASTS_S)).looks


def test_each_hears_its_part_and_only_who_looks_decides(redis_server: RedisServer) -> None:
    """A decision replaces all parts; one that comes from a process which no longer looks is
    dropped."""
    quota = fleet(redis_server, "a", "b")
    run(quota.hash.look("a", LASTS_S))
    run(quota.hash.look("a", LASTS_S, Yielding(ceiling=7).to_json(), {"a": 3, "b": 4}))
    assert run(quota.hash.look("b", LASTS_S)).part == 4
    quota.sleep(6)
    taken = run(quota.hash.look("b", LASTS_S))
    assert taken.looks
    assert Yielding.from_json(taken.decided) == Yielding(ceiling=7)
    late = run(quota.hash.look("a", LASTS_S, Yielding(ceiling=99).to_json(), {"a": 99}))
    assert (late.looks, late.part) == (False, 3)
    run(quota.hash.look("b", LASTS_S, Yielding(ceiling=2).to_json(), {"b": 2}))
    assert run(quota.hash.look("a", LASTS_S)).part is None


def test_a_decision_is_seen_while_it_is_fresh(redis_server: RedisServer) -> None:
    """Screens show it for a quarter of a minute; odd texts in Redis are none."""
    quota = fleet(redis_server, "a")
    decided = Yielding("over", 12.0, 0.5, 1.25, binds=True)
    run(quota.hash.look("a", LASTS_S, decided.to_json(), {"a": 12}))

    def seen() -> Yielding | None:
        (view,) = read_quotas(quota.raw, quota_ids=[quota.quota.id], clock_us=quota.clock)
        return view.yields

    assert seen() == decided
    quota.sleep(16)
    assert seen() is None
    run(quota.hash.look("a", LASTS_S, "{odd", {"a": 1}))
    assert seen() is None


@asynccontextmanager
async def limiters(
    server: RedisServer, quota: Quota, number: int
) -> AsyncIterator[list[SharedLimiter]]:
    client = redis.asyncio.Redis.from_url(server.url)
    found = [SharedLimiter(client, [quota]) for _ in range(number)]
    try:
        yield found
    finally:
        for limiter in found:
            await limiter.aclose()
        await client.aclose()


class Calls:
    """Callers that want everything, and keep what they get until they are let go."""

    def __init__(self, limiter: SharedLimiter, quota_id: str) -> None:
        self.held: list[Ticket] = []
        self._limiter, self._quota_id = limiter, quota_id
        self._tasks = [asyncio.create_task(self._call()) for _ in range(60)]

    async def _call(self) -> None:
        ticket = await self._limiter.acquire(self._quota_id, {})
        ticket.start()
        self.held.append(ticket)

    def let_go(self) -> None:
        while self.held:
            self.held.pop().answered()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.let_go()


async def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - Redis and the limiter's tasks have no event for it
            await asyncio.sleep(0.02)


def late(count: float) -> ServerGauges:
    """A server whose answers all took two seconds to begin, behind a queue."""
    return ServerGauges(9, 30, ((1.0, 0.0), (2.5, count), (inf, count)), 2 * count, count)


def test_a_fleet_begins_small_and_one_process_is_asked_to_look(redis_server: RedisServer) -> None:
    """Two processes with sixty callers each have eight calls in flight between them, and after
    figures of a server that is late they have fewer."""
    quota = Quota("shared-vllm", interactive=InteractiveTarget(0.5))

    async def main() -> None:
        async with limiters(redis_server, quota, 2) as fleet:
            assert not any(limiter.looks(quota.id) for limiter in fleet)
            calls = [Calls(limiter, quota.id) for limiter in fleet]
            try:
                await until(lambda: sum(len(one.held) for one in calls) == START)
                assert [limiter.looks(quota.id) for limiter in fleet].count(True) == 1
                await until(lambda: all(one.held for one in calls))
                (eyes,) = (one for one in fleet if one.looks(quota.id))
                for second in range(1, 5):
                    eyes.gauge(quota.id, late(40.0 * second))
                    await asyncio.sleep(1.0)
                for one in calls:
                    one.let_go()
                await asyncio.sleep(0.1)
                assert sum(len(one.held) for one in calls) < START
            finally:
                for one in calls:
                    await one.close()

    asyncio.run(main())


def test_a_process_that_leaves_makes_room_for_another_to_look(redis_server: RedisServer) -> None:
    """The one that goes on takes over within seconds, and has all of the ceiling."""
    quota = Quota("left-vllm", interactive=InteractiveTarget(0.5))

    async def main() -> None:
        async with limiters(redis_server, quota, 2) as fleet:
            calls = [Calls(limiter, quota.id) for limiter in fleet]
            await until(lambda: all(one.held for one in calls))
            leaves = next(n for n, one in enumerate(fleet) if one.looks(quota.id))
            await calls[leaves].close()
            await fleet[leaves].aclose()
            stays = calls[1 - leaves]
            await until(lambda: fleet[1 - leaves].looks(quota.id))
            await until(lambda: len(stays.held) == START)
            await stays.close()

    asyncio.run(main())


def test_a_quota_without_a_target_is_as_it_was(redis_server: RedisServer) -> None:
    """Every process looks at the server, and no ceiling bounds its calls."""
    quota = Quota("own-vllm")

    async def main() -> None:
        async with limiters(redis_server, quota, 1) as (limiter,):
            assert limiter.looks(quota.id)
            limiter.gauge(quota.id, late(40.0))
            limiter.unread(quota.id, "it answers 503")
            calls = Calls(limiter, quota.id)
            await until(lambda: len(calls.held) == 60)
            await calls.close()

    asyncio.run(main())


# --- the same key
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("margin", "reserve"), [(1.0, 0.2), (0.995, 0.05), (0.9, 0.5)])
def test_the_reserve_holds_within_a_hundredth(
    redis_server: RedisServer, margin: float, reserve: float
) -> None:
    """In ten minutes of more work than there is room for, the fleet starts what is left of the
    limit, and neither time nor refusals move what others were promised."""
    limits = {"tokens": PerSecond(1000)}
    quota = Redis(redis_server, Quota(f"r{reserve}", limits, margin=margin, reserve=reserve))
    started = 0.0
    for _ in range(600):
        started += 100.0 * len(quota.reserve(*[(100.0,)] * 20, ahead_s=1.0).waits_s)
        quota.sleep(1.0)
    left = 600 * 1000 * (1 - reserve)
    assert started <= 1.003 * left  # with the second ahead
    assert started >= 0.99 * left * min(1.0, margin + 0.005)


def test_headers_that_lower_a_limit_leave_the_same_part_of_it(redis_server: RedisServer) -> None:
    """Other terms have their own part left to others, and terms without one have none."""
    quota = Redis(redis_server, Quota("lowered", {"tokens": PerSecond(1000)}, margin=1.0))

    def allowed() -> float:
        (view,) = read_quotas(quota.raw, quota_ids=["lowered"], clock_us=quota.clock)
        (one,) = view.dimensions
        return one.allowed

    assert allowed() == pytest.approx(1000)
    quota.adopt(Quota("lowered", {"tokens": PerSecond(500)}, margin=1.0, reserve=0.2))
    assert allowed() == pytest.approx(400)
    quota.adopt(Quota("lowered", {"tokens": PerSecond(500)}, margin=1.0))
    assert allowed() == pytest.approx(500)
