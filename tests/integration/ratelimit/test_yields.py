"""A fleet that holds back for interactive traffic: over a real Redis, at a simulated vLLM whose queue
others share, and at a provider whose key they share."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import NamedTuple

import aiohttp
import pytest
import redis.asyncio
from machine import simulator
from servers import RedisServer

from penstock_ratelimit import (
    InteractiveTarget,
    PerMinute,
    Quota,
    ServerGauges,
    SharedLimiter,
    Signal,
    Ticket,
)
from penstock_ratelimit.shared.interactive import START
from penstock_ratelimit.watch import read_quotas
from penstock_workers.lanes.api.polls import GaugeWatch


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


TARGET_S = 0.5
PLACES = 8


class Answered(NamedTuple):
    status: int
    took_s: float
    headers: Mapping[str, str]


async def ask(client: aiohttp.ClientSession, url: str, text: str, tokens: int) -> Answered:
    """Ask once."""
    began = time.monotonic()
    message = {"role": "user", "content": f"{text} {'word ' * 40}"}
    body = {"model": "m", "max_tokens": tokens, "messages": [message]}
    async with client.post(f"{url}/chat/completions", json=body) as answer:
        await answer.read()
        return Answered(answer.status, time.monotonic() - began, answer.headers)


@pytest.mark.whole
def test_people_at_a_shared_vllm_go_first(redis_server: RedisServer) -> None:
    """Two processes with more to do than the server has room for: people wait for no longer than the
    target allows, the server stays in use, and the quota says why it is held back."""
    quota = Quota("people", interactive=InteractiveTarget(TARGET_S))
    flags = ("--like", "vllm", "--max-concurrency", str(PLACES), "--latency-ms-per-token", "40")

    async def main(url: str) -> None:
        done, waited = itertools.count(), list[float]()

        async def work(limiter: SharedLimiter, client: aiohttp.ClientSession) -> None:
            while True:
                ticket = await limiter.acquire(quota.id, {})
                ticket.start()
                try:
                    await ask(client, url, "document", 24)
                    next(done)
                    ticket.answered()
                finally:
                    ticket.release()

        async with limiters(redis_server, quota, 2) as fleet, aiohttp.ClientSession() as client:
            pages = {quota.id: url.removesuffix("/v1") + "/metrics"}
            watches = [
                GaugeWatch(pages, one.gauge, looks=one.looks, unread=one.unread, closely=[quota.id])
                for one in fleet
            ]
            for watch in watches:
                watch.start()
            work_s = 24.0
            workers = [asyncio.create_task(work(one, client)) for one in fleet for _ in range(20)]
            luck, until_s = random.Random(2), time.monotonic() + work_s
            people = list[asyncio.Task[Answered]]()
            while time.monotonic() < until_s:
                await asyncio.sleep(luck.expovariate(2.0))
                people.append(asyncio.create_task(ask(client, url, "question", 2)))
            waited = sorted([(await one).took_s for one in people][10:])
            (view,) = read_quotas(redis_server.client(), quota_ids=[quota.id])
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for watch in watches:
                await watch.close()
        assert view.yields is not None
        assert view.yields.target_s == TARGET_S
        assert view.yields.binds
        assert view.yields.ceiling < 2 * PLACES
        # 80 ms of its own answer, and the target with what a busy machine adds
        assert waited[int(0.9 * len(waited))] < 2 * TARGET_S
        assert next(done) > 0.4 * PLACES * work_s

    with simulator(*flags) as provider:
        asyncio.run(main(provider.url))


def test_others_with_the_same_key_get_no_429(redis_server: RedisServer) -> None:
    """A fleet with more to do than its part, beside people who use what was left to them: the
    provider refuses neither, and the fleet has its part to a hundredth."""
    limit, part = 1_200.0, 0.25
    quota = Quota("key", {"requests": PerMinute(limit)}, margin=1.0, reserve=part)

    async def main(url: str) -> float:
        sent, statuses = itertools.count(), set[int]()

        async def work(limiter: SharedLimiter, client: aiohttp.ClientSession) -> None:
            while True:
                ticket = await limiter.acquire(quota.id, {"requests": 1})
                ticket.start()
                next(sent)
                answer = await ask(client, url, "document", 4)
                statuses.add(answer.status)
                if answer.status == 200:
                    ticket.answered(answer.headers)
                else:
                    ticket.failed(Signal.THROTTLED, headers=answer.headers)

        async with limiters(redis_server, quota, 2) as fleet, aiohttp.ClientSession() as client:
            workers = [asyncio.create_task(work(one, client)) for one in fleet for _ in range(20)]
            people = list[asyncio.Task[Answered]]()
            before, measured = 0, (began := time.monotonic())
            while (now := time.monotonic()) < began + 13.0:
                if now >= began + 3.0 and not before:
                    before, measured = next(sent), now
                people.append(asyncio.create_task(ask(client, url, "question", 1)))
                await asyncio.sleep(60 / (limit * part))
            rate = (next(sent) - before) / (time.monotonic() - measured)
            statuses |= {(await one).status for one in people}
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        assert statuses == {200}
        return rate

    with simulator("--rpm", f"{limit:g}", "--headers", "openai", "--depth-s", "5") as provider:
        rate = asyncio.run(main(provider.url))
    assert abs(rate / (limit / 60 * (1 - part)) - 1) < 0.02
