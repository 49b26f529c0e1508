"""Put a worker together: the one place that knows every part."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import redis.asyncio

from penstock_ledger import JobStore, OutcomeStore
from penstock_ratelimit import SharedLimiter
from penstock_workers.admission import Admission, quotas
from penstock_workers.bodies import Bodies
from penstock_workers.control import start_control
from penstock_workers.costs import Costs
from penstock_workers.decide import RetryPolicy
from penstock_workers.engine import Bridge, Delivery, ItemEngine
from penstock_workers.errors import UnknownLane
from penstock_workers.failpoints import Failpoints
from penstock_workers.gauges import GaugeWatch
from penstock_workers.heartbeat import Heartbeat
from penstock_workers.jobbook import JobBook, read_job
from penstock_workers.lanes.api import ApiLane
from penstock_workers.lanes.base import Lane
from penstock_workers.runner import ItemRunner
from penstock_workers.settings import WorkerSettings, process_name
from penstock_workers.settle import Settler
from penstock_workers.shelves import Shelves
from penstock_workers.starts import Starts
from penstock_workers.stores import open_stores


def make_lane(settings: WorkerSettings) -> Lane:
    """The lane that this worker serves. Raises UnknownLane."""
    if settings.lane == "api":
        return ApiLane(settings.providers)
    raise UnknownLane(settings.lane, ["api"])


class WorkerEngine:
    """The item runner with everything it stands on, opened and closed together. Implements ``engine.ItemEngine``."""

    def __init__(self, settings: WorkerSettings, lane: Lane | None = None) -> None:
        self._settings = settings
        self._lane = lane or make_lane(settings)
        self._failpoints = Failpoints.parse(settings.failpoints)
        self._closing = contextlib.ExitStack()
        self._runner: ItemRunner | None = None
        self._heartbeat: Heartbeat | None = None

    async def start(self, bridge: Bridge) -> None:
        settings = self._settings
        stores = self._closing.enter_context(open_stores(settings))
        jobs, outcomes = JobStore(stores.database), OutcomeStore(stores.database)
        self._quota_client = redis.asyncio.Redis.from_url(settings.redis_url, socket_timeout=15)
        limiter = SharedLimiter(self._quota_client, quotas(settings))
        costs = Costs(settings.providers)
        costs.share(self._quota_client)
        pages = {name: provider.metrics_url for name, provider in settings.providers.items() if provider.metrics_url}
        self._gauges = GaugeWatch(pages, limiter.gauge)
        self._gauges.start()
        self._runner = ItemRunner(
            lane=self._lane,
            jobs=JobBook(read_job(jobs, settings)),
            bodies=Bodies(stores.database, settings),
            admission=Admission(limiter, costs),
            starts=Starts(stores.hot, outcomes),
            settler=Settler(
                Shelves(jobs, outcomes, stores.hot),
                self._failpoints,
                group_max=settings.commit_max,
                linger_s=settings.commit_linger_s,
            ),
            policy=RetryPolicy(settings.retry_base_s, settings.retry_cap_s, settings.max_retry_after_s),
            failpoints=self._failpoints,
            concurrency=settings.concurrency,
        )
        await self._runner.start(bridge)
        self._heartbeat = Heartbeat(stores.hot, process_name(), self._describe)
        self._heartbeat.start()
        if settings.control:
            self._closing.enter_context(start_control(settings))

    def accept(self, delivery: Delivery) -> None:
        self._running.accept(delivery)

    def abort(self, delivery: Delivery, why: str) -> None:
        self._running.abort(delivery, why)

    async def drain(self, deadline_s: float) -> None:
        await self._running.drain(deadline_s)

    async def stop(self) -> None:
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        if self._runner is not None:
            await self._gauges.close()
            await self._runner.stop()
            await self._quota_client.aclose()
        self._closing.close()

    def resize(self, concurrency: int) -> None:
        self._running.resize(concurrency)

    def stats(self) -> Mapping[str, int | float | str]:
        return self._runner.stats() if self._runner is not None else {}

    @property
    def _running(self) -> ItemRunner:
        assert self._runner is not None, "start() comes first"
        return self._runner

    def _describe(self) -> dict[str, str]:
        return {
            "lane": self._settings.lane,
            "concurrency": str(self._settings.concurrency),
            "in_flight": str(self.stats().get("in-flight", 0)),
        }


def build_engine(settings: WorkerSettings) -> ItemEngine:
    return WorkerEngine(settings)
