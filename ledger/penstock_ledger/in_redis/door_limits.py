"""Redis counts the requests of tenants at the HTTP doors, in a minute and now, in all processes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from importlib.resources import files
from typing import Final, NamedTuple

import redis.asyncio

from penstock_ledger import keys

__all__ = ["Admission", "Admitted", "DoorLimits"]

COUNTED_S: Final = 120.0  # a request that is not renewed counts no longer: its process has died


class Admission(IntEnum):
    """By their numbers in admit.lua."""

    ADMITTED = 0
    MINUTE_FULL = 1
    TOO_MANY_AT_ONCE = 2


class Admitted(NamedTuple):
    answer: Admission
    wait_s: float  # until a request of the minute is free


class DoorLimits:
    """Redis's own errors pass through (redis.RedisError)."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._admit = client.register_script(
            (files("penstock_ledger") / "scripts" / "admit.lua").read_text("utf-8")
        )

    async def admit(
        self, who: str, request: str, *, per_minute: int | None, at_once: int | None
    ) -> Admitted:
        """Count ``request`` of ``who``, a tenant or a key.

        Without ``at_once`` it need not be ended."""
        arguments: list[str | float] = [per_minute or 0, at_once or 0, request, COUNTED_S]
        answer, wait_ms = await self._admit(
            [keys.callers_minute(who), keys.callers_now(who)], arguments
        )
        return Admitted(Admission(answer), wait_ms / 1000)

    async def renew(self, requests: Sequence[tuple[str, str]]) -> None:
        """Note that these (who, request) go on."""
        seconds, microseconds = await self._client.time()
        until = seconds + microseconds / 1e6 + COUNTED_S
        async with self._client.pipeline(transaction=False) as together:
            for who, request in requests:
                together.zadd(keys.callers_now(who), {request: until}, xx=True)
                together.expire(keys.callers_now(who), int(COUNTED_S) + 60)
            await together.execute()

    async def end(self, who: str, request: str) -> None:
        await self._client.zrem(keys.callers_now(who), request)
