"""A worker of the `batch` lane runs behind the interface of the engine that runs items.

Its documents are no messages, so nothing is claimed: it is a worker like `penstock control` is one,
with its drain, its heartbeat and its probe files. It holds the keys of the providers.

How much memory glibc keeps for threads that no longer need it.

glibc gives each thread an arena of its own, up to eight a core, and returns little of one to the
system. The batch lane reads and writes documents by the thousand in whichever thread is free, so
that each arena grows to what the largest page took. With few of them the threads share what is
freed. It is said to glibc and not by MALLOC_ARENA_MAX, so that it holds however a worker is
started, and so that what a worker starts, as the processes of hooks, keeps what is usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from typing import Final, NamedTuple

from penstock_ledger import (
    AnswerBook,
    JobStore,
    OutcomeStore,
    Provenance,
    ProviderBatchStore,
    RemainderStore,
    StepsTaken,
    TenantAccounts,
    TenantBudgets,
)
from penstock_producer.feed.queues import PROVIDERS, providers_text
from penstock_producer.job.lanes import BATCH_LANE
from penstock_workers.background import BackgroundTasks
from penstock_workers.children.child_pool import ChildPool, child_starter
from penstock_workers.failpoints import Failpoints
from penstock_workers.heartbeat import Heartbeat
from penstock_workers.item.attempt import Settled
from penstock_workers.item.deliveries import Bridge, Delivery, set_aside
from penstock_workers.item.run.fates import RetryPolicy
from penstock_workers.item.run.job_code import JobCode
from penstock_workers.item.run.reading import JobBook, read_job
from penstock_workers.item.settling.records import MadeWithNotes
from penstock_workers.item.settling.settle import Settler
from penstock_workers.item.settling.tally import OutcomeTally
from penstock_workers.lanes.batch.answers import Collector, Judge
from penstock_workers.lanes.batch.apis import open_batches
from penstock_workers.lanes.batch.apis.provider import BatchProvider
from penstock_workers.lanes.batch.job_packing import JobPacking
from penstock_workers.lanes.batch.jobs import Jobs, Reservations
from penstock_workers.lanes.batch.journeys import Journeys
from penstock_workers.lanes.batch.leader import Leader, Looks
from penstock_workers.lanes.batch.led_batch import Journal
from penstock_workers.lanes.batch.packed import PackedFolder
from penstock_workers.lanes.batch.packer import Packer, Packing
from penstock_workers.lanes.batch.records import BatchRecords, NoQueue
from penstock_workers.lanes.row import Beside, StartBeside
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import WorkerSettings, has_arena_limit, process_name
from penstock_workers.stores import Stores, open_stores

ARENAS: Final = 2
M_ARENA_MAX: Final = -8  # glibc's malloc.h


def limit_arenas() -> bool:
    """Limit the arenas of glibc's malloc, and return whether that was done.

    It is not done on another C library, nor where the environment has a limit already. Arenas that
    exist stay, so it comes before the threads.
    """
    if has_arena_limit() or not _is_glibc():
        return False
    return bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS))


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):  # a system that does not know the name: musl, macOS
        return False


class Working(NamedTuple):
    """The parts that work on the batches once the worker has started."""

    leader: Leader
    journeys: Journeys
    settler: Settler
    code: JobCode


class BatchEngine:
    """Implements ``ItemEngine``."""

    def __init__(self, settings: WorkerSettings, beside: StartBeside) -> None:
        """Make the engine; ``beside`` starts the control loop, where the settings ask for one."""
        limit_arenas()
        self._settings = settings
        self._start_beside = beside
        self._closing = contextlib.ExitStack()
        self._parts = contextlib.AsyncExitStack()
        self._tally = OutcomeTally([*settings.providers])
        self._providers: dict[str, BatchProvider] = {}
        self._bridge: Bridge | None = None
        self._control: Beside | None = None
        self._working: Working | None = None
        self._tasks = BackgroundTasks()

    async def start(self, bridge: Bridge) -> None:
        self._bridge = bridge
        stores = self._closing.enter_context(open_stores(self._settings, "worker"))
        for name in self._settings.providers:
            self._provider(name)  # a key that is missing ends the worker here, with its message
        folder = PackedFolder(self._settings.batch.place)
        journal = Journal(
            ProviderBatchStore(stores.database, self._settings.lane),
            # a control loop beside it leads feeds under the process's own name
            f"{process_name()}-{BATCH_LANE}",
            self._settings.visibility_timeout_s,
        )
        folder.open()
        folder.sweep(await asyncio.to_thread(journal.store.open_tags))
        self._working = working = self._make_parts(stores, journal, folder)
        self._parts.push_async_callback(working.settler.close)
        self._parts.push_async_callback(working.code.close)
        working.settler.start()
        heartbeat = Heartbeat(stores.hot, process_name(), self._describe)
        self._parts.push_async_callback(heartbeat.stop)
        heartbeat.beat()
        self._tasks.start(working.leader.run(), "batch rounds")
        self._tasks.start(working.leader.renew(), "batch leases")
        if self._settings.control:
            self._control = self._closing.enter_context(self._start_beside(self._settings))

    def accept(self, delivery: Delivery) -> None:
        """Set aside an item that was sent to this lane's queue: Penstock sends none."""
        assert self._bridge is not None, "start() comes first"
        set_aside(self._bridge, delivery)

    def abort(self, delivery: Delivery, why: str) -> None:
        """Do nothing, since nothing runs here that was claimed."""

    async def drain(self, deadline_s: float) -> None:
        """End between two steps where that is possible.

        The journal says where the next worker goes on."""
        working = self._working
        if working is None:
            return
        await working.leader.close(deadline_s)
        await self._tasks.close()
        await working.settler.flush()
        # leases of a database that is away end by themselves
        with contextlib.suppress(Exception):
            await asyncio.to_thread(working.leader.release)

    async def stop(self) -> None:
        await self._tasks.close()
        for provider in self._providers.values():
            await provider.close()
        await self._parts.aclose()
        self._closing.close()

    def slots(self) -> int:
        return 1

    def resize(self, concurrency: int) -> None:
        """Do nothing, since there is always one loop."""

    def stats(self) -> Mapping[str, int | float | str]:
        return {} if self._working is None else self._working.settler.stats()

    def stuck(self) -> str | None:
        working = self._working
        if working is None:
            return None
        why = working.settler.backlog.overdue()
        if why is not None or working.leader.is_turning():
            return why
        return "the loop of the batch lane has been stuck in one round for minutes"

    def trouble(self) -> str | None:
        return None if self._working is None else self._working.settler.backlog.trouble()

    def figures(self) -> Iterator[Sample]:
        lane = self._settings.lane
        yield catalogue.INFO(1, lane, version("penstock"))
        yield from self._tally.figures(lane)
        if self._working is not None:
            for (provider, state), number in self._working.journeys.count().items():
                yield catalogue.PROVIDER_BATCHES(number, lane, provider, state)
        if self._control is not None:
            yield from self._control.figures()

    def _make_parts(self, stores: Stores, journal: Journal, folder: PackedFolder) -> Working:
        """Make and join all that works on batches; nothing of it has started."""
        settings, database = self._settings, stores.database
        feeds, failpoints = JobStore(database), Failpoints.parse(settings.failpoints)
        views = JobBook(read_job(feeds, settings, TenantBudgets(database)))
        jobs = Jobs(feeds, stores.hot, views, StepsTaken(database))
        outcomes = OutcomeStore(database, settings.lane)
        tenants = TenantAccounts(database, stores.hot.budgets)
        code, settler = self._make_code(), self._make_settler(stores, feeds, journal, failpoints)
        book = AnswerBook(
            stores.redis,
            f"{process_name()}-{secrets.token_hex(4)}",
            most=settings.cache_entries,
            lease_s=settings.visibility_timeout_s,
        )
        settle = _settling(settler, asyncio.get_running_loop())
        packer = Packer(settings, database, stores.hot, folder, journal.owner, book, settle)
        packing = Packing(packer, folder)
        policy = RetryPolicy(
            settings.retry_base_s, settings.retry_cap_s, settings.max_retry_after_s
        )
        judge = Judge(outcomes, RemainderStore(database), code, settler, policy, book)
        journeys = Journeys(
            settings,
            journal,
            jobs,
            Reservations(stores.hot.budgets, journal.store, outcomes, tenants),
            packing,
            Collector(judge, failpoints),
            self._provider,
            failpoints,
        )
        packs = JobPacking(
            settings.batch,
            journal,
            jobs,
            feeds,
            packing,
            journeys,
            self._provider,
            failpoints,
        )
        looks = Looks(database)
        leader = Leader(settings, journal, jobs, looks, packs, journeys, packing, feeds)
        return Working(leader, journeys, settler, code)

    def _make_code(self) -> JobCode:
        start_child = child_starter(self._settings)
        hooks, checks = (ChildPool(start_child, self._settings.hook_processes) for _ in range(2))
        return JobCode(hooks, checks, ChildPool(start_child, 1))

    def _make_settler(
        self, stores: Stores, jobs: JobStore, journal: Journal, failpoints: Failpoints
    ) -> Settler:
        made_with = MadeWithNotes(Provenance(stores.database), "", 0.0)
        return Settler(
            NoQueue(),
            BatchRecords(jobs, journal.store, stores.hot, made_with),
            failpoints,
            self._tally,
            group_max=self._settings.commit_max,
            linger_s=0.0,
        )

    def _provider(self, name: str) -> BatchProvider:
        """Return the batch API of a provider; raise UnknownProvider, MissingApiKey, PlainHttp."""
        if name not in self._providers:
            self._providers[name] = open_batches(name, self._settings.provider(name))
        return self._providers[name]

    def _describe(self) -> dict[str, str]:
        working = self._working
        led = 0 if working is None else working.journeys.count().total()
        hooks = {} if working is None else working.code.described()
        own = {"lane": self._settings.lane, "concurrency": "1", "in_flight": str(led)}
        return {**hooks, **own, PROVIDERS: providers_text(self._settings.providers)}


def _settling(
    settler: Settler, loop: asyncio.AbstractEventLoop
) -> Callable[[Sequence[Settled]], Future[None]]:
    """Return what settles outcomes from another thread."""

    async def settle(group: Sequence[Settled]) -> None:
        for one in group:
            settler.put(one)
        await settler.flush()

    return lambda group: asyncio.run_coroutine_threadsafe(settle(group), loop)
