"""How much may be in the queue: a share per job, and never more of Redis than leaves room for everything else."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection

from penstock_ledger import RedisLedger
from penstock_ledger.model import Job, JobState
from penstock_producer.spec import JobSpec
from penstock_ratelimit.fairness import Flow
from penstock_workers.control.shares import Share, shares
from penstock_workers.flows import flow_of
from penstock_workers.heartbeat import INTERVAL_S

log = logging.getLogger(__name__)

WINDOW_PER_SLOT = 20  # items in the queue per item the fleet can have in flight: seconds of work, not hours
WINDOW_MIN = 2_000  # keeps a small or a starting fleet busy
WINDOW_MAX = 50_000  # about 50 MB of messages; more would only slow down cancel and fairness
URGENT_SHARE = 0.75  # of the slots: the others always hold work that is not urgent, so nobody starves
MEMORY_SHARE = 0.75  # of Redis's maxmemory; above it feeding pauses, so that acks and leases always fit
LOOK_EVERY_S = 2.0  # fleet size and memory change slowly
LIVES_S = 3 * INTERVAL_S  # a worker silent for longer may be dead: its slots claim nothing
ACTIVE_S = 2.0  # a job with nothing outstanding for so long leaves its share to the others: an open job may be idle


class Room:
    """Answers how many more documents of a job may be published now. Each lane has a queue and slots of its own."""

    def __init__(self, hot: RedisLedger, fixed_window: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._hot = hot
        self._fixed = fixed_window
        self._clock = clock
        self._slots: Counter[str] = Counter()  # by lane
        self._full = False
        self._look_at = 0.0
        self._active: dict[str, float] = {}  # running job -> when it last had something outstanding, or was new
        self._known: dict[str, tuple[str, Flow]] = {}  # lane and flow of each live job: neither ever changes
        self._rivals: defaultdict[str, dict[str, Flow]] = defaultdict(dict)  # lane -> flows of its active jobs, by job

    def look_around(self, live: Collection[Job]) -> None:
        """See who shares the queues now. Call it at every tick, before ``for_feed``."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._look_at_redis()
        self._known = {job.job_id: self._known.get(job.job_id) or _lane_and_flow(job) for job in live}
        running = [job for job in live if job.state is JobState.RUNNING]
        self._note_active(running, now)
        self._rivals = defaultdict(dict)
        for job in running:
            lane, flow = self._known[job.job_id]
            if now - self._active[job.job_id] < ACTIVE_S:
                self._rivals[lane][job.job_id] = flow

    def _note_active(self, running: Collection[Job], now: float) -> None:
        """Those with documents in the queue or with a worker, and, for a while, those that are new here."""
        self._active = {job.job_id: self._active.get(job.job_id, now) for job in running}
        feeds = [(job.job_id, generation) for job in running for generation in range(1, job.generation + 1)]
        for (job_id, _), outstanding in zip(feeds, self._hot.outstanding_of(feeds), strict=True):
            if outstanding:
                self._active[job_id] = now

    def for_feed(self, job: Job, generation: int) -> Share:
        """Documents that one feed of a job may add now, and where. ``look_around`` has seen the job."""
        if self._full:
            return Share(0, False)
        lane, flow = self._known[job.job_id]
        rivals = self._rivals[lane] | {job.job_id: flow}
        share = shares(list(rivals.values()), self._front(lane), self._window(lane))[job.job_id]
        return share._replace(documents=max(0, share.documents - self._hot.outstanding(job.job_id, generation)))

    def _front(self, lane: str) -> int:
        """Urgent documents at once. Of a fleet that nobody has heard of, one."""
        return max(1, int(URGENT_SHARE * self._slots[lane]))

    def _window(self, lane: str) -> int:
        return self._fixed or min(WINDOW_MAX, max(WINDOW_MIN, WINDOW_PER_SLOT * self._slots[lane]))

    def _look_at_redis(self) -> None:
        memory = self._hot.memory()
        full = bool(memory.maxmemory) and memory.used > MEMORY_SHARE * memory.maxmemory
        if full and not self._full:
            log.warning(
                "feeding pauses: Redis uses %d of %d bytes, above %.0f %%; it goes on by itself when memory is free",
                memory.used, memory.maxmemory, MEMORY_SHARE * 100,
            )  # fmt: skip
        self._full = full
        self._slots = Counter()
        for seen in self._hot.workers():
            if seen.seconds_ago < LIVES_S:
                self._slots[seen.info.get("lane", "")] += int(seen.info.get("concurrency", 0))


def _lane_and_flow(job: Job) -> tuple[str, Flow]:
    spec = JobSpec.from_json(job.spec)
    return spec.lane, flow_of(job.job_id, spec)
