"""Reads what is known of a job and of each lane that it permits.

It comes from the ledger, Redis and the settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import redis

from penstock_ledger import (
    BatchesOpen,
    BatchFigures,
    Database,
    LaneMove,
    OutcomeStore,
    RedisLedger,
    WorkerSeen,
)
from penstock_ledger.model import Counts, Job, JobState
from penstock_producer.job.lanes import AUTO, LANES, has_own_model, packs
from penstock_producer.job.spec import JobSpec
from penstock_ratelimit.for_penstock import QuotaView, read_quotas
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.lanes import speeds, troubles
from penstock_workers.control.lanes.seen import TIER_BEFORE, JobNow, LaneNow, Trouble, name_of
from penstock_workers.control.lanes.speeds import (
    Measured,
    Speed,
    Tokens,
    model_of,
    tokens_each,
    usd_each,
    with_flex,
)
from penstock_workers.heartbeat import ALIVE_S, KNOWS_MOVES
from penstock_workers.lane_changes import LaneChangeSettings
from penstock_workers.settings import ProviderSettings, WorkerSettings

__all__ = ["LaneFacts"]

HISTORY_S: Final = 60.0
"""The history of a provider's batches is read again after so long."""
YOUNG_S: Final = 10.0
"""Workers that start together with this process are heard of by then."""
LATE: Final = ("deadline", "stuck")


class _Circumstances(NamedTuple):
    """The facts of one job, read at one look."""

    job: Job
    spec: JobSpec
    counts: Counts
    left: int
    tokens: Tokens | None
    provider: ProviderSettings | None  # None: it is not in this process's settings
    view: QuotaView | None
    batches: BatchesOpen | None  # None: it is in no lane that packs
    workers: Sequence[WorkerSeen]
    now: float


class FleetLook:
    """Workers and quotas, each read once in a round."""

    def __init__(self, hot: RedisLedger, quotas: redis.Redis) -> None:
        self._hot, self._quotas = hot, quotas
        self._workers: Sequence[WorkerSeen] | None = None
        self._views: dict[str, QuotaView | None] = {}  # by provider

    def forget(self) -> None:
        self._workers, self._views = None, {}

    def workers(self) -> Sequence[WorkerSeen]:
        if self._workers is None:
            self._workers = self._hot.workers()
        return self._workers

    def view(self, provider: str) -> QuotaView | None:
        if provider not in self._views:
            self._views[provider] = next(
                iter(read_quotas(self._quotas, quota_ids=[provider])), None
            )
        return self._views[provider]


class BatchHistory:
    """The times of the latest batches of providers, read now and then."""

    def __init__(self, batches: BatchFigures) -> None:
        self._batches = batches
        # by provider: when it was read, and seconds
        self._lasted: dict[str, tuple[float, list[float]]] = {}

    def of(self, provider: str, now: float) -> list[float]:
        read_at, lasted = self._lasted.get(provider, (0.0, []))
        if now - read_at >= HISTORY_S:
            lasted = self._batches.lasted(provider, speeds.HISTORY)
            self._lasted[provider] = now, lasted
        return lasted


class TroubleTimes:
    """Since when lanes have been in trouble, as it concerns one job."""

    def __init__(self, rules: LaneChangeSettings, began: float) -> None:
        self._rules, self._began = rules, began
        # job, lane and reason: when that trouble began
        self._since: dict[tuple[str, str, str], float] = {}

    def keep_only(self, live: Collection[str]) -> None:
        self._since = {known: since for known, since in self._since.items() if known[0] in live}

    def lasting(self, lane: str, known: _Circumstances) -> Trouble | None:
        """Return what is wrong with a lane, if it has lasted.

        Before the first choice it need not have lasted, unless workers are missing that may be
        starting.
        """
        found = self._now(lane, known)
        job_id, now = known.job.job_id, known.now
        of_lane = {key for key in self._since if key[:2] == (job_id, lane)}
        if found is None:
            for key in of_lane:
                del self._since[key]
            return None
        since = self._since.setdefault((job_id, lane, found.reason), now)
        if known.job.moves or (known.job.lane == lane and known.spec.lane != AUTO):
            return found if now - since >= self._rules.trouble_s else None
        is_starting = found.reason == troubles.NO_WORKERS and now - self._began < YOUNG_S
        return None if is_starting else found

    def _now(self, lane: str, known: _Circumstances) -> Trouble | None:
        found = troubles.of_provider(lane, known.view)
        if found is None and lane not in self._rules.on_demand:
            found = troubles.of_workers(lane, known.spec.model, known.workers)
        if found is None and known.batches is not None and known.job.lane == lane:
            found = troubles.of_batches(known.batches, known.now)
        return found


