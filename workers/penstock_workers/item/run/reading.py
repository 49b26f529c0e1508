"""An item cannot go on without its job and its body.

A job is read once from the ledger and kept. A body that travels by reference is read again from the
pinned source (or the spool). An outage of the ledger is waited for: no item is at fault.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from penstock_ledger import (
    Database,
    JobNotFound,
    JobStore,
    TenantBudgets,
    Trouble,
    buckets_for,
    trouble_of,
)
from penstock_producer.errors import BadReference, RowChanged, seen
from penstock_producer.job.endpoints import UPLOAD_BODY_BYTES
from penstock_producer.job.fallback import provider_and_model
from penstock_producer.job.lanes import LANES, has_own_model
from penstock_producer.job.request_body import url_refusal
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import AWAITED
from penstock_producer.planning.prefixes import CachedPrompts
from penstock_producer.sources import Source
from penstock_producer.sources.of_feed import open_feed_source
from penstock_ratelimit import Flow, Priority, full_jitter
from penstock_workers.errors import EndpointRefused, PricesMissing
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.answer import AnswerMemory
from penstock_workers.item.attempt import Item
from penstock_workers.item.job_view import Escalated, JobView
from penstock_workers.item.same_request import policy_of
from penstock_workers.item.slots import Waiting
from penstock_workers.settings import ProviderSettings, WorkerSettings

SOURCES_KEPT = 32  # open files or connections, one per generation of a job


class Bodies:
    """A bounded set of open sources, read in threads so that the loop never waits for a disk."""

    def __init__(self, database: Database, settings: WorkerSettings) -> None:
        self._database = database
        self._settings = settings
        self._sources: OrderedDict[tuple[str, int], Source] = OrderedDict()

    async def fetch(self, item: Item) -> bytes:
        """Return a body; raise SourceUnavailable, SourceChanged and BadReference.

        BadReference is for a place where this document is not."""
        assert item.message.ref is not None, "a message holds a body or a reference"
        return await asyncio.to_thread(self._read, item, item.message.ref)

    def _read(self, item: Item, position: str) -> bytes:
        document = self._source(item).fetch(position)
        if document.doc_id != item.key.doc_id:
            raise BadReference(
                f"{seen(position)} is another document's place in the source of {item.key.job_id}"
            )
        return document.body

    def _source(self, item: Item) -> Source:
        name = (item.key.job_id, item.key.generation)
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = open_feed_source(self._database, *name, self._settings)
            if len(self._sources) > SOURCES_KEPT:
                self._sources.popitem(last=False)
        return source


TIER_LOOK_S: Final = 15.0  # between two looks at the service tier that control has chosen for a job
JOBS_KEPT = 1_000  # a worker sees few jobs at a time; each costs 6 kB, and its prompt
UNASKED_S: Final = 300.0
"""A job that no item has asked for in this time is forgotten as others come, within twice it."""

# a job, and the path that its items name, where that is not the job's
Seen = tuple[str, str | None]


class Reader(Protocol):
    def __call__(self, job_id: str, endpoint: str | None = None) -> JobView: ...


class JobBook:
    """A bounded cache of job views. Of a spec that is accepted only limits may change.

    A job that has ended is not asked for any more; its prompt may have a megabyte."""

    def __init__(self, read: Reader, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        # those asked for since the latest turn, and those of before that none has asked for since
        self._views: dict[Seen, asyncio.Future[JobView]] = {}
        self._unasked: dict[Seen, asyncio.Future[JobView]] = {}
        self._turn_at = clock() + UNASKED_S
        # those that change their service tier: when they are read anew, by the loop's clock
        self._due: dict[Seen, float] = {}

    def known(self, job_id: str, endpoint: str | None = None) -> JobView | None:
        """Return the view if it is here already, without a task switch."""
        future = self._held((job_id, endpoint))
        if future is None or not future.done() or future.exception() is not None:
            return None
        view = future.result()
        if view.changes_tier:
            self._look_again((job_id, endpoint))
        return view

    def forget(self, job_id: str) -> None:
        """Read it anew when it is asked for next: it was given a budget, or has none any more."""
        for views in (self._views, self._unasked):
            for known in [known for known in views if known[0] == job_id]:
                del views[known]
                self._due.pop(known, None)

    def _held(self, seen: Seen) -> asyncio.Future[JobView] | None:
        """Return what is known or being read, and note that it was asked for."""
        future = self._views.get(seen)
        if future is None and (future := self._unasked.pop(seen, None)) is not None:
            self._views[seen] = future
        return future

    def _turn(self) -> None:
        """Forget what was not asked for since the turn before, if it is time or much is held."""
        if self._clock() < self._turn_at and len(self._views) < JOBS_KEPT // 2:
            return
        for forgotten in self._unasked:
            self._due.pop(forgotten, None)
        self._views, self._unasked = {}, self._views
        self._turn_at = self._clock() + UNASKED_S

    def _look_again(self, seen: Seen) -> None:
        """Have a view read anew now and then; until that is there, and where it fails, it stays."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._due.setdefault(seen, loop.time() + TIER_LOOK_S):
            return
        self._due[seen] = loop.time() + TIER_LOOK_S
        fresh = asyncio.ensure_future(asyncio.to_thread(self._read, *seen))

        def take(done: asyncio.Future[JobView]) -> None:
            if done.cancelled() or done.exception() is not None:
                return
            if self._held(seen) is not None:
                self._views[seen] = done
            else:
                self._due.pop(seen, None)

        fresh.add_done_callback(take)

    async def get(self, job_id: str, endpoint: str | None = None) -> JobView:
        """Return the job as its items see it.

        ``endpoint`` is that of items that are not for the job's. Raises JobNotFound, BadReference,
        UnknownProvider, EndpointRefused, PricesMissing or what the database raises. A failure is
        not remembered.
        """
        seen = (job_id, endpoint)
        future = self._held(seen)
        if future is None:
            self._turn()
            future = asyncio.ensure_future(asyncio.to_thread(self._read, job_id, endpoint))
            self._views[seen] = future
        try:
            return await asyncio.shield(future)
        except Exception:
            self._views.pop(seen, None)
            self._unasked.pop(seen, None)
            raise


