"""Reads the figures of the whole fleet every few seconds, and counts what one loop has done.

So they are ready when Prometheus asks. Reading them costs Redis some dozens of small commands, and
SQL one. They are shown for half a minute: after an outage older ones would look current.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import redis

from penstock_ledger import Depth, FiringOutcome, RedisLedger, ScheduleStore, WorkerSeen
from penstock_ledger.model import Job
from penstock_producer.feed.queues import queue_name, serving_of, unserved_queues
from penstock_producer.feed.wire import FED_HEADER
from penstock_producer.job.lanes import LANES, has_own_model
from penstock_producer.schedules.timetable import ON_TIME_S
from penstock_ratelimit.for_penstock import Breaker, QuotaView, read_quotas
from penstock_workers.heartbeat import ALIVE_S
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample

log = logging.getLogger(__name__)

REFRESH_S = 5.0
STALE_S = 30.0  # what was read longer ago is not shown
# once nothing has been under way for as long, so that the end of work is seen as soon as the rest
AT_REST_S = 15.0
STATES = ("running", "paused", "cancelling")

_FED = re.compile(rb'"%b":\s*(\d+)' % re.escape(FED_HEADER.encode()))


class FleetFigures:
    """The fleet's figures. The control thread refreshes them, any thread reads them."""

    def __init__(
        self,
        hot: RedisLedger,
        quotas: redis.Redis,
        schedules: ScheduleStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hot = hot
        self._schedules = schedules
        self._quotas = quotas
        self._clock = clock
        self._read: Sequence[Sample] = ()
        self._read_at = self._asked_at = self._busy_at = 0.0
        self._views: dict[str, QuotaView] = {}

    def refresh(self, live: Collection[Job], *, is_quiet: bool = False) -> None:
        """Read the figures again unless they are recent.

        Raises Redis's and the database's errors."""
        now = self._clock()
        if not is_quiet:
            self._busy_at = now
        is_resting = now > self._busy_at + STALE_S
        if now < self._asked_at + (AT_REST_S if is_resting else REFRESH_S):
            return
        self._asked_at = now
        self._read = [*self._lanes(live, now), *self._whole(live), *self._quota_figures()]
        self._read_at = now

    def figures(self) -> Iterator[Sample]:
        if self._clock() - self._read_at <= STALE_S:
            yield catalogue.LOOKED(self._read_at)
            yield from self._read

    def _lanes(self, live: Collection[Job], now: float) -> Iterator[Sample]:
        parked, outstanding = self._by_lane(live)
        seen = self._hot.workers()
        workers = Counter(one.info.get("lane", "") for one in seen if one.seconds_ago < ALIVE_S)
        for lane in LANES:
            depths, drains = self._hot.depths(queue_name(lane)), self._hot.drains(lane)
            depth = Depth(*map(sum, zip(*depths.values(), strict=True)))
            yield catalogue.QUEUED(depth.queued, lane)
            yield catalogue.UNACKED(depth.unacked, lane)
            yield catalogue.RELAYED(depth.relayed, lane)
            yield catalogue.DELAYED(depth.delayed, lane)
            yield catalogue.PARKED(parked[lane], lane)
            yield catalogue.OUTSTANDING(outstanding[lane], lane)
            yield catalogue.OLDEST(max(_age(self._hot.front(queue), now) for queue in depths), lane)
            yield catalogue.WORKERS(workers[lane], lane)
            yield catalogue.DRAINED(drains.items_finished, lane, "finished")
            yield catalogue.DRAINED(drains.items_requeued, lane, "requeued")
            yield catalogue.DRAINS(drains.finished, lane, "finished")
            yield catalogue.DRAINS(drains.requeued, lane, "requeued")
            if has_own_model(lane):
                yield from _models(lane, depths, seen)

    def _by_lane(self, live: Collection[Job]) -> tuple[Counter[str], Counter[str]]:
        """Count by lane the messages that are parked, and the documents outstanding."""
        parked, outstanding = Counter[str](), Counter[str]()
        for job, length in zip(live, self._hot.parked([job.job_id for job in live]), strict=True):
            parked[_lane(job)] += length
        feeds = [(job, generation) for job in live for generation in range(1, job.generation + 1)]
        lengths = self._hot.outstanding_of([(job.job_id, generation) for job, generation in feeds])
        for (job, _), length in zip(feeds, lengths, strict=True):
            outstanding[_lane(job)] += length
        return parked, outstanding

    def _whole(self, live: Collection[Job]) -> Iterator[Sample]:
        states = Counter(str(job.state) for job in live)
        for state in STATES:
            yield catalogue.JOBS(states[state], state)
        for of_schedules, number in self._schedules.states(ON_TIME_S).items():
            yield catalogue.SCHEDULES(number, str(of_schedules))
        memory = self._hot.memory()
        yield catalogue.REDIS_USED(memory.used)
        yield catalogue.REDIS_LIMIT(memory.maxmemory)
        yield catalogue.UNREADABLE(self._hot.parked_unknown())

    def _quota_figures(self) -> Iterator[Sample]:
        views = {view.quota_id: view for view in read_quotas(self._quotas)}
        for name, view in views.items():
            before, self._views[name] = self._views.get(name), view
            yield from _of_quota(view, before)


def _of_quota(view: QuotaView, before: QuotaView | None) -> Iterator[Sample]:
    name = view.quota_id
    yield catalogue.QUOTA_WAITING(view.waiting, name)
    yield catalogue.QUOTA_IN_FLIGHT(view.in_flight, name)
    yield catalogue.QUOTA_GRANTED(view.granted, name)
    yield catalogue.QUOTA_THROTTLED(view.throttled, name)
    yield catalogue.QUOTA_FAILURES(view.failures, name)
    yield catalogue.QUOTA_OPEN(view.breaker is not Breaker.CLOSED, name)
    yield catalogue.QUOTA_HELD(bool(view.hold), name)
    if view.yields is not None:
        yield catalogue.QUOTA_CEILING(int(view.yields.ceiling), name)
        yield catalogue.QUOTA_TARGET(view.yields.target_s, name)
        if view.yields.ttft_s is not None:
            yield catalogue.QUOTA_TTFT(view.yields.ttft_s, name)
    traffic = view.since(before) if before is not None else None
    for dimension in view.dimensions:
        yield catalogue.QUOTA_LIMIT(dimension.limit, name, dimension.name)
        if traffic is not None and dimension.limit > 0:
            yield catalogue.QUOTA_USE(
                traffic.units[dimension.name] / dimension.limit, name, dimension.name
            )


def _models(
    lane: str, depths: Mapping[str, Depth], seen: Collection[WorkerSeen]
) -> Iterator[Sample]:
    """Yield by the queues of the lane what waits, and who serves it."""
    serving = serving_of(seen, lane)
    served = Counter(queue for worker in serving.workers for queue in worker.queues(lane))
    waiting = {queue: depth.queued + depth.delayed for queue, depth in depths.items()}
    for queue, depth in depths.items():
        if queue == queue_name(lane):
            continue
        yield catalogue.MODEL_QUEUED(depth.queued, lane, queue)
        yield catalogue.MODEL_UNACKED(depth.unacked, lane, queue)
        yield catalogue.MODEL_WORKERS(served[queue], lane, queue)
    yield catalogue.UNSERVED(
        sum(waiting[queue] for queue in unserved_queues(serving, waiting)), lane
    )


def _age(front: bytes | None, now: float) -> float:
    """Return how long ago a message was fed, in seconds.

    A message that does not say so, such as another producer's, counts as new."""
    fed = _FED.search(front) if front is not None else None
    return max(0.0, now - int(fed[1])) if fed else 0.0


def _lane(job: Job) -> str:
    return job.lane


_BY_LANE: Final = {
    "fed": catalogue.FED,
    "reconciles": catalogue.RECONCILES,
    "republished": catalogue.REPUBLISHED,
    "promoted": catalogue.PROMOTED,
}


class Counters:
    """Written by the control thread, read by any."""

    def __init__(self) -> None:
        self._by_lane = {name: Counter[str](dict.fromkeys(LANES, 0)) for name in _BY_LANE}
        self.windows: Mapping[str, int] = {}  # documents that may be outstanding, by lane
        self.ticks: Counter[str] = Counter(ok=0, failed=0)
        self.firings = Counter[FiringOutcome](dict.fromkeys(FiringOutcome, 0))
        self.compared = Counter[str](moved=0, same=0, skipped=0)
        self.tick_s = 0.0
        self.rebuilds = 0
        self.leads = 0

    def add(self, name: str, lane: str, number: int) -> None:
        self._by_lane[name][lane] += number

    def figures(self) -> Iterator[Sample]:
        for name, counts in self._by_lane.items():
            for lane, number in counts.items():
                yield _BY_LANE[name](number, lane)
        for lane, window in self.windows.items():
            yield catalogue.WINDOW(window, lane)
        for result, number in self.ticks.items():
            yield catalogue.TICKS(number, result)
        for outcome, number in self.firings.items():
            yield catalogue.FIRINGS(number, str(outcome))
        for result, number in self.compared.items():
            yield catalogue.COMPARED(number, result)
        yield catalogue.TICK_SECONDS(self.tick_s)
        yield catalogue.REBUILDS(self.rebuilds)
        yield catalogue.LEADS(self.leads)
