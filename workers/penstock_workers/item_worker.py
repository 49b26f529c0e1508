"""A worker's items once it has its stores, the lane that they go through, and what both show."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from penstock_ledger import Drained, RedisLedger
from penstock_ledger.redaction import redact
from penstock_producer.feed.queues import Served
from penstock_workers.heartbeat import Heartbeat
from penstock_workers.item.lane import Admission, Lane
from penstock_workers.item.run.cost import PricedAdmission, SharedTime
from penstock_workers.item.run.host import ItemHost
from penstock_workers.item.settling.records import engine_in_words
from penstock_workers.item.settling.tally import OutcomeTally
from penstock_workers.lanes.registry import bound_figures, engine_figures, lane_row, served_by
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample
from penstock_workers.served_model import ServedModel
from penstock_workers.settings import WorkerSettings, process_name

log = logging.getLogger(__name__)


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
    """How many items a drain finished, and how many went back to their queues."""

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
        for part in (runner.starts, runner.reuse, self.host.settler, runner.causes):
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