def read_job(
    jobs: JobStore, settings: WorkerSettings, tenants: TenantBudgets | None = None
) -> Reader:
    """Return what reads a job from the ledger into what workers keep of it.

    A job may go from lane to lane: its requests are made, and paid for, as those of the worker's
    own. ``tenants``: whose budgets bound their jobs.

    Asked for an endpoint, it reads the job as items see it that are for another path than the
    job's."""

    def read(job_id: str, endpoint: str | None = None) -> JobView:
        job = jobs.get(job_id)
        # a key of a job: items name jobs by their ids, under which they are settled
        if job.job_id != job_id:
            raise JobNotFound(job_id)
        spec = JobSpec.accepted(job.spec)
        changes_tier = spec.lets_choose_flex and LANES[settings.lane].is_real_time
        if endpoint is not None:
            _check_named(endpoint, spec)
            spec = spec.model_copy(update={"endpoint": endpoint})
        if job.moves or len(spec.permitted_lanes) > 1:
            spec = spec.model_copy(update={"lane": settings.lane})
        tier = job.tier_now or spec.tier
        if tier is not None:
            spec = spec.model_copy(update={"tier": tier})
            spec = spec.model_copy(update={"tier": spec.tier_in(spec.lane)})
        provider = _provider_of(spec, settings)
        usual = JobView(
            job.job_id,
            spec,
            provider,
            buckets_for(job),
            flow_of(job.job_id, spec),
            policy_of(job.job_id, spec, provider, across_tenants=settings.cache_across_tenants),
            awaited=bool(job.source.get(AWAITED)),
            tenant_usd=None if tenants is None else tenants.of(spec.tenant),
            named_endpoint=endpoint,
            changes_tier=changes_tier,
            has_rules=spec.has_rules,
            cached=_cached(job.source, spec, provider),
        )
        routes = (
            None if rule.target is None else _asked_as(usual, spec.asked_as(rule.target), settings)
            for rule in spec.routing.rules
        )
        return replace(_asked_as(usual, spec, settings), routes=tuple(routes))

    return read


