"""Builds a worker from its parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from penstock_ledger import (
    AnswerBook,
    Drained,
    JobStore,
    OutcomeStore,
    Provenance,
    RedisLedger,
    TenantBudgets,
)
from penstock_ledger.redaction import redact
from penstock_producer.feed.queues import Served
from penstock_workers.children.child_pool import ChildPool, child_starter
from penstock_workers.decided_times import DecidedTimes
from penstock_workers.failpoints import Failpoints
from penstock_workers.heartbeat import Heartbeat
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.deliveries import Bridge, Delivery, ItemEngine
from penstock_workers.item.lane import Admission, Lane
from penstock_workers.item.run.cost import PricedAdmission, SharedTime
from penstock_workers.item.run.fates import RetryPolicy
from penstock_workers.item.run.host import ItemHost
from penstock_workers.item.run.job_code import JobCode
from penstock_workers.item.run.models import ModelCheck
from penstock_workers.item.run.passes import Passes
from penstock_workers.item.run.reading import Bodies, JobBook, Reads, read_job
from penstock_workers.item.run.reuse import Reuse
from penstock_workers.item.run.runner import ItemRunner
from penstock_workers.item.run.runs import Causes, Runs
from penstock_workers.item.run.starts import Starts
from penstock_workers.item.settling.groups import Backlog
from penstock_workers.item.settling.records import MadeWithNotes, Records, engine_in_words
from penstock_workers.item.settling.settle import Durable, Settler
from penstock_workers.item.settling.tally import OutcomeTally
from penstock_workers.item.slots import ItemWaits
from penstock_workers.lanes.registry import bound_figures, engine_figures, lane_row, served_by
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.served_model import Consume, ServedModel
from penstock_workers.settings import CONTROL_LANE, WorkerSettings, process_name
from penstock_workers.stores import Stores, open_stores
from penstock_workers.tracing import Tracing, open_tracing

if TYPE_CHECKING:
    from penstock_workers.control import Control

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the items of a worker go through."""

    runner: ItemRunner
    settler: Settler
    starts: Starts
    causes: Causes
    admission: Admission
    code: JobCode
    waits: ItemWaits
    models: ModelCheck | None


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
        self._settings = settings
        self._consume = consume
        self._decided = decided
        # items that run at once; an engine that is up may say more
        self._slots = settings.concurrency
        self._model: ServedModel | None = None  # in lanes that host one
        self._row = lane_row(settings.lane)
        self._lane = lane or self._row.make(settings)
        self._failpoints = Failpoints.parse(settings.failpoints)
        self._closing = contextlib.ExitStack()
        self._parts = contextlib.AsyncExitStack()  # of the items, on the item loop
        self._host: ItemHost | None = None
        self._code: JobCode | None = None
        self._heartbeat: Heartbeat | None = None
        self._tally = OutcomeTally(tuple(settings.providers))
        self._computing = SharedTime()
        self._held_at_drain: int | None = None  # None before it
        self._ended_before = 0
        self._hot: RedisLedger | None = None
        self._control: Control | None = None
        self._tracing: Tracing | None = None
        self._settler: Settler | None = None
        self._backlogs: tuple[Backlog, ...] = ()  # of what waits for a store

    async def start(self, bridge: Bridge) -> None:
        settings = self._settings
        stores = self._closing.enter_context(open_stores(settings, "worker"))
        self._hot = stores.hot
        self._tracing = self._closing.enter_context(open_tracing(settings, settings.lane))
        parts = self._make_parts(bridge, stores)
        self._code, self._settler = parts.code, parts.settler
        self._backlogs = (parts.settler.backlog, parts.starts.backlog)
        self._host = ItemHost(parts.runner, parts.settler, parts.waits)
        # closed in the opposite order
        for part in (
            self._lane,
            parts.causes,
            parts.admission,
            parts.code,
            parts.starts,
            parts.runner.reuse,
            parts.runner.passes,
            parts.settler,
        ):
            self._parts.push_async_callback(part.close)
        self._heartbeat = Heartbeat(stores.hot, process_name(), self._describe, self._note_queues)
        loads = served_by(settings)
        # it may load for minutes, and status shows how far it is
        if loads is not None and parts.models is not None:
            self._model = ServedModel(
                settings,
                loads,
                stores.hot,
                parts.models,
                consume=self._consume,
                announce=self._heartbeat.beat,
            )
            self._heartbeat.beat()
        await self._lane.start()
        found = None if self._row.slots is None else self._row.slots(settings, self._lane)
        self._slots = settings.concurrency if found is None else found
        parts.waits.slots.resize(self._slots)
        if self._model is not None:
            await self._model.open(self._served)
            self._parts.push_async_callback(self._model.close)
        parts.starts.start()
        parts.runner.reuse.start()
        parts.runner.passes.start()
        parts.settler.start()
        parts.causes.start()
        self._heartbeat.beat()
        if settings.control:
            from penstock_workers.control import start_control

            self._control = self._closing.enter_context(start_control(settings, self._decided))

    def _make_parts(self, bridge: Bridge, stores: Stores) -> _Parts:
        """Make and join all that items go through; nothing of it has started."""
        settings = self._settings
        jobs, outcomes = JobStore(stores.database), OutcomeStore(stores.database, settings.lane)
        traces = None if self._tracing is None else self._tracing.of_items()
        start_child = child_starter(settings)
        suspects = ChildPool(start_child, self._row.suspect_children)
        hooks, schemas = (ChildPool(start_child, settings.hook_processes) for _ in range(2))
        waits = ItemWaits(settings.concurrency)
        code = JobCode(hooks, schemas, suspects, slots=waits.slots)
        settler = Settler(
            bridge,
            Records(jobs, outcomes, stores.hot, self._made_with(stores)),
            self._failpoints,
            self._tally,
            group_max=settings.commit_max,
            linger_s=settings.commit_linger_s,
            on_durable=partial(_after_settling, None if traces is None else traces.settled),
            is_short=waits.slots.are_short,
        )
        book = JobBook(read_job(jobs, settings, TenantBudgets(stores.database)))
        starts = Starts(stores.hot, outcomes, jobs, settings.lane, book.forget)
        causes = Causes(stores.hot.failing.note)
        admission = self._priced(self._row.admission(settings, self._lane))
        reads = Reads(book, Bodies(stores.database, settings), waits.others)
        models = (
            None if served_by(settings) is None else ModelCheck(settings.lane, stores.hot, reads)
        )
        answers = AnswerBook(
            stores.redis,
            f"{process_name()}-{secrets.token_hex(4)}",
            most=settings.cache_entries,
            lease_s=settings.visibility_timeout_s,
        )
        runner = ItemRunner(
            bridge=bridge,
            lane=self._lane,
            reads=reads,
            models=models,
            admission=admission,
            quarantine=self._row.place_of_suspects(self._lane, suspects),
            code=code,
            starts=starts,
            causes=causes,
            waits=waits,
            policy=RetryPolicy(
                settings.retry_base_s, settings.retry_cap_s, settings.max_retry_after_s
            ),
            failpoints=self._failpoints,
            reuse=Reuse(answers, outcomes, starts.begin, waits.others),
            runs=Runs(settings.pause_after_run),
            passes=Passes(stores.redis),
            traced=traces is not None,
        )
        return _Parts(runner, settler, starts, causes, admission, code, waits, models)

    def accept(self, delivery: Delivery) -> None:
        self._running.accept(delivery)

    def abort(self, delivery: Delivery, why: str) -> None:
        self._running.abort(delivery, why)

    async def drain(self, deadline_s: float) -> None:
        self._held_at_drain, self._ended_before = len(self._running), self._ended()
        await self._running.drain(deadline_s)

    async def stop(self) -> None:
        await self._report_drain()
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        if self._host is not None:
            await self._host.stop()
        await self._parts.aclose()
        self._closing.close()

    def slots(self) -> int:
        return self._slots

    def resize(self, concurrency: int) -> None:
        self._slots = concurrency
        self._running.resize(concurrency)

    def stats(self) -> Mapping[str, int | float | str]:
        if self._host is None or self._settler is None:
            return {}
        return {**self._host.stats(), **self._settler.stats()}

    def stuck(self) -> str | None:
        """Return why the worker must be replaced, None where it works.

        A control loop beside the items may be stuck: its leases then end, others lead its jobs, and
        the items go on."""
        return next(
            (why for backlog in self._backlogs if (why := backlog.overdue()) is not None), None
        )

    def trouble(self) -> str | None:
        loading = self._lane.gauges().get("loading")
        if loading is not None:
            return f"the model loads: {loading}"
        return next(
            (what for backlog in self._backlogs if (what := backlog.trouble()) is not None), None
        )

    def figures(self) -> Iterator[Sample]:
        lane = self._settings.lane
        yield catalogue.INFO(1, lane, version("penstock"))
        yield from self._tally.figures(lane)
        if self._host is None:
            yield from bound_figures(lane, "starting")
            return
        yield from self._host.figures(lane)
        yield catalogue.UNSETTLED_OLDEST(
            max(backlog.oldest_s() for backlog in self._backlogs), lane
        )
        if self._tracing is not None:
            yield from self._tracing.sink.figures()
        gauges = self._lane.gauges()
        yield from engine_figures(lane, gauges)
        if self._row.serves is not None:
            yield catalogue.ENGINE_BUSY(self._computing.busy_s, lane)
            yield catalogue.ENGINE_COST(self._tally.engine_cost_usd, lane)
        yield from bound_figures(lane, str(gauges.get("bound") or self._host.bound()))
        if self._control is not None:
            yield from self._control.figures()

    def _priced(self, admission: Admission) -> Admission:
        """Return an admission that charges by time, in lanes that host a model.

        Where its price is not known, their answers are counted as such."""
        if self._row.serves is None:
            return admission
        return PricedAdmission(admission, self._settings.cost, self._computing)

    def _made_with(self, stores: Stores) -> MadeWithNotes:
        server = None if self._row.engine_url is None else self._row.engine_url(self._settings)
        engine = engine_in_words(self._row.engine, None if server is None else redact(server))
        return MadeWithNotes(Provenance(stores.database), engine, self._settings.cost.usd_per_hour)

    def _served(self) -> Served:
        """Return what the lane serves, now that it is up."""
        served = (
            self._row.announces(self._lane)
            if self._row.announces is not None
            else served_by(self._settings)
        )
        assert served is not None, "asked of lanes that host a model"
        return served

    def _note_queues(self) -> None:
        """Note the queues of this worker's model; in a thread, with each heartbeat."""
        if self._model is not None:
            self._model.note_queues()

    async def _report_drain(self) -> None:
        """Write the drain's figures to Redis.

        The metrics of a process that has ended are not read."""
        if self._held_at_drain is None or self._hot is None:
            return
        finished = min(self._held_at_drain, self._ended() - self._ended_before)
        drained = Drained(
            self._settings.lane, finished=finished, requeued=self._held_at_drain - finished
        )
        try:
            await asyncio.to_thread(self._hot.note_drain, drained)
        except Exception as error:
            log.warning("this drain is missing from the fleet's figures: %s", error)

    def _ended(self) -> int:
        """Count the items that ended here otherwise than by being released."""
        return self._tally.items.total() - self._tally.items["requeued"]

    @property
    def _running(self) -> ItemHost:
        assert self._host is not None, "start() comes first"
        return self._host

    def _describe(self) -> dict[str, str]:
        hooks = self._code.described() if self._code is not None else {}
        away = next((one for one in self._backlogs if one.away() is not None), None)
        suspects = 0 if self._host is None else self._host.suspects()
        return {
            **hooks,
            **(
                {}
                if away is None
                else {"store_away": away.away() or "", "store_s": f"{away.oldest_s():.0f}"}
            ),
            **({"suspects": str(suspects)} if suspects else {}),
            "lane": self._settings.lane,
            "concurrency": str(self._slots),
            "in_flight": str(self.stats().get("in-flight", 0)),
            **({} if self._model is None else self._model.announcement()),
        } | {
            name: f"{value:.6g}" if isinstance(value, float) else str(value)
            for name, value in self._lane.gauges().items()
        }


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
