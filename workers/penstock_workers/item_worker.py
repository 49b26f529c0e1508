"""A worker's items once it has its stores, its lane, its model, and what they show.

The heartbeat says which model a worker has, and it takes items from the queues of that model. A
server beside the worker may come back with another model, or get adapters while it runs; so the
lane is looked at now and then, and what it serves is taken up anew. Items of a model that is gone
stay in its queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from penstock_ledger import Drained, RedisLedger
from penstock_ledger.redaction import redact
from penstock_producer.feed.queues import HOME, LOADS, SERVES, Served, queue_name
from penstock_workers.background import BackgroundTasks
from penstock_workers.heartbeat import Heartbeat
from penstock_workers.item.lane import Admission, Lane
from penstock_workers.item.run.cost import PricedAdmission, SharedTime
from penstock_workers.item.run.host import ItemHost
from penstock_workers.item.run.models import ModelCheck
from penstock_workers.item.settling.tally import OutcomeTally
from penstock_workers.lanes.machine import engine_in_words
from penstock_workers.lanes.registry import (
    bound_figures,
    engine_figures,
    home_queue,
    lane_row,
    served_by,
)
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import WorkerSettings, process_name

log = logging.getLogger(__name__)


LOOK_S: Final = 1.0  # at what the lane says that it serves
Consume = Callable[[Sequence[str], Sequence[str]], None]
"""Has the worker take messages of the first queues, and no more of the second."""


class ServedModel:
    """The model of one worker whose lane hosts one.

    On the item loop, but for ``note_queues``."""

    def __init__(
        self,
        settings: WorkerSettings,
        loads: Served,
        hot: RedisLedger,
        check: ModelCheck,
        *,
        consume: Consume | None,
        announce: Callable[[], None],
    ) -> None:
        """Begin with what the settings say of the model, which is ``loads``.

        ``announce`` sends a heartbeat at once."""
        self._lane, self._home, self._loads = settings.lane, home_queue(settings), loads
        self._hot, self._check, self._consume, self._announce = hot, check, consume, announce
        self._served: Served | None = None  # once it is up
        # names that the settings do not say; also an earlier worker of this model
        self._has_found = True
        self._tasks = BackgroundTasks()

    async def open(self, served: Callable[[], Served]) -> None:
        """Make known what the lane serves, now that it is up.

        ``served`` returns that, and is asked again as long as the worker runs."""
        self._take_up(served())
        # before the first claim: what is held there must be found
        await asyncio.to_thread(self.note_queues)
        self._tasks.start(self._follow(served), "served model")

    async def close(self) -> None:
        await self._tasks.close()

    def announcement(self) -> dict[str, str]:
        """Return what each heartbeat says.

        A worker whose model loads takes and keeps nothing yet."""
        if self._served is None:
            return {LOADS: self._loads.to_text(), "concurrency": "0"}
        return {SERVES: self._served.to_text(), HOME: self._home}

    def note_queues(self) -> None:
        """Note the queues of this model in Redis.

        The control loop looks after those that are noted. This runs in a thread, now and with each
        heartbeat.
        """
        if self._served is not None:
            lane, queues = queue_name(self._lane), self._served.queues(self._lane)
            self._hot.queues.note(lane, queues, by_worker=True)
            found = set(queues).difference(self._loads.queues(self._lane))
            if found or self._has_found:
                self._hot.queues.note_found(lane, self._home, found)
            self._has_found = bool(found)

    async def _follow(self, served: Callable[[], Served]) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            found = served()
            if found != self._served:
                log.warning("this worker serves %s from now on", ", ".join(found.every_name))
                self._take_up(found)
                self._announce()

    def _take_up(self, served: Served) -> None:
        before = () if self._served is None else self._served.queues(self._lane)
        now = served.queues(self._lane)
        self._served = served
        self._check.open(served)
        if self._consume is not None:
            self._consume(now, [queue for queue in before if queue not in now])


class Closed(Protocol):
    """A part of the items, which is closed with them."""

    async def close(self) -> None: ...


class LaneHere:
    """The lane of this worker, as its row says."""

    def __init__(self, settings: WorkerSettings, lane: Lane | None = None) -> None:
        self._settings = settings
        self.row = lane_row(settings.lane)
        self.lane: Lane = lane or self.row.make(settings)
        # items that run at once; an engine that is up may say more
        self.slots = settings.concurrency
        self._computing = SharedTime()

    @property
    def name(self) -> str:
        return self._settings.lane

    async def start(self) -> None:
        await self.lane.start()
        found = None if self.row.slots is None else self.row.slots(self._settings, self.lane)
        self.slots = self._settings.concurrency if found is None else found

    def admission(self) -> Admission:
        """Make the lane's admission, which charges by time where the lane hosts a model.

        Where its price is not known, answers are counted as such."""
        admission = self.row.admission(self._settings, self.lane)
        if self.row.serves is None:
            return admission
        return PricedAdmission(admission, self._settings.cost, self._computing)

    def engine(self) -> str:
        """Return what computes the answers, in words."""
        server = None if self.row.engine_url is None else self.row.engine_url(self._settings)
        return engine_in_words(self.row.engine, None if server is None else redact(server))

    def served(self) -> Served:
        """Return what the lane serves, now that it is up."""
        served = (
            self.row.announces(self.lane)
            if self.row.announces is not None
            else served_by(self._settings)
        )
        assert served is not None, "asked of lanes that host a model"
        return served

    def figures(self, engine_usd: float) -> Iterator[Sample]:
        yield from engine_figures(self.name, self.lane.gauges())
        if self.row.serves is not None:
            yield catalogue.ENGINE_BUSY(self._computing.busy_s, self.name)
            yield catalogue.ENGINE_COST(engine_usd, self.name)


class DrainFigures:
    """The items that a drain finished, and those that went back to their queues."""

    def __init__(self, lane: str, hot: RedisLedger, tally: OutcomeTally) -> None:
        self._lane, self._hot, self._tally = lane, hot, tally
        self._held: int | None = None  # when the drain began; None before it
        self._ended_before = 0

    def begin(self, held: int) -> None:
        self._held, self._ended_before = held, self._ended()

    async def report(self) -> None:
        """Write them to Redis, since the metrics of a process that has ended are not read."""
        if self._held is None:
            return
        finished = min(self._held, self._ended() - self._ended_before)
        drained = Drained(self._lane, finished=finished, requeued=self._held - finished)
        try:
            await asyncio.to_thread(self._hot.note_drain, drained)
        except Exception as error:
            log.warning("this drain is missing from the fleet's figures: %s", error)

    def _ended(self) -> int:
        """Count the items that ended here otherwise than by being released."""
        return self._tally.items.total() - self._tally.items["requeued"]


class ItemWorker:
    """A worker that has its stores: its items, and what it says of itself."""

    def __init__(
        self, lane: LaneHere, host: ItemHost, drain: DrainFigures, hot: RedisLedger
    ) -> None:
        self._lane, self.host, self.drained = lane, host, drain
        self.model: ServedModel | None = None  # in lanes that host one
        # of what waits for a store
        self.backlogs = (host.settler.backlog, host.runner.starts.backlog)
        self.heartbeat = Heartbeat(hot, process_name(), self._describe, self._note_queues)

    def begin(self) -> None:
        runner = self.host.runner
        for part in (runner.starts, runner.reuse, runner.passes, self.host.settler, runner.causes):
            part.start()
        self.heartbeat.beat()

    async def stop(self) -> None:
        await self.drained.report()
        await self.heartbeat.stop()
        await self.host.stop()

    def closed_last_to_first(self) -> Sequence[Closed]:
        """Return the parts of the items; each is closed before those that stand ahead of it."""
        runner = self.host.runner
        return (
            self._lane.lane,
            runner.causes,
            runner.admission,
            runner.code,
            runner.starts,
            runner.reuse,
            runner.priming,
            runner.passes,
            self.host.settler,
        )

    def stats(self) -> Mapping[str, int | float | str]:
        return {**self.host.stats(), **self.host.settler.stats()}

    def figures(self, engine_usd: float) -> Iterator[Sample]:
        lane = self._lane.name
        yield from self.host.figures(lane)
        yield catalogue.UNSETTLED_OLDEST(max(backlog.oldest_s() for backlog in self.backlogs), lane)
        yield from self._lane.figures(engine_usd)
        bound = self._lane.lane.gauges().get("bound") or self.host.bound()
        yield from bound_figures(lane, str(bound))

    def _note_queues(self) -> None:
        """Note the queues of this worker's model; in a thread, with each heartbeat."""
        if self.model is not None:
            self.model.note_queues()

    def _describe(self) -> dict[str, str]:
        """Say what each heartbeat says of this worker."""
        away = next((one for one in self.backlogs if one.away() is not None), None)
        suspects = self.host.suspects()
        return {
            **self.host.runner.code.described(),
            **(
                {}
                if away is None
                else {"store_away": away.away() or "", "store_s": f"{away.oldest_s():.0f}"}
            ),
            **({"suspects": str(suspects)} if suspects else {}),
            "lane": self._lane.name,
            "concurrency": str(self._lane.slots),
            "in_flight": str(self.stats()["in-flight"]),
            **({} if self.model is None else self.model.announcement()),
        } | {
            name: f"{value:.6g}" if isinstance(value, float) else str(value)
            for name, value in self._lane.lane.gauges().items()
        }
