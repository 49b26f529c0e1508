"""`penstock limits` on a real Redis: what a person sees of a quota, and how a hold is ended."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess

import redis.asyncio
from forked import run
from servers import RedisServer

from penstock_ratelimit import PerMinute, Quota, SharedLimiter, Signal

QUOTA = Quota("openai", {"requests": PerMinute(6_000), "tokens": PerMinute(100_000)})


def limits(server: RedisServer, *options: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, in a pipe of 80 columns."""
    environment = {**os.environ, "PENSTOCK_REDIS_URL": server.url, "COLUMNS": "80"}
    return run(["limits", *options], 60, env=environment)


def use(server: RedisServer, ending: Signal = Signal.OK, reason: str = "") -> None:
    """Five requests; the last one ends as said."""

    async def main() -> None:
        client = redis.asyncio.Redis.from_url(server.url)
        limiter = SharedLimiter(client, [QUOTA])
        for n in range(5):
            async with limiter.ticket("openai", {"requests": 1, "tokens": 100}) as ticket:
                if n < 4 or ending is Signal.OK:
                    ticket.answered()
                else:
                    ticket.failed(ending, reason=reason)
        await limiter.aclose()
        await client.aclose()

    asyncio.run(main())


def test_each_quota_is_shown_with_its_limits(redis_server: RedisServer) -> None:
    """In a pipe: plain text, once, within 80 columns, with what is allowed and what was granted."""
    use(redis_server)
    shown = limits(redis_server)
    assert shown.returncode == 0, shown.stderr
    assert "openai" in shown.stdout
    assert "requests" in shown.stdout
    assert "5 calls started" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_json_is_for_programs(redis_server: RedisServer) -> None:
    """One object per quota, with numbers instead of words."""
    use(redis_server)
    view = json.loads(limits(redis_server, "--json").stdout)
    assert (view["quota_id"], view["granted"], view["breaker"], view["hold"]) == (
        "openai",
        5,
        "closed",
        "",
    )
    assert {row["name"]: row["limit"] for row in view["dimensions"]} == {
        "requests": 100.0,
        "tokens": 100_000 / 60,
    }


def test_a_hold_is_explained_and_lifted(redis_server: RedisServer) -> None:
    """The reason and the command that ends it are shown; after that command the quota is free."""
    use(redis_server, Signal.OUT_OF_MONEY, "the balance is empty")
    held = limits(redis_server).stdout
    assert "the balance is empty" in held
    assert "--lift openai" in held
    assert limits(redis_server, "--lift", "openai").returncode == 0
    assert "the balance is empty" not in limits(redis_server).stdout


def test_a_quota_that_is_not_there_is_named(redis_server: RedisServer) -> None:
    """A typing error is bad usage, and tells what there is."""
    use(redis_server)
    missing = limits(redis_server, "opeani")
    assert missing.returncode == 2
    assert "opeani" in missing.stderr
    assert "openai" in missing.stderr


def test_before_the_first_request_there_is_nothing_to_show(redis_server: RedisServer) -> None:
    """That is said, and is no fault."""
    nothing = limits(redis_server)
    assert nothing.returncode == 0
    assert "no quotas yet" in nothing.stdout + nothing.stderr
