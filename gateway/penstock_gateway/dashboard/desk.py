"""Reads what pages show: the ledger's tables, Redis where it answers, and how jobs went over time.

All of it blocks, so routes call it in threads. One desk per app: it keeps the clients, and what is
dear to count, between two looks.

How a job went is counted seldom enough, since that reads every row of it. A small job is counted
while its page waits. A large one is counted by a thread of its own, one at a time, and its page
shows what was counted last until the next count is there; between two counts of a job that runs
twenty times as long passes as one took. How fast a job goes now is what has ended between looks at
it over the last seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote

import redis

from penstock_gateway.backend import Backend
from penstock_ledger import (
    Account,
    BatchFigures,
    Cause,
    CommitOrder,
    Depth,
    DoorBatchStore,
    Feed,
    Job,
    JobPages,
    JobState,
    JobStore,
    LaneMove,
    LaneMoves,
    Meta,
    OutcomeStore,
    PenstockError,
    QuotaSeen,
    RedisLedger,
    Result,
    SpendingStore,
    WorkerSeen,
    quotas_seen,
)
from penstock_ledger.texts import SetOption
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import packs
from penstock_producer.reporting.account import Report, gathered
from penstock_producer.reporting.advice import as_flag
from penstock_producer.reporting.batches import batch_troubles, batches_line
from penstock_producer.reporting.reasons import Wait, interrupted, standing_of, waits
from penstock_producer.reporting.timeline import Timeline, timeline_of

__all__ = ["Desk", "JobSeenNow", "Speeds", "Timelines", "in_state_of"]

T = TypeVar("T")

HotJob = tuple[
    dict[str, int],
    list[WorkerSeen],
    Depth | None,
    list[Cause],
    QuotaSeen | None,
    Account | None,
    list[Wait],
]
_NOTHING: Final[HotJob] = ({}, [], None, [], None, None, [])

STATE_LEDGER: Final = "penstock.db"  # in the folder that --state names
LANES_MAX: Final = 50  # whose queues are read for one page
LATEST: Final = 20  # answers of one job
LATEST_BYTES: Final = 64 * 1024  # of one that is read for the few words of it that are shown


@dataclass(frozen=True, slots=True)
class JobSeenNow:
    """One job at one moment. What needs Redis is empty where it does not answer."""

    job: Job
    report: Report
    timeline: Timeline | None  # None: it is being counted
    latest: Sequence[Result]  # the newest first; bodies that are too long to read are empty
    moves: Sequence[LaneMove]
    shards: Sequence[tuple[Feed, str | None]]
    batches: str | None
    batch_troubles: Sequence[str]
    workers: Sequence[WorkerSeen]
    depth: Depth | None
    causes: Sequence[Cause]
    quota: QuotaSeen | None
    account: Account | None  # of its budgets
    # by its batches at providers: what each may cost, in millionths of a dollar
    held: Mapping[str, int]
    waits: Sequence[Wait]  # why its documents wait
    per_second: float | None  # documents lately; None: not known yet
    tokens_per_second: float | None
    redis_is_away: bool
    is_interrupted: bool  # no process leads it or works for it, though it runs by its state
    one_machine: bool
    in_state: str  # behind commands: see ``Desk.in_state``


class Desk:
    def __init__(self, backend: Backend) -> None:
        self.database = backend.database
        self.jobs = JobStore(backend.database)
        self.outcomes = OutcomeStore(backend.database)
        self._order = CommitOrder(backend.database)
        self.pages = JobPages(backend.database)
        self.batches = DoorBatchStore(backend.database)
        self.spending = SpendingStore(backend.database)
        self.timelines = Timelines(self.outcomes)
        self.speeds = Speeds()
        self.in_state = in_state_of(backend.settings.database_url)
        self._redis = backend.blocking_redis  # safe to share between threads
        self._secret: str | None = None

    def secret(self) -> str:
        """Return the secret that sessions are signed with."""
        if self._secret is None:
            self._secret = Meta(self.database).session_secret()
        return self._secret

    def asked(self, read: Callable[[RedisLedger, redis.Redis], T]) -> T | None:
        """Return what Redis answers; None where it does not answer.

        A page without Redis shows what SQL knows.
        """
        try:
            return read(RedisLedger(self._redis, Meta(self.database).epoch()), self._redis)
        except (redis.RedisError, PenstockError, OSError):
            return None

    def look(self, job: Job) -> JobSeenNow:
        provider, lane = str(job.spec.get("provider", "default")), job.lane

        def hot(ledger: RedisLedger, client: redis.Redis) -> HotJob:
            quota = next((one for one in quotas_seen(client) if one.quota_id == provider), None)
            causes = ledger.failing.of(provider, job.job_id)
            account = ledger.budgets.seen(job.job_id) if job.state is JobState.RUNNING else None
            workers = ledger.workers()
            waiting = (
                list(waits(standing_of(ledger, self.database, job, workers)))
                if job.state is JobState.RUNNING
                else []
            )
            return (
                ledger.stats(job.job_id),
                workers,
                ledger.depth(queue_name(lane)),
                causes,
                quota,
                account,
                waiting,
            )

        found = self.asked(hot)
        stats, workers, depth, causes, quota, account, waiting = found or _NOTHING
        report = gathered(self.database, job, stats=stats)
        finished, tokens = report.finished, report.prompt_tokens + report.completion_tokens
        speed = None if job.state.final else self.speeds.note(job.job_id, finished, tokens)
        sums = BatchFigures(self.database).sums(job.job_id) if packs(lane) else []
        return JobSeenNow(
            job=job,
            report=report,
            timeline=self.timelines.of(job, finished),
            latest=self._order.latest(job.job_id, LATEST, body_bytes=LATEST_BYTES),
            moves=LaneMoves(self.database).of(job.job_id) if job.moves else (),
            shards=self.jobs.shards(job.job_id),
            batches=batches_line(sums, is_cancelled=job.state == "cancelling")
            if packs(lane)
            else None,
            batch_troubles=() if job.state.final else batch_troubles(sums),
            workers=workers,
            depth=depth,
            causes=causes,
            quota=quota,
            account=account,
            held=BatchFigures(self.database).may_cost(job.job_id) if account is not None else {},
            waits=waiting,
            per_second=None if speed is None else speed[0],
            tokens_per_second=None if speed is None else speed[1],
            redis_is_away=found is None,
            is_interrupted=bool(self.interrupted([job])),
            one_machine=self.database.is_sqlite,
            in_state=self.in_state,
        )

    def interrupted(self, jobs: Sequence[Job]) -> set[str]:
        """Return which of these jobs are interrupted."""
        return interrupted(
            self.database, jobs, lambda: self.asked(lambda ledger, _: ledger.workers())
        )

    def fleet(self) -> tuple[list[WorkerSeen], dict[str, Depth], bool]:
        """Return the live workers, and the queues of their lanes and of those that jobs wait in."""

        def hot(ledger: RedisLedger, _: redis.Redis) -> tuple[list[WorkerSeen], dict[str, Depth]]:
            workers = ledger.workers()
            lanes = {
                seen.info["lane"] for seen in workers if seen.info.get("lane")
            } | self._lanes_of_jobs()
            return workers, {
                lane: ledger.depth(queue_name(lane)) for lane in sorted(lanes)[:LANES_MAX]
            }

        found = self.asked(hot)
        return (*found, True) if found is not None else ([], {}, False)

    def quotas(self) -> tuple[list[QuotaSeen], dict[str, list[Cause]], bool]:
        """Return each quota, and why calls of it have failed lately."""

        def hot(
            ledger: RedisLedger, client: redis.Redis
        ) -> tuple[list[QuotaSeen], dict[str, list[Cause]]]:
            seen = quotas_seen(client)
            return seen, {one.quota_id: ledger.failing.of(one.quota_id) for one in seen}

        found = self.asked(hot)
        return (*found, True) if found is not None else ([], {}, False)

    def _lanes_of_jobs(self) -> set[str]:
        live = self.jobs.list(limit=LANES_MAX, states=[JobState.RUNNING, JobState.PAUSED])
        return {job.lane for job in live}


def in_state_of(database_url: str) -> str:
    """Return `` --state DIR`` where the ledger is that of `penstock serve`, else an empty text.

    Commands that are shown end with it.
    """
    kind, _, path = database_url.partition(":///")
    file = Path(unquote(path))
    if not kind.startswith("sqlite") or file.name != STATE_LEDGER:
        return ""
    return f" {as_flag(SetOption('state', str(file.parent)))}"


SPAN_S: Final = 30.0
LEAST_S: Final = 1.5  # between the first and the last look: a shorter span wavers
STALE_S: Final = 120.0  # a look from before says nothing of now
LOOKS_MAX: Final = 64  # of one job: many people may look at once
JOBS_KEPT: Final = 512  # jobs; the one that was looked at longest ago goes first

log = logging.getLogger("penstock.gateway")

KEPT: Final = 256  # jobs, each some kilobytes; the one that was looked at longest ago goes first
AT_ONCE: Final = 20_000  # documents that a page waits for: some hundredths of a second
SHARE: Final = 20.0  # times as long as a count took pass until the next one
PAUSE_S: Final = 2.0  # and at least so long: less than between two looks of a page


class _Look(NamedTuple):
    at: float
    finished: int
    tokens: int


class Speeds:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[str, deque[_Look]] = OrderedDict()  # under the lock
        self._lock = threading.Lock()

    def note(self, job_id: str, finished: int, tokens: int) -> tuple[float, float] | None:
        """Return documents and tokens per second; None where this is the first look for a while."""
        look = _Look(self._clock(), finished, tokens)
        with self._lock:
            looks = self._seen.setdefault(job_id, deque(maxlen=LOOKS_MAX))
            self._seen.move_to_end(job_id)
            if looks and look.at - looks[-1].at > STALE_S:
                looks.clear()
            looks.append(look)
            while len(looks) > 2 and look.at - looks[1].at > SPAN_S:
                looks.popleft()
            while len(self._seen) > JOBS_KEPT:
                self._seen.popitem(last=False)
            first = looks[0]
        seconds = look.at - first.at
        if seconds < LEAST_S:
            return None
        return max(0.0, (finished - first.finished) / seconds), max(
            0.0, (tokens - first.tokens) / seconds
        )


class _Counted(NamedTuple):
    timeline: Timeline
    finished: int
    generation: int
    next_at: float


class Timelines:
    def __init__(self, outcomes: OutcomeStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._outcomes = outcomes
        self._clock = clock
        # written and read under the lock, as the next
        self._counted: OrderedDict[str, _Counted] = OrderedDict()
        self._counting = False
        self._lock = threading.Lock()

    def of(self, job: Job, finished: int) -> Timeline | None:
        """Return the job's timeline; None where it is counted now for the first time."""
        with self._lock:
            known = self._counted.get(job.job_id)
            if known is not None:
                self._counted.move_to_end(job.job_id)
                same = (known.finished, known.generation) == (finished, job.generation)
                if (same and job.state.final) or self._clock() < known.next_at:
                    return known.timeline
            if finished > AT_ONCE:
                if not self._counting:
                    self._counting = True
                    threading.Thread(
                        target=self._count_beside, args=(job, finished), daemon=True
                    ).start()
                return None if known is None else known.timeline
        return self._count(job, finished)

    def _count_beside(self, job: Job, finished: int) -> None:
        try:
            self._count(job, finished)
        except PenstockError as error:
            log.warning("the timeline of job %s was not counted: %s", job.job_id, error)
        finally:
            with self._lock:
                self._counting = False

    def _count(self, job: Job, finished: int) -> Timeline:
        began = self._clock()
        timeline = timeline_of(self._outcomes, job)
        now = self._clock()
        entry = _Counted(
            timeline, finished, job.generation, now + max(PAUSE_S, SHARE * (now - began))
        )
        with self._lock:
            self._counted[job.job_id] = entry
            while len(self._counted) > KEPT:
                self._counted.popitem(last=False)
        return timeline
