"""What pages read: the ledger's tables, and Redis where it answers.

All of it blocks, so routes call it in threads.

One desk per app: it keeps the clients, and what is dear to count, between two looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote

import redis

from penstock_gateway.backend import Backend
from penstock_gateway.dashboard.timelines import Speeds, Timelines
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
from penstock_producer.reporting.timeline import Timeline

__all__ = ["Desk", "JobSeenNow", "in_state_of"]

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
