"""One request primes a provider's prompt cache for each shared beginning; the others wait for it.

A cache has a beginning once the answer to a request with it has come. Requests that are sent before
that pay in full, or write it once more. So the first document of a group goes alone, and the others
wait in this worker, without a slot; of several workers one primes. A wait is bounded by
``PATIENCE_S``, and one that has failed, was killed or takes long holds up nothing: the next one
primes, or all go. Where Redis cannot be asked, each worker primes for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import redis

from penstock_ledger import Primed, WarmPrefixes
from penstock_producer.planning.prefixes import CachedPrompts
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Reply
from penstock_workers.item.outcome import Outcome
from penstock_workers.item.run.rented import RentedCaches
from penstock_workers.item.slots import Waiting

log = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0
"""How long a document waits for the one that primes, in this worker or in another."""
LOOK_S: Final = 0.25  # between looks at another worker's
TRUSTED: Final = 0.9  # of a cache's lifetime
GROUPS_MAX: Final = 10_000
"""Beginnings that a worker knows, of all its jobs; the one that was used longest ago makes room."""

Steps = Callable[[Attempt], Awaitable[Outcome]]
_Name = tuple[str, str]  # a job, and a shared beginning of its prompts


class _Group:
    __slots__ = ("ended", "noted_at", "warm_until")

    def __init__(self) -> None:
        self.warm_until = float("-inf")
        self.noted_at = float("-inf")  # when Redis last learned that it is warm
        self.ended: asyncio.Event | None = None  # of the one that primes here; None: none does


class Priming:
    """Lets documents with the same beginning go once one of them has gone alone."""

    def __init__(
        self,
        book: WarmPrefixes,
        waiting: Waiting,
        rented: RentedCaches | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book, self._waiting, self._clock = book, waiting, clock
        self._rented = rented
        self._groups: OrderedDict[_Name, _Group] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="priming")
        self._failure_log = FailureLog(log)

    async def close(self) -> None:
        if self._rented is not None:
            await self._rented.close()
        self._thread.shutdown()

    def around(self, attempt: Attempt, steps: Steps) -> Steps:
        """Return the steps of an attempt, behind a wait where its job uses a prompt cache."""
        cached = attempt.job.cached
        if cached is None:
            return steps
        attempt.levels = tuple(cached.levels(attempt.given))
        if self._rented is not None and cached.is_rented(attempt.levels):
            return partial(self._rented.once, cached, steps)
        return partial(self.once, cached, steps) if attempt.levels else steps

    async def once(self, cached: CachedPrompts, steps: Steps, attempt: Attempt) -> Outcome:
        """Return the outcome of ``steps``, taken when its beginnings are cached or it primes them.

        Raises what they do, and TurnedAway."""
        names = [(attempt.key.job_id, level.name) for level in attempt.levels]
        leading: list[_Name] = []
        try:
            with self._waiting:
                for name in names:
                    if await self._leads(name, cached.rules.lifetime_s * TRUSTED):
                        leading.append(name)
            return await steps(attempt)
        finally:
            is_warm = isinstance(attempt.happened, Reply)
            if is_warm:
                self._note_warm(names, cached.rules.lifetime_s * TRUSTED)
            for name in leading:
                self._end(name, is_warm=is_warm)

    async def _leads(self, name: _Name, lifetime_s: float) -> bool:
        """Wait until a beginning is cached, or patience ends; return whether this one primes it."""
        until = self._clock() + PATIENCE_S
        while (left_s := until - self._clock()) > 0:
            group = self._group(name)
            if group.warm_until > self._clock():
                return False
            if group.ended is None:
                group.ended = asyncio.Event()
                try:
                    if await self._has_claim(group, name, lifetime_s, until):
                        return True
                except BaseException:
                    self._end(name, is_warm=False)
                    raise
                self._wake(group)
                return False
            try:
                await asyncio.wait_for(group.ended.wait(), left_s)
            except TimeoutError:
                return False
        return False

    async def _has_claim(self, group: _Group, name: _Name, lifetime_s: float, until: float) -> bool:
        """Return whether this worker primes; False once another one has, or takes too long."""
        while True:
            match await self._ask(name):
                case Primed.NOT:
                    return True
                case Primed.WARM:
                    group.warm_until = self._clock() + lifetime_s
                    return False
                case Primed.ELSEWHERE if self._clock() >= until:
                    return False
                case Primed.ELSEWHERE:
                    await asyncio.sleep(LOOK_S)

    async def _ask(self, name: _Name) -> Primed:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._book.claim, *name)
        except redis.RedisError as error:
            self._failure_log.tell(
                "it is not known which prompts are cached", error, "this worker primes for itself"
            )
            return Primed.NOT

    def _note_warm(self, names: Sequence[_Name], lifetime_s: float) -> None:
        now = self._clock()
        for name in names:
            group = self._group(name)
            group.warm_until = now + lifetime_s
            if now - group.noted_at > lifetime_s / 2:
                group.noted_at = now
                self._tell(self._book.warm, *name, lifetime_s)

    def _end(self, name: _Name, *, is_warm: bool) -> None:
        self._wake(self._group(name))
        if not is_warm:
            self._tell(self._book.give_up, *name)

    def _wake(self, group: _Group) -> None:
        if group.ended is not None:
            group.ended.set()
            group.ended = None

    def _tell(self, tell: Callable[..., None], *what: object) -> None:
        """Tell Redis, in the thread; where it is away, others learn it by asking in vain."""

        def tell_it() -> None:
            try:
                tell(*what)
            except redis.RedisError as error:
                log.debug("Redis does not know of a cached prompt: %s", error)

        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._thread.submit(tell_it)

    def _group(self, name: _Name) -> _Group:
        group = self._groups.setdefault(name, _Group())
        self._groups.move_to_end(name)
        if len(self._groups) > GROUPS_MAX:
            oldest = next(iter(self._groups))
            if self._groups[oldest].ended is None:
                del self._groups[oldest]
            else:
                self._groups.move_to_end(oldest)
        return group
