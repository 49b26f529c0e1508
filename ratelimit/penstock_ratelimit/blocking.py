"""The limiter for code without asyncio: threads, Celery's prefork pool, gunicorn.

A thread of its own runs the event loop.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Unpack
from weakref import WeakSet

from penstock_ratelimit.blocking_loop import LoopThread, RedisUrl
from penstock_ratelimit.errors import LimiterClosed, UnknownQuota
from penstock_ratelimit.fairness import DEFAULT_FLOW, Flow
from penstock_ratelimit.limiter import Limiter, StartOptions, TicketScope
from penstock_ratelimit.local import LocalLimiter
from penstock_ratelimit.provider.profiles import Usage
from penstock_ratelimit.provider.refusals import Signal
from penstock_ratelimit.quota import Quota, by_id
from penstock_ratelimit.shared.limiter import SharedLimiter
from penstock_ratelimit.tickets import FailureDetails, QuotaStats, Ticket, TicketState

log = logging.getLogger("penstock.ratelimit")


class BlockingLimiter:
    """A ``Limiter`` whose calls block.

    Any number of threads may share one; so may a process that forks.

    With ``redis_url`` the quota is shared by all who use it (``SharedLimiter``), without by the
    threads of this process (``LocalLimiter``); a function that makes an asyncio client may stand in
    its place. Nothing is started before the first use. A forked child starts a thread and
    connections of its own; the tickets that its parent held stay the parent's. ``close`` it, or let
    the end of the interpreter do so.
    """

    def __init__(
        self, quotas: Iterable[Quota], redis_url: RedisUrl = None, *, prefix: str = "penstock:"
    ) -> None:
        self._quotas = by_id(quotas)
        self._redis_url, self._prefix = redis_url, prefix
        self._lock = threading.Lock()
        self._engine: LoopThread | None = None
        self._closed = False
        _LIMITERS.add(self)

    def acquire(
        self,
        quota_id: str,
        costs: Mapping[str, float],
        *,
        timeout: float | None = None,
        **options: Unpack[StartOptions],
    ) -> BlockingTicket:
        """Wait for a start, as ``Limiter.acquire`` does.

        Raises TimeoutError after ``timeout`` seconds without a start; nothing is charged then.

        The first start also takes the connection to Redis, so a timeout of milliseconds mostly
        times out.
        """
        engine = self._running(quota_id)
        ticket = engine.wait(
            lambda limiter: limiter.acquire(quota_id, costs, **options),
            quota_id,
            timeout,
            undo=Ticket.release,
        )
        return BlockingTicket(engine, ticket)

    def ticket(
        self,
        quota_id: str,
        costs: Mapping[str, float],
        *,
        timeout: float | None = None,
        **options: Unpack[StartOptions],
    ) -> BlockingTicketScope:
        """Make a ticket for a ``with`` around one send.

        Leaving the block charges the ticket, unless the block released it."""

        def open_scope(limiter: Limiter) -> TicketScope:
            return limiter.ticket(quota_id, costs, **options)

        return BlockingTicketScope(lambda: self._running(quota_id), open_scope, quota_id, timeout)

    def quota(self, quota_id: str) -> BlockingQuota:
        """Bind one quota: ``with quota.ticket(requests=1, tokens=500) as t``.

        Raises ``UnknownQuota``."""
        if quota_id not in self._quotas:
            raise UnknownQuota(quota_id, self._quotas)
        return BlockingQuota(self, quota_id)

    def not_before(self, quota_id: str, seconds: float) -> None:
        """See ``Limiter``."""
        self._running(quota_id).call(
            lambda limiter: limiter.not_before(quota_id, seconds), quota_id
        )

    def may_retry(self, quota_id: str) -> bool:
        """See ``Limiter``."""
        return self._running(quota_id).call(lambda limiter: limiter.may_retry(quota_id), quota_id)

    def lift(self, quota_id: str) -> None:
        """See ``Limiter``."""
        self._running(quota_id).wait(lambda limiter: limiter.lift(quota_id), quota_id, None)

    def stats(self) -> dict[str, QuotaStats]:
        """See ``Limiter``; empty before the first use and after the end."""
        engine = self._engine
        try:
            return {} if engine is None else engine.call(lambda limiter: limiter.stats(), "")
        except LimiterClosed:
            return {}

    def close(self) -> None:
        """Give back what was not started; every thread that waits gets ``LimiterClosed``."""
        with self._lock:
            self._closed = True
            engine = self._engine
        if engine is not None:
            engine.stop()

    def __enter__(self) -> BlockingLimiter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _running(self, quota_id: str) -> LoopThread:
        with self._lock:
            if self._closed:
                raise LimiterClosed(quota_id)
            if self._engine is None:
                self._engine = LoopThread(self._limiter, self._redis_url)
            return self._engine

    def _limiter(self, client: Any) -> Limiter:
        quotas = self._quotas.values()
        return (
            LocalLimiter(quotas)
            if client is None
            else SharedLimiter(client, quotas, prefix=self._prefix)
        )

    def _forked(self) -> None:
        """Begin anew in a child: the parent's thread and connections are not the child's."""
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        if self._engine is not None:
            self._engine.disown()
            _DISOWNED.append(self._engine)
            self._engine = None


class BlockingTicket:
    """A ``Ticket`` for threads: any of them may use it, one after the other or at once.

    Once the limiter is closed, and in a forked child, its methods do nothing: the loop that they
    would call is gone.
    """

    __slots__ = ("_engine", "_ticket")

    def __init__(self, engine: LoopThread, ticket: Ticket) -> None:
        self._engine, self._ticket = engine, ticket

    @property
    def state(self) -> TicketState:
        return self._ticket.state

    @property
    def charged(self) -> dict[str, float]:
        """Units charged at this moment, per limited dimension."""
        return self._ticket.charged

    def start(self) -> None:
        """See ``Ticket``."""
        self._tell(self._ticket.start)

    def answered(
        self, headers: Mapping[str, str] | None = None, *, usage: Usage | None = None
    ) -> None:
        """See ``Ticket``."""
        self._tell(lambda: self._ticket.answered(headers, usage=usage))

    def failed(self, signal: Signal, **details: Unpack[FailureDetails]) -> None:
        """See ``Ticket``."""
        self._tell(lambda: self._ticket.failed(signal, **details))

    def settle(self, actual: Mapping[str, float]) -> None:
        """See ``Ticket``."""
        self._tell(lambda: self._ticket.settle(actual))

    def release(self) -> None:
        """See ``Ticket``."""
        self._tell(self._ticket.release)

    def _tell(self, method: Callable[[], None]) -> None:
        if self._engine.closed:
            return
        try:
            self._engine.call(lambda _: method(), "")
        except LimiterClosed:
            log.debug("a ticket ended after its limiter was closed")


class BlockingTicketScope:
    """``with limiter.ticket(…) as t``: in doubt the ticket is charged.

    Something may have been sent."""

    __slots__ = ("_engine", "_open_scope", "_quota_id", "_running", "_scope", "_timeout")

    def __init__(
        self,
        running: Callable[[], LoopThread],
        open_scope: Callable[[Limiter], TicketScope],
        quota_id: str,
        timeout: float | None,
    ) -> None:
        self._running, self._open_scope = running, open_scope
        self._quota_id, self._timeout = quota_id, timeout

    def __enter__(self) -> BlockingTicket:
        self._engine = self._running()
        ticket = self._engine.wait(self._enter, self._quota_id, self._timeout, undo=Ticket.release)
        return BlockingTicket(self._engine, ticket)

    async def _enter(self, limiter: Limiter) -> Ticket:
        self._scope = self._open_scope(limiter)
        return await self._scope.__aenter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._engine.wait(
                lambda _: self._scope.__aexit__(kind, error, trace), self._quota_id, None
            )
        except LimiterClosed:
            log.debug("a ticket ended after its limiter was closed")


class BlockingQuota:
    """One quota of a limiter, for code that uses no other."""

    __slots__ = ("_limiter", "_quota_id")

    def __init__(self, limiter: BlockingLimiter, quota_id: str) -> None:
        self._limiter, self._quota_id = limiter, quota_id

    def ticket(
        self,
        *,
        certain: Mapping[str, float] | None = None,
        flow: Flow = DEFAULT_FLOW,
        retry: bool = False,
        timeout: float | None = None,
        **costs: float,
    ) -> BlockingTicketScope:
        """Take a ticket with the costs by name: ``quota.ticket(requests=1, tokens=500)``."""
        return self._limiter.ticket(
            self._quota_id, costs, timeout=timeout, certain=certain, flow=flow, retry=retry
        )

    def not_before(self, seconds: float) -> None:
        self._limiter.not_before(self._quota_id, seconds)

    def may_retry(self) -> bool:
        return self._limiter.may_retry(self._quota_id)

    def lift(self) -> None:
        self._limiter.lift(self._quota_id)


_LIMITERS: Final[WeakSet[BlockingLimiter]] = WeakSet()
_DISOWNED: Final[list[LoopThread]] = []
"""Loops of the parent, kept from the garbage collector: closing one here would end the parent's
watch on its sockets."""


def _after_fork() -> None:
    for limiter in list(_LIMITERS):
        limiter._forked()


def _at_exit() -> None:
    for limiter in list(_LIMITERS):
        limiter.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
