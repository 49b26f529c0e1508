"""A call to Redis that is cancelled takes no other call's answer, and leaves it none of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from servers import RedisServer

from penstock_ledger import DoorLimits, RedisAddress

STEPS = 40
"""Of the event loop after which a call is cancelled: it takes fewer, its connection included."""


async def plain(client: Any) -> None:
    await client.get("asked")


async def together(client: Any) -> None:
    async with client.pipeline(transaction=True) as pipe:
        pipe.get("asked")
        pipe.incr("counted")
        await pipe.execute()


async def by_script(client: Any) -> None:
    await DoorLimits(client).admit("who", "request", per_minute=1_000_000, at_once=1_000)


async def renewed(client: Any) -> None:
    await DoorLimits(client).renew([("who", "request")])


@pytest.mark.parametrize("call", [plain, together, by_script, renewed])
@pytest.mark.parametrize("is_slow", [False, True], ids=["answers at once", "answers late"])
def test_a_cancelled_call_mixes_no_answers(
    redis_server: RedisServer, call: Callable[[Any], Awaitable[None]], is_slow: bool
) -> None:
    """A caller of a door hangs up, or an attempt is aborted, at any moment of a call: what comes
    after it on the same pool hears its own answers."""
    blocking: Any = redis_server.client()
    blocking.set("asked", "what was asked before")

    async def cancelled_after(client: Any, steps: int) -> bool:
        if is_slow:
            blocking.execute_command("CLIENT", "PAUSE", 2, "ALL")
        task = asyncio.ensure_future(call(client))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        answers = await asyncio.gather(*(client.echo(f"{steps}-{n}") for n in range(3)))
        assert answers == [f"{steps}-{n}".encode() for n in range(3)]
        return task.cancelled()

    async def every_moment() -> set[bool]:
        address = RedisAddress.parse(redis_server.url)
        kept, was_cancelled = address.connect_async(socket_timeout=10.0), set[bool]()
        for steps in range(0, STEPS, 4 if is_slow else 1):
            was_cancelled.add(await cancelled_after(kept, steps))
            fresh = address.connect_async(socket_timeout=10.0)
            was_cancelled.add(await cancelled_after(fresh, steps))
            await fresh.aclose()
        await kept.aclose()
        return was_cancelled

    was_cancelled = asyncio.run(every_moment())
    assert any(was_cancelled), "every call was over before it was cancelled"
    assert is_slow or False in was_cancelled, "a call was not over within so many steps"
