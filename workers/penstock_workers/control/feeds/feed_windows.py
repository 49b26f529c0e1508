"""Each job has a share of what may wait in the queue, within the memory that Redis has."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from penstock_ledger import FED_UP_TO, RedisLedger, WorkerSeen, keys
from penstock_ledger.model import Job, JobState
from penstock_producer.feed.queues import SERVES, Served, queue_name
from penstock_producer.job.lanes import LANES, has_own_model
from penstock_ratelimit import Flow, Priority
from penstock_workers.control.feeds.shares import TURNS, Share, Turns, parts_of_window, shares
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.heartbeat import ALIVE_S
from penstock_workers.item.run.reading import flow_of

log = logging.getLogger(__name__)

# of work at the fleet's pace: outlasts a leader that died, and a new job waits no longer behind it
WINDOW_S = 20.0
# where jobs share: a queue is first in, first out, so they take turns of at most so long
SHARED_WINDOW_S = 5.0
# at least: more than workers hold, so that slow answers, or none yet, leave no slot empty
WINDOW_PER_SLOT = 3
WINDOW_MIN = 100  # keeps a small or a starting fleet busy until its pace is known
WINDOW_PER_SLOT_MAX = 20  # at most: seconds of work for the quickest answers, not hours
WINDOW_SMALL_FLEET_MAX = 2_000  # in place of that for a fleet of few slots
WINDOW_MAX = 50_000  # about 50 MB of messages; more would only slow down cancel and fairness
# times what was finished since the last tick, fed at once while others feed too: the documents of
# all mix
STEP = 2.0
STEP_MIN = 20  # documents worth a step
# A job in prefix order is fed half a window at a time: sorted a few documents at a time they would
# be in no order at all. The other half is more than the slots hold, so that none is empty
# meanwhile.
ORDERED_STEP = 0.5
# of the slots: the others always hold work that is not urgent, so none of it starves
URGENT_SHARE = 0.75
LOOK_EVERY_S = 2.0  # fleet size and memory change slowly
SLOTS_DIGITS = 7  # fewer than ten million slots in one worker
# what is left of an old figure at each look: answers that come in bursts count on for some seconds
FADE = 0.8
# a job with nothing outstanding for so long leaves its share to the others: an open job may be idle
ACTIVE_S = 2.0


class Throughput:
    """The latest rate of a lane, or what is left of an earlier and higher one.

    Feeding by a momentary rate would leave workers idle."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._seen: dict[str, int] = {}
        self._at = 0.0

    def note(self, finished: Mapping[str, int], now: float) -> None:
        """Note how many documents each job has ``finished`` at ``now`` (seconds).

        A job counts from its second look on."""
        done = sum(
            max(0, count - self._seen[job]) for job, count in finished.items() if job in self._seen
        )
        if now > self._at:
            self.per_s = max(done / (now - self._at), FADE * self.per_s)
        self._seen, self._at = dict(finished), now


class QueueSizes:
    """The room of each queue: by its workers' slots and pace, and by Redis's memory."""

    def __init__(self, hot: RedisLedger, fixed_window: int | None) -> None:
        self._hot, self._fixed = hot, fixed_window
        self._slots: Counter[str] = Counter()  # by queue
        self._pace: defaultdict[str, Throughput] = defaultdict(Throughput)  # by queue
        self.is_full = False  # Redis
        self._look_at = 0.0

    def look(self, now: float, queues: Mapping[str, str]) -> None:
        """Look at the fleet now and then; ``queues`` are those of the live jobs."""
        is_due = now >= self._look_at
        if is_due or not self._slots:
            self._look_at_workers()
        if is_due:
            self._look_at = now + LOOK_EVERY_S
            self._look_at_memory()
            self._look_at_pace(now, queues)

    def per_s(self, queue: str) -> float:
        return self._pace[queue].per_s

    def slots(self, queue: str) -> int:
        """Return how many documents its workers hold at once."""
        return self._slots[queue]

    def front(self, queue: str) -> int:
        """Return how many urgent documents may be in the queue at once.

        One, while no worker is known."""
        return max(1, int(URGENT_SHARE * self._slots[queue]))

    def step(self, queue: str, tick_s: float) -> int:
        """Return how many documents all jobs of a queue together may add now.

        One per slot of its workers, or as many as were finished in a few ticks if that is more."""
        return max(self._slots[queue], int(STEP * tick_s * self._pace[queue].per_s))

    def window(self, queue: str, seconds: float) -> int:
        if self._fixed is not None:
            return self._fixed
        slots = self._slots[queue]
        least = max(WINDOW_MIN, WINDOW_PER_SLOT * slots)
        most = max(WINDOW_SMALL_FLEET_MAX, WINDOW_PER_SLOT_MAX * slots)
        return min(WINDOW_MAX, max(least, min(most, int(seconds * self._pace[queue].per_s))))

    def _look_at_memory(self) -> None:
        memory = self._hot.memory()
        full = memory.is_tight
        if full and not self.is_full:
            log.warning(
                "feeding pauses: Redis uses %d of %d bytes, above %.0f %%; it goes on by itself "
                "when memory is free",
                memory.used,
                memory.maxmemory,
                FED_UP_TO * 100,
            )
        self.is_full = full

    def _look_at_workers(self) -> None:
        self._slots = Counter()
        for seen in self._hot.workers():
            if seen.seconds_ago < ALIVE_S:
                for queue in _queues(seen):
                    self._slots[queue] += _number(seen.info.get("concurrency"))

    def _look_at_pace(self, now: float, queues: Mapping[str, str]) -> None:
        finished: dict[str, dict[str, int]] = defaultdict(dict)
        for (job_id, queue), number in zip(
            queues.items(), self._hot.finished_of(queues), strict=True
        ):
            finished[queue][job_id] = number
        for queue, by_job in finished.items():
            self._pace[queue].note(by_job, now)
        # a queue has the name of a model: jobs may have named any
        for queue in self._pace.keys() - finished.keys() - self._slots.keys():
            del self._pace[queue]


