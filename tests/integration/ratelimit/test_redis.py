"""The shared limiter over a real connection to a real Redis that is killed, wiped and started
again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable

import pytest
import redis.asyncio
from servers import RedisServer

from penstock_ratelimit import PerSecond, Quota, SharedLimiter

QUOTA = Quota("q", {"requests": PerSecond(200), "tokens": PerSecond(100_000)}, margin=1.0)
COSTS = {"requests": 1.0, "tokens": 100.0}
PATIENCE_S = 20.0  # longest wait for something that should take a moment; never a measurement


@pytest.fixture
async def limiter_on() -> AsyncIterator[Callable[[RedisServer], SharedLimiter]]:
    opened: list[tuple[SharedLimiter, redis.asyncio.Redis]] = []

    def connect(server: RedisServer) -> SharedLimiter:
        client = redis.asyncio.Redis.from_url(server.url, client_name="limiter")
        opened.append((SharedLimiter(client, [QUOTA]), client))
        return opened[-1][0]

    yield connect
    for limiter, client in opened:
        await limiter.aclose()
        await client.aclose()


async def take(limiter: SharedLimiter, items: int) -> list[float]:
    """When each of ``items`` was let go."""

    async def one() -> float:
        async with limiter.ticket("q", COSTS) as ticket:
            ticket.settle({"tokens": 90})
            return asyncio.get_running_loop().time()

    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.gather(*(one() for _ in range(items)))


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happened():  # noqa: ASYNC110  # nothing fires an event when Redis goes or comes
            await asyncio.sleep(0.01)


async def test_two_limiters_never_start_more_than_the_quota(
    redis_server: RedisServer, limiter_on: Callable[[RedisServer], SharedLimiter]
) -> None:
    """Whatever the network does, what starts in the time that passed costs no more than rate times
    time plus a burst."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    limiters = [limiter_on(redis_server) for _ in range(2)]
    await asyncio.gather(*(take(limiter, 150) for limiter in limiters))
    assert 200 * (loop.time() - began) >= 300
    stats = [limiter.stats()["q"] for limiter in limiters]
    assert sum(one.granted for one in stats) == 300
    assert sum(one.calls for one in stats) <= 0.4 * 300


async def test_hundreds_of_callers_share_one_connection(
    redis_server: RedisServer, limiter_on: Callable[[RedisServer], SharedLimiter]
) -> None:
    """Five hundred waiting callers need one connection for tickets, besides one for heartbeats."""
    await take(limiter_on(redis_server), 500)
    names = [client["name"] for client in redis_server.client().client_list()]
    assert 1 <= names.count("limiter") <= 2


async def test_a_restart_that_loses_everything_is_survived(
    own_redis: RedisServer, limiter_on: Callable[[RedisServer], SharedLimiter]
) -> None:
    """Callers who wait while Redis is killed, wiped and started again all get their turn."""
    limiter = limiter_on(own_redis)
    await take(limiter, 10)
    waiting = asyncio.create_task(take(limiter, 400))
    await until(lambda: limiter.stats()["q"].granted >= 50)
    own_redis.restart(wipe=True)
    await waiting
    assert limiter.stats()["q"].granted == 410
    assert own_redis.client().exists("penstock:{q:q}")


async def test_callers_go_on_without_redis_and_share_again_with_it(
    own_redis: RedisServer, limiter_on: Callable[[RedisServer], SharedLimiter]
) -> None:
    """A Redis that stays away degrades the limiter to its local share, and its return ends that."""
    limiter = limiter_on(own_redis)
    await take(limiter, 10)
    own_redis.kill()
    await take(limiter, 300)
    assert limiter.stats()["q"].degraded
    own_redis.restart()
    await until(lambda: not limiter.stats()["q"].degraded)
    await take(limiter, 10)


async def test_a_step_refused_by_redis_is_an_outage_not_a_crash(
    own_redis: RedisServer, limiter_on: Callable[[RedisServer], SharedLimiter]
) -> None:
    """While Redis refuses writes for lack of memory, callers wait; afterwards they go on."""
    limiter = limiter_on(own_redis)
    await take(limiter, 10)
    own_redis.client().config_set("maxmemory", "1")
    waiting = asyncio.create_task(take(limiter, 10))
    await asyncio.sleep(0)
    calls = limiter.stats()["q"].calls
    await until(lambda: limiter.stats()["q"].calls >= calls + 2)
    assert not waiting.done()
    own_redis.client().config_set("maxmemory", "0")
    await waiting


async def test_a_redis_that_hangs_is_an_outage_and_its_late_answers_are_not_mixed_up(
    own_redis: RedisServer, limiter_on: Callable[[RedisServer], SharedLimiter]
) -> None:
    """While Redis is frozen callers wait; when it goes on, each gets its own reply."""
    limiter = limiter_on(own_redis)
    await take(limiter, 10)
    os.kill(own_redis.pid, signal.SIGSTOP)
    try:
        waiting = asyncio.create_task(take(limiter, 50))
        calls = limiter.stats()["q"].calls
        await until(lambda: limiter.stats()["q"].calls >= calls + 2)
        assert limiter.stats()["q"].granted == 10
    finally:
        os.kill(own_redis.pid, signal.SIGCONT)
    await waiting
    assert limiter.stats()["q"].granted == 60