def _cached(
    source: Mapping[str, Any], spec: JobSpec, provider: ProviderSettings
) -> CachedPrompts | None:
    """Return the shared beginnings of a job's prompts, where the worker's lane asks a provider."""
    if spec.prompt_cache == "off" or not LANES[spec.lane].is_real_time:
        return None
    return CachedPrompts.of(source, provider.kind, provider.base_url, spec.endpoint, packs=False)


def _asked_as(usual: JobView, spec: JobSpec, settings: WorkerSettings) -> JobView:
    """Return the job as it is asked by this spec, with all that it may go on to."""
    asked, steps, following = [spec], spec.steps, None
    for step in steps:  # each gives way further than the one before
        asked.append(asked[-1].asked_as(step.target))
    for step, one in reversed([*zip(steps, asked[1:], strict=True)]):
        view = replace(_with_fallbacks(usual, one, settings), next_step=following)
        following = (step.target, view)
    better, rule = None, spec.escalation
    if rule is not None:
        better = Escalated(rule, _with_fallbacks(usual, spec.asked_as(rule.target), settings))
    view = _with_fallbacks(usual, spec, settings)
    return replace(view, escalation=better, next_step=following)


def _with_fallbacks(usual: JobView, spec: JobSpec, settings: WorkerSettings) -> JobView:
    """Return the job as its documents are asked, with its fallback models behind one another."""
    following: JobView | None = None
    providers = () if has_own_model(spec.lane) else settings.providers
    for one in reversed([spec, *_fallbacks(spec, providers)]):
        is_usual = (one.model, one.provider) == (usual.spec.model, usual.spec.provider)
        following = replace(
            usual,
            spec=one,
            provider=_provider_of(one, settings),
            fallback=following,
            cached=usual.cached if is_usual else None,
        )
    assert following is not None, "the job's own model is one of them"
    return following


def _fallbacks(spec: JobSpec, providers: Collection[str]) -> Iterator[JobSpec]:
    """Yield the spec as each fallback model is asked."""
    for name in spec.fallback or ():
        provider, model = provider_and_model(name, providers)
        # the tiers of one provider are not those of another
        tier = spec.tier if provider in (None, spec.provider) else None
        yield spec.model_copy(
            update={"model": model, "provider": provider or spec.provider, "tier": tier}
        )


def _provider_of(spec: JobSpec, settings: WorkerSettings) -> ProviderSettings:
    """Return the settings of the job's provider.

    Raises UnknownProvider, PricesMissing and EndpointRefused."""
    provider, tier = settings.provider(spec.provider), spec.tier_in(spec.lane)
    if (
        spec.budget_usd is not None
        and not has_own_model(spec.lane)
        and provider.prices_of(spec.model, tier=tier) is None
    ):
        raise PricesMissing(spec.provider, spec.model, spec.budget_usd, tier=tier)
    refused = settings.refused_endpoint(spec.provider, spec.endpoint, spec.lane)
    if refused is not None:  # the key of the fleet would go there
        raise EndpointRefused(refused)
    return provider


def _check_named(endpoint: str, spec: JobSpec) -> None:
    """Raise BadReference for a path that lines of the job may not name.

    Its message is forged, and the job goes on."""
    refusal = url_refusal(endpoint, spec)
    if endpoint != spec.endpoint and refusal is not None:
        raise BadReference(f"the message is for {endpoint}: {refusal[0]}")