class JobQueues:
    """The queue and the flow of each live job. The queue changes with the job's lane alone."""

    def __init__(self, specs: Specs) -> None:
        self._specs = specs
        self._known: dict[str, tuple[str, Flow]] = {}
        self._lanes: dict[str, str] = {}  # of these, as they were then

    def note(self, live: Collection[Job]) -> None:
        self._known = {
            job.job_id: self._known[job.job_id]
            if self._lanes.get(job.job_id) == job.lane
            else self._queue_and_flow(job)
            for job in live
        }
        self._lanes = {job.job_id: job.lane for job in live}

    def of(self, job: Job) -> tuple[str, Flow]:
        return self._known[job.job_id]

    def queues(self) -> dict[str, str]:
        return {job_id: queue for job_id, (queue, _) in self._known.items()}

    def _queue_and_flow(self, job: Job) -> tuple[str, Flow]:
        spec = self._specs.of(job)
        return queue_name(job.lane, spec.model), flow_of(job.job_id, spec)


class FeedWindows:
    """Computes how many more documents of a job may be published now.

    Each queue has slots of its own, a lane's or a model's."""

    def __init__(
        self,
        hot: RedisLedger,
        fixed_window: int | None,
        specs: Specs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._sizes, self._queues = QueueSizes(hot, fixed_window), JobQueues(specs)
        self._now, self._tick_s = clock(), 0.0  # the latest tick, and how long after the one before
        # running job -> when it last had something outstanding, or was new
        self._active: dict[str, float] = {}
        self._outstanding: Mapping[str, Sequence[int]] = {}  # by job and generation
        self._shares: dict[str, dict[str, Share]] = {}  # of this round, by queue and job
        # queue -> flows of its active jobs, by job
        self._rivals: defaultdict[str, dict[str, Flow]] = defaultdict(dict)
        # by queue, for jobs of small shares
        self._turns: defaultdict[str, Turns] = defaultdict(Turns)

    def update(
        self,
        live: Collection[Job],
        outstanding: Mapping[str, Sequence[int]],
        led: Collection[str] | None = None,
    ) -> None:
        """Note which jobs share the queues now, in every round before ``for_feed``.

        ``outstanding``: documents by generation.

        ``led``: the jobs that this process feeds, by default all. Other processes feed theirs into
        parts of their own.
        """
        now = self._clock()
        self._now, self._tick_s = now, now - self._now
        self._queues.note(live)
        self._sizes.look(now, self._queues.queues())
        self._outstanding = outstanding
        running = [job for job in live if job.state is JobState.RUNNING]
        self._note_active(running, now)
        self._rivals, self._shares = defaultdict(dict), {}
        for job in running:
            queue, flow = self._queues.of(job)
            if now - self._active[job.job_id] < ACTIVE_S:
                self._rivals[queue][job.job_id] = flow
        named = set(self._queues.queues().values())
        for queue in self._turns.keys() - named:
            del self._turns[queue]
        for queue in {*self._rivals, *self._turns}:
            self._begin_turns(queue, led)

    def _note_active(self, running: Collection[Job], now: float) -> None:
        """Note which jobs share the queues now.

        These are the jobs with documents in the queue or with a worker, and, for a while, those
        that this process has not seen before.
        """
        self._active = {job.job_id: self._active.get(job.job_id, now) for job in running}
        for job in running:
            if any(self._outstanding[job.job_id]):
                self._active[job.job_id] = now

    def for_feed(self, job: Job, generation: int, *, ordered: bool = False) -> Share:
        """Return how many documents one feed of a job may add now, and where.

        ``update`` must have seen the job. ``ordered`` feeds wait until there is room for a step
        that is worth putting into order.
        """
        if self._sizes.is_full:
            return Share(0, False)
        queue, flow = self._queues.of(job)
        if self._takes_turns(queue, flow):
            return Share(self._room_in_turn(queue, job.job_id), False)
        rivals = self._rivals[queue] | {job.job_id: flow}
        window = self._sizes.window(queue, SHARED_WINDOW_S if len(rivals) > 1 else WINDOW_S)
        share = self._shares_of(queue, rivals, window)[job.job_id]
        room = max(0, share.documents - self.outstanding(job, generation))
        if (
            len(rivals) == 1
            and ordered
            and not share.urgent
            and room < ORDERED_STEP * share.documents
        ):
            return Share(0, False)
        if len(rivals) > 1 and not share.urgent:
            room = min(
                room,
                max(STEP_MIN, self._sizes.step(queue, self._tick_s) * share.documents // window),
            )
        return Share(room, share.urgent)

    def outstanding(self, job: Job, generation: int) -> int:
        """Documents that were fed and are not finished, when the round began."""
        return self._outstanding[job.job_id][generation - 1]

    def unpaid(self, job: Job) -> int:
        """Return how many documents at once cost nothing: those that fill the engines of its queue.

        An engine costs the same while it has less to do. 0 where calls are paid for."""
        return self._sizes.slots(self._queues.of(job)[0]) if has_own_model(job.lane) else 0

    def place(self, job: Job) -> float:
        """Return a job's place in this round: the lower it is, the sooner the job is fed.

        ``update`` must have seen the job."""
        return self._turns[self._queues.of(job)[0]].place(job.job_id)

    def note_fed(self, job: Job, documents: int) -> None:
        """Note how many documents a feed added after ``for_feed``."""
        self._turns[self._queues.of(job)[0]].note(job.job_id, documents)

    def _takes_turns(self, queue: str, flow: Flow) -> bool:
        """Return whether a job takes turns with the others of its queue.

        It does if it shares the queue with many, or if it comes back to many after it had nothing
        to feed for a while.
        """
        turns = self._turns[queue]
        comes_back = flow.job not in self._rivals[queue] and flow.priority != Priority.URGENT
        return turns.applies_to(flow.job) or (bool(turns) and comes_back)

    def _room_in_turn(self, queue: str, job_id: str) -> int:
        room = self._turns[queue].room()
        if not room:
            self._active[job_id] = self._now  # it waits for its turn, and is not idle
        return room

    def _begin_turns(self, queue: str, led: Collection[str] | None) -> None:
        """Choose the jobs that take turns in this round.

        They are those whose share of the window is less than a step of many documents; the others
        keep to their shares.
        """
        rivals, small = self._rivals[queue], dict[str, float]()
        if len(rivals) > TURNS:
            of_window = parts_of_window(list(rivals.values()), self._sizes.front(queue))
            here = of_window.keys() if led is None else of_window.keys() & set(led)
            small = {job: of_window[job] for job in here if of_window[job] < 1 / TURNS}
        outstanding = (
            {job: sum(generations) for job, generations in self._outstanding.items()}
            if small
            else {}
        )
        window, per_s = self._sizes.window(queue, SHARED_WINDOW_S), self._sizes.per_s(queue)
        self._turns[queue].begin(small, outstanding, window, per_s, self._now)

    def _shares_of(
        self, queue: str, rivals: Mapping[str, Flow], window: int
    ) -> Mapping[str, Share]:
        """Return the shares of the active jobs of a queue.

        They are computed once per round and queue, and again when another job joins."""
        known = self._shares.get(queue, {})
        if known.keys() != rivals.keys():
            known = self._shares[queue] = shares(
                list(rivals.values()), self._sizes.front(queue), window
            )
        return known

    def windows(self) -> dict[str, int]:
        """Return by lane how many documents may be outstanding at once."""
        return {lane: sum(map(self._window_now, self._queues_of(lane))) for lane in LANES}

    def _queues_of(self, lane: str) -> set[str]:
        """Return the queues that jobs of the lane share now; its own where there is no job."""
        own = queue_name(lane)
        return {
            queue for queue in self._rivals if keys.lane_queue(queue) == own and self._rivals[queue]
        } or {own}

    def _window_now(self, queue: str) -> int:
        is_shared = len(self._rivals.get(queue, ())) > 1
        return self._sizes.window(queue, SHARED_WINDOW_S if is_shared else WINDOW_S)


def _queues(seen: WorkerSeen) -> set[str]:
    """Return the queues that a worker takes items from, by its heartbeat."""
    lane = seen.info.get("lane", "")
    served = Served.read(seen.info.get(SERVES))
    return {queue_name(lane), *(served.queues(lane) if served is not None else ())}


def _number(text: str | None) -> int:
    """Read a number of slots; what is none counts as 0.

    Anyone who reaches Redis may write heartbeats."""
    return int(text) if text is not None and text.isdecimal() and len(text) < SLOTS_DIGITS else 0
