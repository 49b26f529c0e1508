"""What a key's tenant may have: requests, counted in Redis, and money, counted in SQL.

While Redis is away, keys with such limits are refused (503), and those without go on: a bound per
process would let a tenant have its limit once per replica, and /health says in the same moment that
this door should get no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator
from typing import Final

import redis
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock_gateway.backend import Backend
from penstock_gateway.callers.caller import KNOWN, STATE, Caller
from penstock_gateway.callers.known_keys import Found, keys_of
from penstock_gateway.middleware import request_id_of
from penstock_gateway.refused import Refused
from penstock_ledger import Admission, DoorLimits, Month, TenantBudgets, TenantCosts, month_of
from penstock_producer.prices.spent_budget import next_month

__all__ = ["Admissions", "Gate", "RenewAdmissions"]

log = logging.getLogger("penstock.gateway")

RENEW_S: Final = 40.0  # a third of the time for which a request counts without it
COST_KNOWN_S: Final = 10.0  # what tenants have spent is read again after this
TENANTS_MAX: Final = 10_000  # whose costs are remembered; then all are read again
REDIS_S: Final = 2.0  # for its answer
SPENDS: Final = frozenset({"POST", "PUT", "PATCH"})


class UnderWay:
    """Requests that count against a limit of requests at once. Used on the event loop."""

    def __init__(self, _: Backend) -> None:
        self.requests: set[tuple[str, str]] = set()  # who, request


class Admissions:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._under_way = backend.part(UnderWay).requests
        self._limits = DoorLimits(backend.redis)
        self._budgets: dict[str, float] = {}  # dollars a month, by tenant
        self._budgets_until = 0.0  # monotonic
        # tenant, month -> until when, dollars
        self._costs: dict[tuple[str, str], tuple[float, float]] = {}

    @contextlib.asynccontextmanager
    async def admitted(
        self, found: Found, method: str, path: str, request_id: str
    ) -> AsyncIterator[None]:
        """Admit a request for as long as it lasts. Raises Refused (429, 503)."""
        limits, who = found.limits, _who(found.caller)
        if found.caller.tenant is not None and method in SPENDS and not path.endswith("/cancel"):
            await self._check_budget(found.caller.tenant, limits.budget_usd)
        if limits.requests_per_minute is None and limits.concurrency is None:
            yield
            return
        await self._count(who, request_id, limits.requests_per_minute, limits.concurrency)
        if limits.concurrency is None:
            yield
            return
        self._under_way.add((who, request_id))
        try:
            yield
        finally:
            self._under_way.discard((who, request_id))
            await asyncio.shield(self._end(who, request_id))

    async def _count(
        self, who: str, request_id: str, per_minute: int | None, at_once: int | None
    ) -> None:
        try:
            async with asyncio.timeout(REDIS_S):
                answer, wait_s = await self._limits.admit(
                    who, request_id, per_minute=per_minute, at_once=at_once
                )
        except (TimeoutError, redis.RedisError, OSError) as error:
            log.warning("requests cannot be counted, Redis does not answer: %s", error)
            headers = {"retry-after": "5"}
            raise Refused(
                503,
                "a server behind this one does not answer; try again",
                code="service_unavailable",
                headers=headers,
            ) from None
        if answer is Admission.MINUTE_FULL:
            raise _limited(f"Rate limit reached: {per_minute} requests per minute.", wait_s)
        if answer is Admission.TOO_MANY_AT_ONCE:
            raise _limited(f"Rate limit reached: {at_once} requests at once.", 1.0)

    async def _end(self, who: str, request_id: str) -> None:
        # it ends by itself after a while
        with contextlib.suppress(TimeoutError, redis.RedisError, OSError):
            async with asyncio.timeout(REDIS_S):
                await self._limits.end(who, request_id)

    async def _check_budget(self, tenant: str, of_key: float | None) -> None:
        """Refuse a tenant whose budget is spent.

        ``of_key`` is the budget that the key of the request names, which may be newer than what is
        remembered."""
        if time.monotonic() >= self._budgets_until:
            self._budgets = await self._backend.run(TenantBudgets(self._backend.database).all)
            self._budgets_until = time.monotonic() + COST_KNOWN_S
        budget_usd = self._budgets.get(tenant, of_key)
        if budget_usd is None:
            return
        month = month_of(time.time())
        spent = await self._spent(tenant, month)
        if spent >= budget_usd:
            raise Refused(
                429,
                f"The budget of {month.name} is spent: {spent:.2f} of {budget_usd:.2f} USD. New "
                f"work is accepted again from {next_month(month.name)} (UTC). Before that the "
                "operator can make a key with a larger budget; jobs that were paused for it go on "
                "then.",
                code="insufficient_quota",
                kind="insufficient_quota",
                headers={"retry-after": "3600", "x-should-retry": "false"},
            )

    async def _spent(self, tenant: str, month: Month) -> float:
        until, dollars = self._costs.get((tenant, month.name), (0.0, 0.0))
        if time.monotonic() >= until:
            dollars = await self._backend.run(
                TenantCosts(self._backend.database).usd_of, tenant, month
            )
            if len(self._costs) >= TENANTS_MAX:
                self._costs.clear()
            self._costs[tenant, month.name] = (time.monotonic() + COST_KNOWN_S, dollars)
        return dollars


class RenewAdmissions:
    """Background work: long requests go on counting."""

    async def run(self, backend: Backend) -> None:
        under_way = backend.part(UnderWay).requests
        while True:
            await asyncio.sleep(RENEW_S)
            if under_way:
                await DoorLimits(backend.redis).renew(list(under_way))
            backend.round_done(self)


def _who(caller: Caller) -> str:
    return (
        f"tenant:{caller.tenant}"
        if caller.tenant is not None
        else f"key:{caller.counted_as or caller.key_id}"
    )


def _limited(message: str, wait_s: float) -> Refused:
    headers = {"retry-after": str(max(1, math.ceil(wait_s)))}
    return Refused(429, message, code="rate_limit_exceeded", kind="requests", headers=headers)


_OPEN: Final = ("/health", "/livez", "/openapi.json", "/login", "/ui/login", "/ui/static")


class Gate:
    """A step of the app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or any(
            path == place or path.startswith(f"{place}/") for place in _OPEN
        ):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        is_page = not path.startswith("/v1/")
        try:
            found = await keys_of(connection).found(connection, by_session=is_page)
        except Refused as refused:
            if not (is_page and refused.status == 401):
                raise
            # the page itself says where to log in, or that there is none
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state[STATE] = found.caller
        if KNOWN in state:
            state[KNOWN]()
        admissions: Admissions = connection.app.state.admissions
        async with admissions.admitted(found, scope["method"], path, request_id_of(connection)):
            await self._app(scope, receive, send)