def flow_of(job_id: str, spec: JobSpec) -> Flow:
    """Return where the items of a job stand in the lines of a worker.

    Jobs without a tenant are those of one tenant."""
    return Flow(spec.tenant or "", job_id, spec.weight, Priority[spec.priority.upper()])


log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.2
RETRY_CAP_S: Final = 10.0
"""Between two tries. Items that wait are bounded by the prefetch, and a drain ends their
waiting."""
FILES_BYTES: Final = 256 * 1024 * 1024
"""Of requests with files in them, in one process: seven of the largest, hundreds of usual ones."""
STEPS_S: Final = 1.0
"""Between two looks at the steps that a job has taken: a step is for hours, and a second of
documents asked as before is little."""

T = TypeVar("T")


class Reads:
    """Reads the job and the body of items, on one event loop."""

    def __init__(
        self,
        jobs: JobBook,
        bodies: Bodies,
        waiting: Waiting,
        steps_taken: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """``steps_taken`` reads how many steps of its `degrade` a job has taken, in a thread."""
        self._jobs = jobs
        self._bodies = bodies
        self._waiting = waiting
        self._files = AnswerMemory(FILES_BYTES)
        self._steps_taken = steps_taken
        # by job, and the loop time of the look
        self._steps: OrderedDict[str, tuple[float, asyncio.Future[int]]] = OrderedDict()
        self._failure_log = FailureLog(log)

    def known_job(self, job_id: str, endpoint: str | None = None) -> JobView | None:
        """Return the job if it is here already, as for nearly every item, without a task switch."""
        return self._jobs.known(job_id, endpoint)

    async def job(self, job_id: str, endpoint: str | None = None) -> JobView:
        """Return a job; ``endpoint`` is that of an item that is not for the job's.

        Raises JobNotFound, JobCannotRun and SpecError."""
        return await self._read("a job", lambda: self._jobs.get(job_id, endpoint))

    async def body(self, item: Item, spec: JobSpec) -> bytes:
        """Return the body of a message that travels by reference; empty where the item is ``lost``.

        Where documents bring files it waits for room, which the item has until it is settled.

        Raises SourceUnavailable, SourceChanged and BadReference."""
        if spec.image_fields or spec.audio_fields:
            item.files_room = await self._read("room", lambda: self._files.room(UPLOAD_BODY_BYTES))
        try:
            body = await self._read("a document", lambda: self._bodies.fetch(item))
        except RowChanged as error:
            item.lost = str(error)
            return b""
        if item.files_room is not None:
            item.files_room.shrink(min(len(body), item.files_room.size))
        return body

    async def step(self, job_id: str) -> int:
        """Return the latest step of its `degrade` that a job has taken; 0 before the first.

        It is read once in ``STEPS_S`` for all items."""
        now = asyncio.get_running_loop().time()
        known = self._steps.get(job_id)
        if known is None or now - known[0] >= STEPS_S:
            reading = asyncio.ensure_future(
                self._read("a job", lambda: asyncio.to_thread(self._steps_taken, job_id))
            )
            known = self._steps[job_id] = now, reading
            if len(self._steps) > JOBS_KEPT:
                self._steps.popitem(last=False)
        try:
            return await asyncio.shield(known[1])
        except Exception:
            self._steps.pop(job_id, None)
            raise

    async def of_fleet(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what Redis knows of the other workers."""
        return await self._read("what the fleet serves", ask)

    async def _read(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        with self._waiting:
            for failures in count():
                try:
                    return await ask()
                except Exception as error:
                    if trouble_of(error) is not Trouble.AWAY:
                        raise
                    wait_s = full_jitter(failures, base_s=RETRY_FIRST_S, cap_s=RETRY_CAP_S)
                    self._failure_log.tell(
                        f"{what} cannot be read", error, f"items wait, next try in {wait_s:.1f} s"
                    )
                    await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: a read ends with an answer or an error")