class LaneFacts:
    """The facts of jobs and lanes, gathered on the control thread."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        hot: RedisLedger,
        quotas: redis.Redis,
        specs: Specs,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._hot, self._specs, self._clock = settings, hot, specs, clock
        self._outcomes, self._batches = OutcomeStore(database), BatchFigures(database)
        self._measured = Measured()
        self._live: Sequence[Job] = ()
        self._fleet = FleetLook(hot, quotas)
        self._history = BatchHistory(self._batches)
        self._troubles = TroubleTimes(settings.lanes, clock())

    def note(self, live: Sequence[Job]) -> None:
        """Measure the jobs that run, whichever lanes they permit: they say what a lane gives."""
        self._live = [job for job in live if job.state is JobState.RUNNING]
        now, names = self._clock(), [job.job_id for job in self._live]
        for job, finished in zip(self._live, self._hot.finished_of(names), strict=True):
            if not packs(job.lane) and len(self._specs.of(job).permitted_lanes) == 1:
                self._measured.note(
                    job.job_id, self._lane_of(job.lane, self._specs.of(job)), finished, 0.0, now
                )

    def of(
        self, job: Job, moves: Sequence[LaneMove], outstanding: int
    ) -> tuple[JobNow, list[LaneNow]]:
        """Return what is known of a job and of its lanes.

        ``moves`` are the job's; ``outstanding`` is how many of its documents were fed and have no
        outcome.
        """
        known = self._circumstances(job, outstanding)
        spec, now = known.spec, known.now
        if not packs(job.lane):
            paid = known.counts.cost_microusd / 1e6
            finished = known.counts.succeeded + known.counts.dead
            self._measured.note(job.job_id, self._lane_of(name_of(job), spec), finished, paid, now)
        deadline_at = None if spec.deadline_s is None else job.created_at + spec.deadline_s
        seen = JobNow(
            lane=None if spec.lane == AUTO and not job.moves else name_of(job),
            left=known.left,
            deadline_at=deadline_at,
            by_order=spec.lane != AUTO,
            answered=0 if known.batches is None else known.batches.answered,
            usd_left=self._usd_left(job, spec),
            left_late=_left_late(moves, deadline_at),
        )
        ordinary = None if known.provider is None else known.provider.prices_of(_model_of(known))
        lanes = list[LaneNow]()
        for lane in spec.permitted_lanes:
            for one in with_flex(self._lane(lane, known), spec, ordinary, known.tokens):
                lanes.append(one if one.tier is None else self._measured_apart(one, known))
        return seen, lanes

    def moved(self, job: Job) -> None:
        """Forget what was measured of a job in the lane or tier that it leaves."""
        self._measured.forget(job.job_id, name_of(job))

    def older_worker(self) -> str | None:
        """Return the name of a living worker whose release does not look at a job's lane yet.

        None: there is no such worker."""
        return next(
            (
                one.name
                for one in self._fleet.workers()
                if one.seconds_ago < ALIVE_S and KNOWS_MOVES not in one.info
            ),
            None,
        )

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended, and what the round before has read.

        All jobs of a round share what is read in it."""
        self._fleet.forget()
        self._troubles.keep_only(live)

    def _circumstances(self, job: Job, outstanding: int) -> _Circumstances:
        spec, counts, now = self._specs.of(job), self._outcomes.counts(job.job_id), self._clock()
        done = counts.succeeded + counts.dead
        left = max(0, job.total - done) if job.total is not None else max(1, outstanding)
        view = self._fleet.view(spec.provider) if spec.asks_a_provider else None
        provider = self._settings.providers.get(spec.provider)
        tokens, workers = tokens_each(job.source, counts), self._fleet.workers()
        batches = self._batches.open_times(job.job_id) if packs(job.lane) else None
        return _Circumstances(
            job, spec, counts, left, tokens, provider, view, batches, workers, now
        )

    def _lane(self, lane: str, known: _Circumstances) -> LaneNow:
        speed, spec = self._speed(lane, known), known.spec
        if (
            speed.pace is None
            and LANES[lane].is_real_time
            and spec.deadline_s is not None
            and not self._is_silent(known)
        ):
            speed = speeds.half_of(spec.deadline_s, known.left)
        own = self._measured.of_job(known.job.job_id, lane) if has_own_model(lane) else None
        prices = (
            None
            if known.provider is None
            else known.provider.prices_of(_model_of(known), tier=spec.tier_in(lane))
        )
        usd = own.usd_each if own is not None else usd_each(lane, known.tokens, prices)
        is_here = known.job.lane == lane and (spec.lane != AUTO or known.job.moves > 0)
        # what is left there is in batches already
        trouble = None if is_here else troubles.of_size(lane, known.provider, known.left)
        return LaneNow(
            lane,
            usd,
            speed.pace,
            speed.by,
            LANES[lane].is_real_time,
            trouble or self._troubles.lasting(lane, known),
        )

    def _measured_apart(self, one: LaneNow, known: _Circumstances) -> LaneNow:
        """Return a tier with its own speed, where the job, or another one, has shown it."""
        assert one.queue is not None, "a tier is one of a lane"
        speed = self._speed(one.queue, known, one.lane)
        return one if speed.pace is None else one._replace(pace=speed.pace, pace_by=speed.by)

    def _usd_left(self, job: Job, spec: JobSpec) -> float | None:
        """Return what is left of the job's budget.

        What is reserved for what is under way is for documents that are left."""
        return (
            None
            if spec.budget_usd is None
            else spec.budget_usd - self._batches.spent(job.job_id) / 1e6
        )

    def _is_silent(self, known: _Circumstances) -> bool:
        """Return whether the job's lane does not answer, so that nothing may be assumed of it."""
        own = self._measured.of_job(known.job.job_id, name_of(known.job))
        return own is not None and own.per_s <= 0 and own.seconds >= speeds.SILENT_S

    def _speed(self, lane: str, known: _Circumstances, tier: str | None = None) -> Speed:
        job, spec, name = known.job, known.spec, tier or lane
        is_here = name_of(job) == name
        if packs(lane):
            cap = None if known.provider is None else known.provider.batch_enqueued_tokens
            lasted = self._history.of(spec.provider, known.now)
            now_open = known.batches if is_here else None
            return speeds.of_batches(
                lasted, now_open, cap, known.tokens, self._settings.lanes.margin, known.now
            )
        declared: Mapping[str, float] = (
            {} if known.provider is None else known.provider.limits_of_ours
        )
        limits = {} if has_own_model(lane) else speeds.limits_of(known.view, declared)
        own = self._measured.of_job(job.job_id, name) if is_here else None
        of_lane = self._measured.of_lane(self._lane_of(name, spec), known.now)
        return speeds.one_by_one(own, of_lane, limits, known.tokens, self._sharing(lane, job, spec))

    def _sharing(self, lane: str, job: Job, spec: JobSpec) -> int:
        """Count the other running jobs that have a part of the same limits."""
        if has_own_model(lane):
            return 0
        return sum(
            other.job_id != job.job_id
            and other.lane == lane
            and self._specs.of(other).provider == spec.provider
            for other in self._live
        )

    @staticmethod
    def _lane_of(lane: str, spec: JobSpec) -> tuple[str, str, str | None]:
        return lane, "" if has_own_model(lane) else spec.provider, spec.model


def _model_of(known: _Circumstances) -> str | None:
    return known.spec.model or model_of(known.job.source)


def _left_late(moves: Sequence[LaneMove], deadline_at: float | None) -> frozenset[str]:
    """Return the lanes that were left because they were late or stood still.

    Those that were late count while the same deadline holds."""
    known = None if deadline_at is None else round(deadline_at)
    return frozenset(
        str(before)
        for move in moves
        if (before := move.figures.get(TIER_BEFORE) or move.before) and move.reason in LATE
        if move.reason != LATE[0] or move.figures.get("deadline_at") == known
    )
