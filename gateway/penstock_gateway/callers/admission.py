"""A key's tenant has bounds: requests, counted in Redis, money, counted in SQL, and its share.

While Redis is away, keys with such limits are refused (503), and those without go on: a bound per
process would let a tenant have its limit once per replica, and /health says in the same moment that
this door should get no requests.

A share is what one tenant may hold of a door at once, so that it leaves the rest to others. The
operator has none: it is bounded by what the door as a whole has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Final, Literal, TypeVar

import redis
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock_gateway.backend import Backend
from penstock_gateway.callers.caller import KNOWN, STATE, Caller
from penstock_gateway.callers.known_keys import Found, keys_of
from penstock_gateway.middleware import request_id_of
from penstock_gateway.refused import Refused
from penstock_ledger import Admission, DoorLimits, Month, TenantBudgets, TenantCosts, month_of
from penstock_producer.prices import next_month

__all__ = ["Admissions", "Gate", "Incoming", "RenewAdmissions", "Share", "Shares"]


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
_BELOW: Final = tuple(f"{place}/" for place in _OPEN)


class Gate:
    """A step of the app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path in _OPEN or path.startswith(_BELOW):
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


K = TypeVar("K")
Share = Literal["streams", "uploads", "reads"]

_CALLED: Final[dict[Share, str]] = {
    "streams": "connections of yours follow jobs or answers",
    "uploads": "uploads of yours are under way",
    "reads": "sources of yours are being read",
}
_AGAIN_S: Final[dict[Share, int]] = {"streams": 30, "uploads": 5, "reads": 5}


class Shares:
    """The shares of one server; belongs to the event loop."""

    def __init__(self, backend: Backend) -> None:
        door = backend.settings.gateway
        self._most: dict[Share, int] = {
            "streams": door.tenant_streams,
            "uploads": door.tenant_uploads,
            "reads": door.tenant_reads,
        }
        self._held: Counter[tuple[Share, str]] = Counter()
        self._coming: Counter[str] = Counter()  # bytes of uploads that are under way, by tenant
        self._under_way: set[Incoming] = set()

    @contextlib.contextmanager
    def upload(self, tenant: str | None, room: int | None) -> Iterator[Incoming]:
        """Count one upload of a tenant for as long as it lasts.

        ``room`` is how many bytes files of the tenant may still take, without the uploads under
        way; None for no bound. Raises Refused (429).
        """
        with self.held("uploads", tenant):
            incoming = Incoming(self._coming, tenant, room)
            self._under_way.add(incoming)
            try:
                yield incoming
                self._became_a_file(incoming)
            finally:
                self._under_way.discard(incoming)
                incoming.end()

    def _became_a_file(self, done: Incoming) -> None:
        """Note that it is a file now.

        The rooms of the others of its tenant were counted before it was one.
        """
        for other in self._under_way - {done}:
            if other.tenant == done.tenant:
                other.lose_room(done.size)

    def take(self, share: Share, tenant: str | None) -> None:
        """Count one more, until ``leave``. Raises Refused (429)."""
        if tenant is None:
            return
        most = self._most[share]
        if self._held[share, tenant] >= most:
            raise Refused(
                429,
                f"{most} {_CALLED[share]} here already, and that is as many as one tenant may have "
                f"at once (gateway.tenant_{share}); try again when one has ended.",
                code="too_many_at_once",
                kind="requests",
                headers={"retry-after": str(_AGAIN_S[share])},
            )
        self._held[share, tenant] += 1

    def leave(self, share: Share, tenant: str | None) -> None:
        if tenant is not None:
            _less(self._held, (share, tenant), 1)

    @contextlib.contextmanager
    def held(self, share: Share, tenant: str | None) -> Iterator[None]:
        """Count one more for the time of the block. Raises Refused (429)."""
        self.take(share, tenant)
        try:
            yield
        finally:
            self.leave(share, tenant)


class Incoming:
    """The bytes of one upload, beside all that its tenant has here."""

    def __init__(self, coming: Counter[str], tenant: str | None, room: int | None) -> None:
        self._coming, self._room = coming, room
        self.tenant = tenant
        self.size = 0  # bytes so far

    def lose_room(self, size: int) -> None:
        if self._room is not None:
            self._room -= size

    def grow_to(self, size: int) -> None:
        """Count more bytes. Raises Refused (429) where they would take more than the share."""
        if self.tenant is None or self._room is None or size <= self.size:
            return
        if self._coming[self.tenant] - self.size + size > self._room:
            raise Refused(
                429,
                f"There is room for {max(0, self._room)} more bytes of your files: one tenant's "
                "may take no more than gateway.tenant_file_bytes. Delete files that are not needed "
                "any more.",
                code="storage_quota_exceeded",
                kind="insufficient_quota",
                headers={"retry-after": "3600", "x-should-retry": "false"},
            )
        self._coming[self.tenant] += size - self.size
        self.size = size

    def end(self) -> None:
        """End the count: it is a file by now, or nothing."""
        if self.tenant is not None:
            _less(self._coming, self.tenant, self.size)
        self.size = 0


def _less(counter: Counter[K], name: K, number: int) -> None:
    """Count down, and forget what is at zero: tenants come and go."""
    counter[name] -= number
    if counter[name] <= 0:
        del counter[name]
