"""Builds a worker from its parts."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from penstock_ledger import (
    AnswerBook,
    JobStore,
    OutcomeStore,
    Provenance,
    StepsTaken,
    TenantBudgets,
    WarmPrefixes,
)
from penstock_workers.children.child_pool import ChildPool, child_starter
from penstock_workers.decided_times import DecidedTimes
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.deliveries import Bridge, Delivery, ItemEngine
from penstock_workers.item.lane import Lane
from penstock_workers.item.run.cached_contents import CachedContents
from penstock_workers.item.run.fates import RetryPolicy
from penstock_workers.item.run.host import ItemHost
from penstock_workers.item.run.job_code import JobCode
from penstock_workers.item.run.models import ModelCheck
from penstock_workers.item.run.passes import Passes
from penstock_workers.item.run.priming import Priming
from penstock_workers.item.run.reading import Bodies, JobBook, Reads, read_job
from penstock_workers.item.run.rented import RentedCaches
from penstock_workers.item.run.reuse import Reuse
from penstock_workers.item.run.runner import ItemRunner
from penstock_workers.item.run.runs import Causes, Runs
from penstock_workers.item.run.starts import Starts
from penstock_workers.item.settling.records import MadeWithNotes, Records
from penstock_workers.item.settling.settle import Durable, Settler
from penstock_workers.item.settling.tally import OutcomeTally
from penstock_workers.item.slots import ItemWaits
from penstock_workers.item_worker import Consume, DrainFigures, ItemWorker, LaneHere, ServedModel
from penstock_workers.lanes.registry import bound_figures, lane_row, served_by
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import CONTROL_LANE, WorkerSettings, process_name
from penstock_workers.stores import Stores, open_stores
from penstock_workers.tracing import Tracing, open_tracing

if TYPE_CHECKING:
    from penstock_workers.control import Control


@dataclass(slots=True)
class BesideItems:
    """The parts that run beside the items, once the worker has started."""

    tracing: Tracing | None = None
    control: Control | None = None


class WorkerEngine:
    """The items of a worker with all that they need, opened and closed together.

    Implements ``deliveries.ItemEngine``."""

    def __init__(
        self,
        settings: WorkerSettings,
        lane: Lane | None = None,
        *,
        consume: Consume | None = None,
        decided: DecidedTimes | None = None,
    ) -> None:
        self._settings, self._consume, self._decided = settings, consume, decided
        self._lane = LaneHere(settings, lane)
        self._tally = OutcomeTally(tuple(settings.providers))
        self._closing = contextlib.AsyncExitStack()
        self._beside = BesideItems()
        self._worker: ItemWorker | None = None

    async def start(self, bridge: Bridge) -> None:
        settings, closing = self._settings, self._closing
        stores = closing.enter_context(open_stores(settings, "worker"))
        self._beside.tracing = closing.enter_context(open_tracing(settings, settings.lane))
        # it starts last, and yet ends after the items
        control = closing.enter_context(contextlib.ExitStack())
        host = self._make_items(bridge, stores)
        drain = DrainFigures(settings.lane, stores.hot, self._tally)
        self._worker = worker = ItemWorker(self._lane, host, drain, stores.hot)
        for part in worker.closed_last_to_first():
            closing.push_async_callback(part.close)
        loads, models = served_by(settings), host.runner.models
        # it may load for minutes, and status shows how far it is
        if loads is not None and models is not None:
            worker.model = ServedModel(
                settings,
                loads,
                stores.hot,
                models,
                consume=self._consume,
                announce=worker.heartbeat.beat,
            )
            worker.heartbeat.beat()
        await self._lane.start()
        host.resize(self._lane.slots)
        if worker.model is not None:
            await worker.model.open(self._lane.served)
            closing.push_async_callback(worker.model.close)
        worker.begin()
        if settings.control:
            from penstock_workers.control import start_control

            self._beside.control = control.enter_context(start_control(settings, self._decided))

    def _make_items(self, bridge: Bridge, stores: Stores) -> ItemHost:
        """Make and join all that items go through; nothing of it has started."""
        settings, row, lane = self._settings, self._lane.row, self._lane.lane
        jobs, outcomes = JobStore(stores.database), OutcomeStore(stores.database, settings.lane)
        tracing = self._beside.tracing
        traces = None if tracing is None else tracing.of_items()
        failpoints = Failpoints.parse(settings.failpoints)
        start_child = child_starter(settings)
        suspects = ChildPool(start_child, row.suspect_children)
        hooks, schemas = (ChildPool(start_child, settings.hook_processes) for _ in range(2))
        waits = ItemWaits(settings.concurrency)
        made_with = MadeWithNotes(
            Provenance(stores.database), self._lane.engine(), settings.cost.usd_per_hour
        )
        settler = Settler(
            bridge,
            Records(jobs, outcomes, stores.hot, made_with),
            failpoints,
            self._tally,
            group_max=settings.commit_max,
            linger_s=settings.commit_linger_s,
            on_durable=partial(_after_settling, None if traces is None else traces.settled),
            is_short=waits.slots.are_short,
        )
        book = JobBook(read_job(jobs, settings, TenantBudgets(stores.database)))
        starts = Starts(
            stores.hot, outcomes, jobs, settings.lane, book.forget, partial(bridge.sure, anew=True)
        )
        taken = StepsTaken(stores.database)
        reads = Reads(book, Bodies(stores.database, settings), waits.others, taken.latest)
        models = (
            None if served_by(settings) is None else ModelCheck(settings.lane, stores.hot, reads)
        )
        owner = f"{process_name()}-{secrets.token_hex(4)}"
        answers = AnswerBook(
            stores.redis,
            owner,
            most=settings.cache_entries,
            lease_s=settings.visibility_timeout_s,
        )
        warm = WarmPrefixes(stores.redis, owner, lease_s=settings.visibility_timeout_s)
        runner = ItemRunner(
            bridge=bridge,
            lane=lane,
            reads=reads,
            models=models,
            admission=self._lane.admission(),
            quarantine=row.place_of_suspects(lane, suspects),
            code=JobCode(hooks, schemas, suspects, slots=waits.slots),
            starts=starts,
            causes=Causes(stores.hot.failing.note),
            waits=waits,
            policy=RetryPolicy(
                settings.retry_base_s, settings.retry_cap_s, settings.max_retry_after_s
            ),
            failpoints=failpoints,
            reuse=Reuse(answers, outcomes, starts.begin, waits.others),
            runs=Runs(settings.pause_after_run),
            priming=Priming(
                warm,
                waits.others,
                RentedCaches(
                    warm,
                    CachedContents(settings.providers),
                    outcomes.note_cache,
                    jobs.states,
                    waits.others,
                    failpoints,
                ),
            ),
            passes=Passes(stores.redis),
            traced=traces is not None,
        )
        return ItemHost(runner, settler, waits)

    def accept(self, delivery: Delivery) -> None:
        self._running.host.accept(delivery)

    def abort(self, delivery: Delivery, why: str) -> None:
        self._running.host.abort(delivery, why)

    async def drain(self, deadline_s: float) -> None:
        worker = self._running
        worker.drained.begin(len(worker.host))
        await worker.host.drain(deadline_s)

    async def stop(self) -> None:
        if self._worker is not None:
            await self._worker.stop()
        await self._closing.aclose()

    def slots(self) -> int:
        return self._lane.slots

    def resize(self, concurrency: int) -> None:
        self._lane.slots = concurrency
        self._running.host.resize(concurrency)

    def stats(self) -> Mapping[str, int | float | str]:
        return {} if self._worker is None else self._worker.stats()

    def stuck(self) -> str | None:
        """Return why the worker must be replaced, None where it works.

        A control loop beside the items may be stuck: its leases then end, others lead its jobs, and
        the items go on."""
        backlogs = () if self._worker is None else self._worker.backlogs
        return next((why for backlog in backlogs if (why := backlog.overdue()) is not None), None)

    def trouble(self) -> str | None:
        loading = self._lane.lane.gauges().get("loading")
        if loading is not None:
            return f"the model loads: {loading}"
        backlogs = () if self._worker is None else self._worker.backlogs
        return next((what for backlog in backlogs if (what := backlog.trouble()) is not None), None)

    def figures(self) -> Iterator[Sample]:
        lane = self._settings.lane
        yield catalogue.INFO(1, lane, version("penstock"))
        yield from self._tally.figures(lane)
        if self._worker is None:
            yield from bound_figures(lane, "starting")
            return
        yield from self._worker.figures(self._tally.paid.engine_usd)
        if self._beside.tracing is not None:
            yield from self._beside.tracing.sink.figures()
        if self._beside.control is not None:
            yield from self._beside.control.figures()

    @property
    def _running(self) -> ItemWorker:
        assert self._worker is not None, "start() comes first"
        return self._worker


def _after_settling(also: Durable | None, group: Sequence[Settled]) -> None:
    """Free the memory of large answers, and make the spans of traced items."""
    for item, _ in group:
        if isinstance(item, Attempt) and item.room is not None:
            item.room.release()
    if also is not None:
        also(group)


def build_engine(
    settings: WorkerSettings, *, consume: Consume | None = None, decided: DecidedTimes | None = None
) -> ItemEngine:
    """Build the engine of a worker.

    ``decided`` gets what came of the times of schedules, where this worker runs the control loop.
    """
    if settings.lane == CONTROL_LANE:
        from penstock_workers.control import ControlEngine

        return ControlEngine(settings, decided)
    runs = lane_row(settings.lane).runs
    if runs is None:
        return WorkerEngine(settings, consume=consume, decided=decided)
    return runs(settings, partial(_start_control, decided=decided))


def _start_control(
    settings: WorkerSettings, decided: DecidedTimes | None
) -> contextlib.AbstractContextManager[Control]:
    from penstock_workers.control import start_control

    return start_control(settings, decided)
