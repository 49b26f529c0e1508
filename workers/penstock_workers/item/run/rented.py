"""A job's documents are asked behind explicit caches, one for each beginning that is worth it.

Of all workers one makes the cache, by a claim in Redis, and looks first whether one that died has
made it already. Documents that use it renew it, so what is forgotten ends by itself. Whatever goes
wrong, a document is sent whole: it costs more, and is never lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from penstock_ledger import ItemKey, PaidBeside, Primed, WarmPrefixes
from penstock_ledger.model import JobState
from penstock_producer.planning.prefixes import Behind, CachedPrompts, held_as
from penstock_producer.planning.rented_caches import LIFETIME_S, rent_microusd
from penstock_producer.prices import PROMPT_CACHE, TokensUsed
from penstock_workers.background import BackgroundTasks
from penstock_workers.failpoints import Failpoints
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.outcome import Outcome
from penstock_workers.item.run.cached_contents import CachedContents, CallFailed, KeptContent
from penstock_workers.item.slots import Waiting

log = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE_S: Final = 30.0  # how long a document waits for the one that makes its cache
LOOK_S: Final = 0.25  # between looks at another worker's
SOON_S: Final = 5.0  # between looks at a cache that should have been renewed
AGAIN_S: Final = 60.0
"""After a failure that passes: a limit, a timeout, a store that is away."""
REFUSED_S: Final = 3_600.0
"""After a refusal that would come again: the beginning is too short for the model, say."""
JOBS_EVERY_S: Final = 10.0
"""Between looks at jobs, whose caches are deleted once they do not run any more."""
GROUPS_MAX: Final = 10_000
"""Caches that a worker knows; the one that was used longest ago makes room, and ends by itself."""
LOSSES_MAX: Final = 2  # of a cache in a worker: then it is not made for an hour
STEP: Final = "cache_made"  # the failpoint between a cache and the note of it

States = Callable[[Collection[str]], Mapping[str, JobState]]
Steps = Callable[[Attempt], Awaitable[Outcome]]
Note = Callable[[PaidBeside, str, str], None]
_Name = tuple[str, str]  # a job, and what its cache holds


class _Group:
    __slots__ = (
        "held",
        "kept",
        "lock",
        "losses",
        "model",
        "prices",
        "provider",
        "until",
        "users",
    )

    def __init__(self, attempt: Attempt, model: str) -> None:
        job = attempt.job
        self.provider, self.model = job.spec.provider, model
        self.prices = job.provider.prices_of(model)
        self.kept: KeptContent | None = None
        self.until = 0.0  # Unix seconds: then Redis is asked again
        self.lock = asyncio.Lock()
        self.losses = 0
        self.users = 0  # documents under way
        self.held = b""  # what the cache holds, as long as it has users

    def latest(self) -> str | None:
        return None if self.kept is None else self.kept.name


class RentedCaches:
    """Finds the cache of each beginning, or makes it."""

    def __init__(
        self,
        book: WarmPrefixes,
        calls: CachedContents,
        note: Note,
        states: States,
        waiting: Waiting,
        failpoints: Failpoints,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._book, self._calls, self._note, self._states = book, calls, note, states
        self._waiting, self._failpoints, self._clock = waiting, failpoints, clock
        self._groups: OrderedDict[_Name, _Group] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rented")
        self._tasks = BackgroundTasks()
        self._failure_log = FailureLog(log)
        self._looks = False

    async def close(self) -> None:
        """Delete the caches of jobs that have ended, and leave the others to their lifetime."""
        await self._tasks.close()
        try:
            await self._end_caches()
        except Exception as error:
            log.debug("caches are left to their lifetime: %s", error)
        await self._calls.close()
        self._thread.shutdown()

    async def once(self, cached: CachedPrompts, steps: Steps, attempt: Attempt) -> Outcome:
        """Return the outcome of ``steps``, taken behind the cache of its beginning if there is one.

        Raises what they do, and TurnedAway."""
        spec, parts = attempt.job.spec, cached.parted(attempt.given, attempt.levels)
        # what a hook makes of it is not known yet, nor whether other tiers read it
        if parts is None or cached.model is None or spec.preprocess or spec.tier is not None:
            return await steps(attempt)
        held, digest = parts[0], held_as(parts[0])
        name = (attempt.key.job_id, f"{digest}-{self._calls.account(spec.provider)}")
        group = self._groups.setdefault(name, _Group(attempt, cached.model))
        self._groups.move_to_end(name)
        if len(self._groups) > GROUPS_MAX:
            self._groups.popitem(last=False)
        if group.until <= self._clock():
            with self._waiting:
                async with group.lock:
                    await self._see(name, group, held)
        if group.kept is None:
            return await steps(attempt)
        group.held, group.users = held, group.users + 1
        del parts, held  # one copy is enough for all that wait
        attempt.behind = behind = Behind(group.latest, digest)
        try:
            return await steps(attempt)
        finally:
            group.users -= 1
            if not group.users:
                group.held = b""
            if behind.is_gone and group.latest() == behind.name:
                self._lost(name, group, group.kept)

    def _lost(self, name: _Name, group: _Group, kept: KeptContent) -> None:
        """Forget a cache that the provider has no more: the next document makes it anew.

        Once more lost it is not: a key that may make caches and read none would pay for many."""
        group.kept, group.until, group.losses = None, 0.0, group.losses + 1
        self._tell_later(self._forget, name, kept)
        if group.losses >= LOSSES_MAX:
            group.losses, group.until = 0, self._clock() + REFUSED_S
            self._tell_later(self._book.warm, *name, REFUSED_S)
            log.warning("provider %s loses an explicit cache: an hour without", group.provider)

    async def _see(self, name: _Name, group: _Group, held: bytes) -> None:
        """Learn which cache there is, or make it; none where that fails, until it may go well."""
        if group.until > self._clock():  # another document has learned it
            return
        try:
            group.kept = await self._found(name, group, held)
            if group.kept is not None:
                group.until = max(group.kept.expires - LIFETIME_S / 2, self._clock() + SOON_S)
                self._watch_jobs()
                return
            group.until = self._clock() + JOBS_EVERY_S
        except Exception as error:
            is_final = isinstance(error, CallFailed) and error.is_final
            group.kept, group.until = None, self._clock() + (REFUSED_S if is_final else AGAIN_S)
            what = f"provider {group.provider}: no explicit cache of a beginning of prompts"
            self._failure_log.tell(what, error, "its documents are sent whole")
            if isinstance(error, CallFailed):
                self._tell_later(self._book.warm, *name, group.until - self._clock())

    async def _found(self, name: _Name, group: _Group, held: bytes) -> KeptContent | None:
        """Return the cache that Redis knows, renewed where it is due; or make one.

        None where others say that there is none, or take too long. Raises CallFailed."""
        until = self._clock() + PATIENCE_S
        while self._clock() < until:
            match await self._ask(self._book.claim, *name):
                case Primed.NOT:
                    return await self._made(name, group, held)
                case Primed.ELSEWHERE:
                    await asyncio.sleep(LOOK_S)
                case Primed.WARM:
                    text = await self._ask(self._book.kept, *name)
                    if text is None:
                        continue
                    kept = KeptContent.from_text(text)
                    if kept is None or kept.expires - self._clock() > LIFETIME_S / 2:
                        return kept
                    if (renewed := await self._renewed(name, group, kept)) is not None:
                        return renewed
                    await self._ask(self._book.forget, *name, text)
        return None

    async def _made(self, name: _Name, group: _Group, held: bytes) -> KeptContent | None:
        """Return a new cache, or one whose maker died before it could say so."""
        job_id, digest = name
        kept, is_noted = None, False
        try:
            if (await self._ask(self._states, [job_id])).get(job_id) is JobState.RUNNING:
                title = f"penstock-{job_id}-{digest}"
                kept = await self._calls.find(group.provider, title)
                if kept is None:
                    asked = (group.provider, group.model, title, held, LIFETIME_S)
                    kept = await self._calls.make(*asked)
                self._failpoints.hit(STEP)
                await self._paid(job_id, group, kept, "made", kept.tokens, LIFETIME_S)
                await self._tell(name, kept)
                is_noted = True
        finally:
            if not is_noted:
                await self._ask(self._book.give_up, *name)
        return kept

    async def _renewed(self, name: _Name, group: _Group, kept: KeptContent) -> KeptContent | None:
        """Return a cache that is kept longer, or as it is while another worker renews it.

        None where it is gone."""
        job_id, digest = name
        claim = (job_id, f"{digest}:renew")
        if await self._ask(self._book.claim, *claim) is not Primed.NOT:
            return kept if kept.expires > self._clock() else None
        try:
            renewed = await self._calls.renew(group.provider, kept.name, LIFETIME_S)
            longer_s = max(0.0, renewed.expires - kept.expires)
            await self._paid(job_id, group, renewed, f"until {renewed.expires:.0f}", 0, longer_s)
            await self._tell(name, renewed)
        except CallFailed as error:
            if error.is_gone or kept.expires <= self._clock():
                return None
            log.info("an explicit cache ends in a while: it could not be renewed (%s)", error)
            return kept
        finally:
            await self._ask(self._book.give_up, *claim)
        return renewed

    async def _paid(
        self, job_id: str, group: _Group, kept: KeptContent, what: str, made: int, kept_s: float
    ) -> None:
        """Book what a cache cost: tokens as input when it is made, and the rent of a time."""
        cost, prices = 0.0, group.prices
        is_known = prices is not None and prices.cache_hour is not None
        if prices is not None:
            cost = prices.microusd(TokensUsed(made)) + rent_microusd(kept.tokens, kept_s, prices)
        key = ItemKey(job_id, 1, kept.name)
        spent = PaidBeside(key, 0, made, 0, round(cost), unpriced=int(not is_known))
        await self._ask(self._note, spent, what, PROMPT_CACHE)

    async def _tell(self, name: _Name, kept: KeptContent) -> None:
        left_s = kept.expires - self._clock()
        await self._ask(partial(self._book.warm, *name, left_s, kept.to_text()))

    async def _ask(self, ask: Callable[..., T], *what: Any) -> T:
        """Ask a store, in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask, *what)

    def _tell_later(self, tell: Callable[..., None], *what: Any) -> None:
        """Tell Redis, in the thread; where it is away, others learn it by asking in vain."""
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._thread.submit(tell, *what)

    def _forget(self, name: _Name, kept: KeptContent) -> None:
        self._book.forget(*name, kept.to_text())

    def _watch_jobs(self) -> None:
        if not self._looks:
            self._looks = True
            self._tasks.start(self._follow_jobs(), "explicit caches")

    async def _follow_jobs(self) -> None:
        """End the caches of jobs that do not run, and renew those that documents wait behind."""
        while self._looks:
            await asyncio.sleep(JOBS_EVERY_S)
            try:
                await self._end_caches()
                for name, group in [*self._groups.items()]:
                    if group.users:
                        async with group.lock:
                            await self._see(name, group, group.held)
            except Exception as error:
                self._failure_log.tell("jobs with explicit caches", error, "they are asked again")

    async def _end_caches(self) -> None:
        """Delete the caches of jobs that do not run; those of other jobs end by themselves."""
        now = self._clock()
        groups = self._groups.items()
        held = {name: one for name, one in groups if one.kept and one.kept.expires > now}
        if not held:
            self._looks = False
            return
        states = await self._ask(self._states, {job_id for job_id, _ in held})
        for name, group in held.items():
            kept = group.kept
            if kept is None or states.get(name[0]) is JobState.RUNNING:
                continue
            group.kept, group.until, group.losses = None, 0.0, 0
            await self._ask(self._forget, name, kept)
            try:
                await self._calls.delete(group.provider, kept.name)
            except CallFailed as error:
                log.debug("an explicit cache is left to its lifetime: %s", error)
