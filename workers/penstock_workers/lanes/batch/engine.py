"""What runs in a worker of the `batch` lane, with the interface of the engine that runs items.

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
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Final

from penstock_ledger import (
    JobStore,
    OutcomeStore,
    Provenance,
    ProviderBatchStore,
    RemainderStore,
    TenantAccounts,
    TenantBudgets,
)
from penstock_producer.feed.queues import PROVIDERS, providers_text
from penstock_producer.job.lanes import BATCH_LANE
from penstock_workers.children.child_pool import ChildPool, child_starter
from penstock_workers.failpoints import Failpoints
from penstock_workers.heartbeat import Heartbeat
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
from penstock_workers.lanes.batch.packer import Packer
from penstock_workers.lanes.batch.packing import Packing
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


class BatchEngine:
    """Implements ``ItemEngine``."""

    def __init__(self, settings: WorkerSettings, beside: StartBeside) -> None:
        """Make the engine; ``beside`` starts the control loop, where the settings ask for one."""
        limit_arenas()
        self._settings = settings
        self._start_beside = beside
        # a control loop beside it leads feeds under the process's own name
        self._owner = f"{process_name()}-{BATCH_LANE}"
        self._closing = contextlib.ExitStack()
        self._parts = contextlib.AsyncExitStack()
        self._tally = OutcomeTally([*settings.providers])
        self._providers: dict[str, BatchProvider] = {}
        self._bridge: Bridge | None = None
        self._control: Beside | None = None
        self._leader: Leader | None = None
        self._journeys: Journeys | None = None
        self._settler: Settler | None = None
        self._code: JobCode | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, bridge: Bridge) -> None:
        self._bridge = bridge
        stores = self._closing.enter_context(open_stores(self._settings, "worker"))
        for name in self._settings.providers:
            self._provider(name)  # a key that is missing ends the worker here, with its message
        folder = PackedFolder(self._settings.batch.place)
        journal = Journal(
            ProviderBatchStore(stores.database, self._settings.lane),
            self._owner,
            self._settings.visibility_timeout_s,
        )
        folder.open()
        folder.sweep(await asyncio.to_thread(journal.store.open_tags))
        self._leader = self._make_leader(stores, journal, folder)
        self._heartbeat = Heartbeat(stores.hot, process_name(), self._describe)
        self._parts.push_async_callback(self._heartbeat.stop)
        self._heartbeat.beat()
        self._tasks = [
            asyncio.create_task(self._leader.run()),
            asyncio.create_task(self._leader.renew()),
        ]
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
        if self._leader is not None:
            await self._leader.close(deadline_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._settler is not None:
            await self._settler.flush()
        if self._leader is not None:
            # leases of a database that is away end by themselves
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self._leader.release)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for provider in self._providers.values():
            await provider.close()
        await self._parts.aclose()
        self._closing.close()

    def slots(self) -> int:
        return 1

    def resize(self, concurrency: int) -> None:
        """Do nothing, since there is always one loop."""

    def stats(self) -> Mapping[str, int | float | str]:
        return {} if self._settler is None else self._settler.stats()

    def stuck(self) -> str | None:
        if self._settler is not None and (why := self._settler.backlog.overdue()) is not None:
            return why
        if self._leader is None or self._leader.is_turning():
            return None
        return "the loop of the batch lane has been stuck in one round for minutes"

    def trouble(self) -> str | None:
        return None if self._settler is None else self._settler.backlog.trouble()

    def figures(self) -> Iterator[Sample]:
        lane = self._settings.lane
        yield catalogue.INFO(1, lane, version("penstock"))
        yield from self._tally.figures(lane)
        if self._journeys is not None:
            for (provider, state), number in self._journeys.count().items():
                yield catalogue.PROVIDER_BATCHES(number, lane, provider, state)
        if self._control is not None:
            yield from self._control.figures()

    def _make_leader(self, stores: Stores, journal: Journal, folder: PackedFolder) -> Leader:
        settings, database = self._settings, stores.database
        feeds, failpoints = JobStore(database), Failpoints.parse(settings.failpoints)
        views = JobBook(read_job(feeds, settings, TenantBudgets(database)))
        jobs = Jobs(feeds, stores.hot, views)
        packing = Packing(Packer(settings, database, folder, self._owner), folder)
        outcomes = OutcomeStore(database, settings.lane)
        tenants = TenantAccounts(database, stores.hot.budgets)
        self._journeys = Journeys(
            settings,
            journal,
            jobs,
            Reservations(stores.hot.budgets, journal.store, outcomes, tenants),
            packing,
            Collector(self._make_judge(stores, feeds, journal, failpoints), failpoints),
            self._provider,
            failpoints,
        )
        packs = JobPacking(
            settings.batch,
            journal,
            jobs,
            feeds,
            packing,
            self._journeys,
            self._provider,
            failpoints,
        )
        looks = Looks(database)
        return Leader(settings, journal, jobs, looks, packs, self._journeys, packing, feeds)

    def _make_judge(
        self, stores: Stores, jobs: JobStore, journal: Journal, failpoints: Failpoints
    ) -> Judge:
        """Make what turns answers into outcomes and settles them, and have it closed at the end."""
        settings, database = self._settings, stores.database
        start_child = child_starter(settings)
        hooks, checks = (ChildPool(start_child, settings.hook_processes) for _ in range(2))
        self._code = JobCode(hooks, checks, ChildPool(start_child, 1))
        records = BatchRecords(
            jobs, journal.store, stores.hot, MadeWithNotes(Provenance(database), "", 0.0)
        )
        self._settler = Settler(
            NoQueue(), records, failpoints, self._tally, group_max=settings.commit_max, linger_s=0.0
        )
        self._settler.start()
        self._parts.push_async_callback(self._settler.close)
        self._parts.push_async_callback(self._code.close)
        policy = RetryPolicy(
            settings.retry_base_s, settings.retry_cap_s, settings.max_retry_after_s
        )
        outcomes = OutcomeStore(database, settings.lane)
        return Judge(outcomes, RemainderStore(database), self._code, self._settler, policy)

    def _provider(self, name: str) -> BatchProvider:
        """Return the batch API of a provider; raise UnknownProvider, MissingApiKey, PlainHttp."""
        if name not in self._providers:
            self._providers[name] = open_batches(name, self._settings.provider(name))
        return self._providers[name]

    def _describe(self) -> dict[str, str]:
        led = 0 if self._journeys is None else self._journeys.count().total()
        hooks = {} if self._code is None else self._code.described()
        own = {"lane": self._settings.lane, "concurrency": "1", "in_flight": str(led)}
        return {**hooks, **own, PROVIDERS: providers_text(self._settings.providers)}
