"""Typed stubs of the Lua scripts: one method per atomic step on the keys documented in
``scripts/reserve.lua``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

from penstock_ratelimit.store.messages import InForce, Reserve, Reserved
from penstock_ratelimit.store.reserve_call import PRELUDE, arguments, reserved, text
from penstock_ratelimit.terms import Terms

CALL_TIMEOUT_S = 1.0
"""A Redis that does not answer for so long counts as away. A script takes 0.1 ms; the rest is
network or busy loop."""

_US = 1_000_000


class ScriptClient(Protocol):
    """The one thing needed of ``redis.asyncio.Redis`` (and of ``redis.Redis``, for code that
    blocks)."""

    def register_script(self, script: str) -> Any: ...


_PRELUDES: Final[Mapping[str, tuple[str, ...]]] = {
    "reserve": ("clock", "slope", "margin", "breaker", "remaining"),
    "install": ("clock", "slope", "margin"),
    "heartbeat": ("clock",),
    "lift": ("clock",),
    "confirm": ("clock",),
    "enlist": (),
}
"""What is put before each script: Redis has no modules."""


@cache
def _script(name: str) -> str:
    folder = files("penstock_ratelimit.store") / "scripts"
    names = [PRELUDE] if name == "reserve" else []
    return "\n".join(
        [
            *names,
            *((folder / f"{part}.lua").read_text("utf-8") for part in (*_PRELUDES[name], name)),
        ]
    )


def lift_hold(client: ScriptClient, quota_id: str, *, prefix: str = "penstock:") -> bool:
    """End a hold or a pause from code that blocks; True when there was a hold.

    The account has to prove itself again."""
    return bool(
        client.register_script(_script("lift"))(keys=[f"{prefix}{{q:{quota_id}}}"], args=[""])
    )


class QuotaHash:
    """The shared state of one quota.

    Raises whatever the client raises, and ``TimeoutError``, when Redis is away."""

    def __init__(
        self,
        client: ScriptClient,
        quota_id: str,
        *,
        prefix: str = "penstock:",
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._quota_id = quota_id
        self.key = f"{prefix}{{q:{quota_id}}}"
        self._processes_key, self._stats_key = f"{self.key}:w", f"{self.key}:s"
        self._quotas_key = f"{prefix}quotas"
        self._clock_us = clock_us
        self._reserve = client.register_script(_script("reserve"))
        self._install = client.register_script(_script("install"))
        self._heartbeat = client.register_script(_script("heartbeat"))
        self._lift = client.register_script(_script("lift"))
        self._confirm = client.register_script(_script("confirm"))
        self._enlist = client.register_script(_script("enlist"))

    async def reserve(self, ask: Reserve) -> Reserved:
        args = arguments(ask, self._now())
        async with asyncio.timeout(CALL_TIMEOUT_S):
            reply = await self._reserve(keys=[self.key, self._processes_key], args=args)
        return reserved(reply, self._quota_id, dims=len(ask.terms.dims))

    async def install(
        self, terms: Terms, *, replaces: str = "", empty: bool = False, account: str = ""
    ) -> InForce:
        """Fill in what is missing.

        ``replaces`` is "any", or the version that ``terms`` are to follow; "" is none.

        Another ``account`` (a fingerprint) than the last one known lifts a hold, and so do other
        terms.
        """
        args: list[Any] = [
            self._now(),
            replaces,
            int(empty),
            terms.to_json(),
            account,
            terms.margin,
            len(terms.dims),
        ]
        for row in zip(terms.dims, terms.rates, terms.bursts, terms.caps, strict=True):
            args += row
        async with asyncio.timeout(CALL_TIMEOUT_S):
            version, config = await self._install(keys=[self.key], args=args)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self._enlist(keys=[self._quotas_key], args=[self._quota_id])
        return InForce(text(version), Terms.from_json(self._quota_id, config))

    async def heartbeat(self, process: str, ttl_s: float, stats: str = "") -> int:
        """Count the processes that share this quota, and leave ``stats`` (JSON) for readers;
        ``ttl_s`` 0 leaves."""
        args: list[Any] = [self._now(), process, int(ttl_s * _US), stats]
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return int(
                await self._heartbeat(keys=[self._processes_key, self._stats_key], args=args)
            )

    async def confirm(self, told: Collection[str], learned: Sequence[str]) -> dict[str, float]:
        """Report the dimensions whose limit a header just stated; returns for how many seconds none
        stated the learned ones."""
        args: list[Any] = [self._now(), len(told), *told, *learned]
        async with asyncio.timeout(CALL_TIMEOUT_S):
            ages = await self._confirm(keys=[self.key], args=args)
        return {dim: age / _US for dim, age in zip(learned, ages, strict=True)}

    async def lift(self) -> bool:
        """End a hold or a pause; True when there was a hold.

        The account is not proven until its next good answer."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return bool(await self._lift(keys=[self.key], args=[self._now()]))

    def _now(self) -> int | str:
        return "" if self._clock_us is None else self._clock_us()
