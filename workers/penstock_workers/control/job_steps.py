"""What one job needs in one round: feeding, pausing, reconciling, cancelling, completing.

Each step is bounded, none blocks."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from penstock_ledger import (
    REDIS_TIMEOUT_S,
    BatchFigures,
    Database,
    FeedLost,
    JobSeen,
    JobStore,
    LaneMoves,
    LiveFeed,
    LiveJob,
    OutcomeStore,
    RedisAddress,
    RedisForgot,
    RedisLedger,
    TenantAccounts,
)
from penstock_ledger.model import Feed, Job, JobState
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.feed.leased_feed import open_feeder
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import packs
from penstock_workers.control.counters import Counters
from penstock_workers.control.feeding import Feeding, is_open
from penstock_workers.control.feeds.even import Processes
from penstock_workers.control.feeds.feed_windows import FeedWindows
from penstock_workers.control.feeds.first_hundred import FirstHundred
from penstock_workers.control.feeds.leadership import Leadership, LedFeed
from penstock_workers.control.feeds.reconcile import Reconciler
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.job.accounts import Accounts
from penstock_workers.control.job.balance import Balance
from penstock_workers.control.job.bucket_parts import BucketParts
from penstock_workers.control.job.cancel import Cancelling
from penstock_workers.control.job.complete import Completion
from penstock_workers.control.job.ending import JobEnding
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.job.limits import JobLimits
from penstock_workers.control.job.outputs import OutputFiles
from penstock_workers.control.job.resume import Resumes
from penstock_workers.control.job.sinks import JobSinks, SinkGivenUp
from penstock_workers.control.job.table_rows import TableRows
from penstock_workers.control.lanes.facts import LaneFacts
from penstock_workers.control.lanes.step import LaneChoices
from penstock_workers.control.moves.known_moves import KnownMoves
from penstock_workers.control.moves.leaving import Leaving
from penstock_workers.errors import stop_reason
from penstock_workers.failpoints import Failpoints
from penstock_workers.settings import WorkerSettings
from penstock_workers.tracing import Tracing

log = logging.getLogger(__name__)

UNPARK_MAX = 2_000  # messages of a resumed job brought back per round


class JobSteps:
    """Takes the step of each live job.

    Only the leader feeds and ends a job; any process applies limits and pauses."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        hot: RedisLedger,
        counters: Counters,
        *,
        owner: str,
        outputs_written: Callable[[], None],
        tracing: Tracing | None = None,
    ) -> None:
        jobs, outcomes, states = (
            JobStore(database),
            OutcomeStore(database),
            JobStates(JobStore(database), hot),
        )
        balance, batches = Balance(jobs, outcomes), BatchFigures(database)
        self._batches = batches
        self._settings = settings
        self._tracing = tracing
        self._counters = counters
        self._database = database
        self._outcomes = outcomes
        self._hot = hot
        self._owner = owner
        self._states = states
        self._balance = balance
        self._specs = Specs()
        self._windows = FeedWindows(hot, settings.window, self._specs)
        self._sinks = JobSinks(
            (
                TableRows(settings, database),
                BucketParts(settings, database),
                OutputFiles(settings, database),
            ),
            outputs_written,
        )
        accounts = Accounts(hot.budgets, batches, TenantAccounts(database, hot.budgets))
        self._limits = JobLimits(outcomes, hot, states, accounts)
        failpoints = Failpoints.parse(settings.failpoints)
        self._first = FirstHundred(hot)
        self._feeding = Feeding(
            database, self._windows, self._first, self._limits, self._specs, counters, failpoints
        )
        moves = LaneMoves(database)
        known = KnownMoves(moves)
        self._leaving = Leaving(settings, database, hot, known, failpoints)
        self._completion = Completion(jobs, hot, states, balance, self._sinks)
        self._cancelling = Cancelling(
            jobs, outcomes, batches, hot, states, balance, settings.visibility_timeout_s, failpoints
        )
        quotas = RedisAddress.parse(settings.redis_url).connect(socket_timeout=REDIS_TIMEOUT_S)
        self._resumes = Resumes(jobs, states, quotas)
        facts = LaneFacts(settings, database, hot, quotas, self._specs)
        self._lanes = LaneChoices(facts, moves, known, settings.lanes)
        self._processes = Processes(hot, owner)
        self.leadership = Leadership(jobs, owner, self._open_led)
        self.ending = JobEnding()

    def prepare(self, live: Sequence[LiveJob], seen: Sequence[JobSeen]) -> None:
        """Prepare the steps of a round.

        Forget jobs that are over, renew what is led, and note which jobs share the queues."""
        names = {job.job_id for job, _ in live}
        for part in (
            self._balance,
            self._limits,
            self._first,
            self._cancelling,
            self._resumes,
            self._specs,
            self.ending,
            self._sinks,
            self._lanes,
            self._leaving,
        ):
            part.keep_only(names)
        self._lanes.note([job for job, _ in live], self._specs.of)
        processes = self._processes.number(live)
        live = [LiveJob(job, self._led_by_control(job, feeds)) for job, feeds in live]
        self.leadership.keep_only(live)
        self.leadership.renew(live)
        self.leadership.share(live, processes)
        self.leadership.take(live, processes)
        outstanding = {
            job.job_id: of_job.outstanding for (job, _), of_job in zip(live, seen, strict=True)
        }
        self._windows.update([job for job, _ in live], outstanding, self.leadership.jobs(live))

    def place(self, live: LiveJob) -> float:
        """Return a job's place in the round: the lower it is, the sooner it has its step."""
        return self._windows.place(live.job)

    def step(self, live: LiveJob, seen: JobSeen) -> None:
        """Take one bounded step for one job."""
        job, _ = live
        # before workers learn that it runs: the hold would stop its items
        self._resumes.lift_hold(job, seen)
        if not seen.is_current:
            self._hot.set_job_state(job.job_id, job.state)
            self._hot.set_job_lane(job)
        if job.state is JobState.PAUSED:
            goes_on = self._limits.go_on_if_done(job) or self._limits.go_on_if_raised(job)
            if not goes_on and not self._leave(job, seen):
                self._resumes.resume_when_over(job)
            return
        here = self._led_by_control(job, live.feeds)
        for feed in live.feeds if len(here) < len(live.feeds) else ():
            if feed not in here:
                self.leadership.hand_back(feed)
        led = self._led(job, here)
        shards = {
            feed.feed.generation: self._led(job, feed.shards) for feed in live.feeds if feed.shards
        }
        if job.state is JobState.CANCELLING:
            self._unpark(job, seen)  # for workers to see that they are cancelled
            self._cancelling.step(
                job, self._queue(job), led, [part for parts in shards.values() for part in parts]
            )
            return
        spec, under_way = self._specs.of(job), sum(seen.outstanding)
        if self._limits.stop(job, spec, seen) or self._lanes.look(job, spec, under_way):
            return
        if not (led or any(shards.values()) or packs(job.lane)):
            return
        if job.moves and not self._has_left(job, under_way):
            return
        if seen.parked:
            self._unpark(job, seen, self._limits.to_unpark(job, seen.parked, UNPARK_MAX))
        for feed in live.feeds:
            for shard, part in self._feeding.parts(job, feed, shards.get(feed.feed.generation, ())):
                with self._faults_of(job, shard):
                    self._feeding.feed(job, shard, part)
        for led_feed in led:
            self._advance(job, led_feed, seen.outstanding[led_feed.feeder.feed.generation - 1])
        feeds = [led_feed.feeder.feed for led_feed in led]
        # one process does, and writes results
        counts_here = any(feed.generation == job.generation for feed in feeds)
        if counts_here and self._grow(job):
            self._end_if_done(live, seen, feeds)

    def _leave(self, job: Job, seen: JobSeen) -> bool:
        """Return whether a job that its lane has paused goes on in another one.

        Redis learns it now: a job that it still calls paused counts as resumed by a person."""
        if not self._lanes.leave(job, self._specs.of(job), sum(seen.outstanding)):
            return False
        self._hot.set_job_state(job.job_id, JobState.RUNNING)
        return True

    @property
    def windows(self) -> dict[str, int]:
        return self._windows.windows()

    def release_all(self) -> None:
        """Hand the leases over at once instead of letting them run out."""
        self._resumes.close()
        self.leadership.release_all()
        self._processes.leave()

    def _has_left(self, job: Job, outstanding: int) -> bool:
        """Return whether documents may be fed to the job's lane.

        They may once what waited in the lane before has been taken from there."""
        with self._faults_of_source(job):
            if self._leaving.step(job, self._specs.of(job), outstanding):
                return True
        return False

    def _led_by_control(self, job: Job, feeds: Sequence[LiveFeed]) -> tuple[LiveFeed, ...]:
        """Return the feeds of a job that control processes lead.

        Where workers pack the documents, these are only the feeds that they have read to their end,
        until the job ends.
        """
        if job.state is JobState.CANCELLING or not packs(job.lane):
            return tuple(feeds)
        return tuple(feed for feed in feeds if feed.feed.exhausted)

    def _led(self, job: Job, feeds: Sequence[LiveFeed]) -> list[LedFeed]:
        """Return those of these feeds, or shards of a feed, that this process leads."""
        return [led for feed in feeds if (led := self.leadership.lead(job, feed)) is not None]

    def _end_if_done(self, live: LiveJob, seen: JobSeen, led: Sequence[Feed]) -> None:
        now = {feed.feed.generation: feed.feed for feed in live.feeds}
        now |= {feed.generation: feed for feed in led}  # as this round left them
        if live.job.total is None or not all(feed.exhausted for feed in now.values()):
            return
        self.ending.note(live.job.job_id, sum(seen.outstanding))
        if not any(seen.outstanding) and not self._is_in_batches(live.job):
            self._completion.complete(live.job, self._specs.of(live.job))

    def _is_in_batches(self, job: Job) -> bool:
        """Return whether documents are with a provider, or wait for another batch or lane."""
        return (packs(job.lane) or job.moves > 0) and self._batches.is_busy(job.job_id)

    def _grow(self, job: Job) -> bool:
        """Go on with the results that are written while the job runs.

        Return False when they cannot be written, for which the job is paused."""
        try:
            self._sinks.look(job, self._specs.of(job))
        except SinkGivenUp as error:
            log.error("job %s: %s", job.job_id, error)
            self._states.move(job, JobState.PAUSED, error.reason)
            return False
        return True

    def _open_led(self, job: Job, feed: Feed) -> LedFeed:
        spans = None if self._tracing is None else self._tracing.of_feed(job, feed)
        feeder = open_feeder(
            self._database,
            self._hot,
            job,
            feed,
            owner=self._owner,
            settings=self._settings,
            spans=spans,
            spec=self._specs.of(job),
        )
        return LedFeed(
            feeder, Reconciler(self._outcomes, self._hot), self._next_reconciliation(), job.lane
        )

    def _unpark(self, job: Job, seen: JobSeen, most: int = UNPARK_MAX) -> None:
        if seen.parked and most:
            self._hot.unpark(job.job_id, self._queue(job), most)

    def _advance(self, job: Job, led: LedFeed, outstanding: int) -> None:
        feed = led.feeder.feed
        with self._faults_of(job, led):
            waits = job.moves > 0 and not packs(job.lane) and self._feeding.feed_waiting(job, led)
            if waits and not is_open(feed):
                pass  # what is new comes after it
            elif feed.shards:
                self._feeding.look(job, led)
            elif not feed.exhausted:
                self._feeding.feed(job, led)
            if time.monotonic() >= led.next_round:
                led.next_round = self._next_reconciliation()
                self._reconcile(job, led, outstanding)

    @contextlib.contextmanager
    def _faults_of(self, job: Job, led: LedFeed) -> Iterator[None]:
        """Handle what may go wrong in a step of a job's feed."""
        try:
            with self._faults_of_source(job):
                yield
        except FeedLost:
            self.leadership.forget(led.feeder.feed)
        except RedisForgot:
            log.warning(
                "job %s: Redis forgot while it was fed; the next round rebuilds it", job.job_id
            )

    @contextlib.contextmanager
    def _faults_of_source(self, job: Job) -> Iterator[None]:
        try:
            yield
        except SourceUnavailable as error:
            self._states.move(job, JobState.PAUSED, stop_reason(error))
        except SourceError as error:
            self._states.move(job, JobState.FAILED, stop_reason(error))

    def _reconcile(self, job: Job, led: LedFeed, outstanding: int) -> None:
        """Publish lost documents again.

        ``outstanding`` is as this round found it, before it fed more."""
        self._counters.add("reconciles", job.lane, 1)
        held = self._leaving.held_elsewhere(job)
        republished = led.reconciler.round(
            job, led.feeder.feed, led.feeder, self._queue(job), outstanding, held
        )
        self._counters.add("republished", job.lane, republished)

    def _next_reconciliation(self) -> float:
        return time.monotonic() + self._settings.reconcile_interval_s

    def _queue(self, job: Job) -> str:
        """Return the lane's own queue; the ledger looks at those of its models, too."""
        return queue_name(job.lane)
