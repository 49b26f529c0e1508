"""One job takes these steps in a round: whether it goes on, its feeds, and its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock_ledger import (
    REDIS_TIMEOUT_S,
    BatchFigures,
    Database,
    JobSeen,
    JobStore,
    LaneMoves,
    LiveJob,
    OutcomeStore,
    RedisAddress,
    RedisLedger,
    StepsTaken,
    TenantAccounts,
)
from penstock_ledger.model import JobState
from penstock_producer.job.lanes import packs
from penstock_workers.control.closing import Closing, Completion
from penstock_workers.control.feeding import Feeding, FirstHundred
from penstock_workers.control.feeds.feed_windows import FeedWindows
from penstock_workers.control.feeds.leadership import Leadership
from penstock_workers.control.feeds.shares import Processes
from penstock_workers.control.feeds.specs import Specs
from penstock_workers.control.fleet_figures import Counters
from penstock_workers.control.job.accounts import Accounts
from penstock_workers.control.job.balance import Balance
from penstock_workers.control.job.cancel import Cancelling
from penstock_workers.control.job.degrading import Degrading
from penstock_workers.control.job.job_states import JobStates
from penstock_workers.control.job.limits import JobLimits
from penstock_workers.control.job.outputs import BucketParts, OutputFiles, TableRows
from penstock_workers.control.job.sinks import JobSinks
from penstock_workers.control.lanes.facts import LaneFacts
from penstock_workers.control.lanes.step import LaneChoices
from penstock_workers.control.leading import FeedOpener, Leading, Reconciliation
from penstock_workers.control.leaving import KnownMoves, Leaving
from penstock_workers.control.stopping import Resumes, Stopping
from penstock_workers.failpoints import Failpoints
from penstock_workers.settings import WorkerSettings
from penstock_workers.tracing import Tracing


class JobSteps:
    """Takes the step of each live job.

    Only the leader feeds and ends a job; any process applies limits and pauses."""

    def __init__(
        self, specs: Specs, stopping: Stopping, leading: Leading, closing: Closing
    ) -> None:
        self.specs, self._stopping, self._closing = specs, stopping, closing
        self.leading = leading
        self.interval_s = closing.ending.interval_s

    def prepare(self, live: Sequence[LiveJob], seen: Sequence[JobSeen]) -> None:
        """Prepare the steps of a round: forget jobs that are over, and renew what is led."""
        names = {job.job_id for job, _ in live}
        self.specs.keep_only(names)
        self._closing.keep_only(names)
        self._stopping.prepare(live, names)
        self.leading.prepare(live, seen)

    def step(self, live: LiveJob, seen: JobSeen) -> None:
        """Take one bounded step for one job."""
        job, _ = live
        self._stopping.tell(job, seen)
        if job.state is JobState.PAUSED:
            self._stopping.look_at_pause(job, seen)
            return
        led = self.leading.of(live)
        if job.state is JobState.CANCELLING:
            self._stopping.unpark_cancelled(job, seen)
            self._closing.cancel(job, led, self.leading.held_elsewhere(job))
            return
        if self._stopping.stops(job, seen):
            return
        if not (led.feeds or any(led.shards.values()) or packs(job.lane)):
            return
        if job.moves and not self.leading.has_left(job, sum(seen.outstanding)):
            return
        self._stopping.unpark(job, seen)
        self.leading.feed(live, led, seen.outstanding)
        self._closing.end_if_done(live, seen, led)

    def release_all(self) -> None:
        """Hand the leases over at once instead of letting them run out."""
        self._stopping.close()
        self.leading.release_all()


def job_steps(
    settings: WorkerSettings,
    database: Database,
    hot: RedisLedger,
    counters: Counters,
    *,
    owner: str,
    outputs_written: Callable[[], None],
    on_move: Callable[[], None],
    tracing: Tracing | None = None,
) -> JobSteps:
    """Make the steps of a control loop, and all that they stand on."""
    jobs, outcomes, batches = JobStore(database), OutcomeStore(database), BatchFigures(database)
    states, specs = JobStates(jobs, hot, on_move), Specs()
    failpoints = Failpoints.parse(settings.failpoints)
    moves = LaneMoves(database)
    known = KnownMoves(moves)

    accounts = Accounts(hot.budgets, batches, TenantAccounts(database, hot.budgets))
    limits = JobLimits(outcomes, hot, states, accounts)
    quotas = RedisAddress.parse(settings.redis_url).connect(socket_timeout=REDIS_TIMEOUT_S)
    facts = LaneFacts(settings, database, hot, quotas, specs)
    lanes = LaneChoices(facts, moves, known, settings.lanes)
    degrading = Degrading(StepsTaken(database), accounts)
    stopping = Stopping(hot, limits, Resumes(jobs, states, quotas), lanes, specs, degrading)

    windows = FeedWindows(hot, settings.window, specs)
    reconciliation = Reconciliation(counters, settings.reconcile_interval_s)
    opener = FeedOpener(
        settings, database, hot, specs, reconciliation, owner=owner, tracing=tracing
    )
    leading = Leading(
        Leadership(jobs, owner, opener.open),
        Processes(hot, owner),
        Feeding(database, windows, FirstHundred(hot), limits, specs, counters, failpoints),
        Leaving(settings, database, hot, known, failpoints),
        reconciliation,
        states,
        specs,
    )

    balance = Balance(jobs, outcomes)
    sinks = JobSinks(
        (
            TableRows(settings, database),
            BucketParts(settings, database),
            OutputFiles(settings, database),
        ),
        outputs_written,
    )
    cancelling = Cancelling(
        jobs, outcomes, batches, hot, states, balance, settings.visibility_timeout_s, failpoints
    )
    completion = Completion(jobs, hot, states, balance, sinks)
    closing = Closing(balance, batches, states, specs, sinks, cancelling, completion)
    return JobSteps(specs, stopping, leading, closing)
