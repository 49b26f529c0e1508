"""One loop over all live jobs: each round does a bounded amount of work for each."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import redis

from penstock_ledger import (
    REDIS_TIMEOUT_S,
    Database,
    JobSeen,
    JobStore,
    LaneMoves,
    LiveJob,
    LiveJobs,
    NoticedStore,
    OutcomeStore,
    RedisAddress,
    RedisLedger,
    Schedule,
    ScheduleStore,
)
from penstock_ledger.model import JobState
from penstock_producer import Producer, SpecError
from penstock_producer.accepting.remote_limits import RemoteLimits
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import LANES
from penstock_ratelimit import full_jitter
from penstock_workers.broker.amqp.relay_scripts import SwitchBack
from penstock_workers.control.feeds.model_queues import DeadHomes, FoundAdapters
from penstock_workers.control.fleet_figures import Counters, FleetFigures
from penstock_workers.control.job.recover import Recovery
from penstock_workers.control.job_steps import JobSteps, job_steps
from penstock_workers.control.resting import Rest
from penstock_workers.control.schedules.comparing import Comparing
from penstock_workers.control.schedules.schedule_steps import ScheduleSteps
from penstock_workers.control.schedules.start_job import start_job
from penstock_workers.control.schedules.starts import Started
from penstock_workers.decided_times import DecidedTimes
from penstock_workers.failure_log import FailureLog
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import CONTROL_LANE, WorkerSettings, process_name
from penstock_workers.stores import open_stores
from penstock_workers.tracing import Tracing, open_tracing

log = logging.getLogger(__name__)

PROMOTE_MAX = 1_000  # due retries brought back per queue and round
# between rounds while nothing happens and nothing is under way; a planned time is looked for as
# often, and a lease on a feed lasts three times as long
AT_REST_S = 5.0
# between the rounds of a process that leads nothing: it helps where a leader is busy or dead
ASIDE_S = 2.0
# times the CPU of looking at all live jobs: a thousand of them cost no more than a twentieth of a
# core
REST = 19.0
STUCK_S = 300.0  # of one round: stores and sources answer, or fail, much sooner
FAULT_CAP_S = 10.0  # a store that is away is asked again at least this often


class Chore(Protocol):
    """Something that is looked after in each round, whichever jobs there are."""

    def look(self) -> None: ...


class ControlFigures(NamedTuple):
    """The figures of the loop in metrics."""

    counters: Counters
    fleet: FleetFigures
    tracing: Tracing | None


class Pace:
    """The times of rounds, and the rests after them. Belongs to the control thread."""

    def __init__(self) -> None:
        self._states: dict[str, JobState] = {}  # of the jobs at the last look
        # monotonic time of the next round, whether or not this process leads anything
        self._next_round = 0.0
        self._looked_s = 0.0  # CPU that the latest round took to look at all live jobs

    def has_news(self, live: Sequence[LiveJob]) -> bool:
        """Return whether a job changed its state since the last look, or it is time to help."""
        before, self._states = self._states, {job.job_id: job.state for job, _ in live}
        return before != self._states or time.monotonic() >= self._next_round

    def note_round(self) -> None:
        self._next_round = time.monotonic() + ASIDE_S

    def restart(self) -> None:
        """Begin to count the CPU of a round."""
        self._looked_s = 0.0

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Count the CPU of the block as spent on looking at all live jobs."""
        began = time.thread_time()
        yield
        self._looked_s += time.thread_time() - began

    def rest_s(self) -> float:
        return REST * self._looked_s


class Rounds:
    """Works on all live jobs, a bounded amount for each. Belongs to the control thread."""

    def __init__(
        self,
        settings: WorkerSettings,
        hot: RedisLedger,
        recovery: Recovery,
        steps: JobSteps,
        chores: Sequence[Chore],
        counters: Counters,
        failure_log: FailureLog,
    ) -> None:
        self._hot, self._recovery, self._chores = hot, recovery, chores
        self.steps, self._counters, self._failure_log = steps, counters, failure_log
        self._number = 0
        self._longest_s = settings.max_retry_after_s + settings.retry_cap_s  # that a retry may wait

    def rebuilds(self, look: Callable[[], Sequence[LiveJob]]) -> bool:
        """Rebuild what Redis has lost; return whether it had lost anything."""
        is_rebuilt = self._recovery.rebuild_if_lost(lambda: [job for job, _ in look()])
        self._counters.rebuilds += is_rebuilt
        return is_rebuilt

    def readable(self, live: Sequence[LiveJob]) -> list[LiveJob]:
        """Return those whose spec can be read.

        One with an option that came later is for control processes of that release; it stands still
        until there are some, and must not stop the others."""
        found = list[LiveJob]()
        for one in live:
            try:
                self.steps.specs.of(one.job)
            except SpecError as error:
                self._failure_log.tell(
                    "control: the options of a job cannot be read",
                    error,
                    f"{one.job.job_id} stands still until control processes of the release run "
                    "that it was submitted with",
                    level=logging.ERROR,
                )
            else:
                found.append(one)
        return found

    def look(self, live: Sequence[LiveJob], pace: Pace) -> Sequence[JobSeen]:
        """Do what is due for the whole fleet, and return what Redis holds of each job."""
        for chore in self._chores:
            chore.look()
        with pace.looking():
            seen = self._hot.see([job for job, _ in live])
            self.steps.prepare(live, seen)
        return seen

    def work(self, live: Sequence[LiveJob], seen: Sequence[JobSeen]) -> None:
        jobs = list(zip(live, seen, strict=True))
        first = self._number % max(1, len(jobs))
        in_turns = (*jobs[first:], *jobs[:first])  # the job that is fed first is ahead in the queue
        for job, of_job in sorted(
            in_turns, key=lambda of_round: self.steps.leading.place(of_round[0])
        ):
            self._step(job, of_job)
        self._number += 1
        self._promote(live)
        self._counters.windows = self.steps.leading.windows()

    def _step(self, live: LiveJob, seen: JobSeen) -> None:
        """Work on one job; its failure must not stop the others."""
        try:
            self.steps.step(live, seen)
        except Exception as error:
            self._failure_log.tell(
                "control: a job could not be worked on",
                error,
                f"{live.job.job_id} is tried again in the next round",
                level=logging.ERROR,
            )

    def _promote(self, live: Sequence[LiveJob]) -> None:
        """Return due retries to their queues.

        It looks at all lanes while a job has moved: retries may wait where it was."""
        lanes = LANES if any(job.moves for job, _ in live) else {job.lane for job, _ in live}
        for lane in lanes:
            promoted = self._hot.promote(queue_name(lane), PROMOTE_MAX, longest_s=self._longest_s)
            self._counters.add("promoted", lane, promoted)


class Control:
    """Owns its own connections, so that it can live in any process and any thread.

    ``tick`` is not thread-safe."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        hot: RedisLedger,
        *,
        owner: str,
        tracing: Tracing | None = None,
        decided: DecidedTimes | None = None,
        on_move: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the loop.

        ``on_move`` is called behind each change of a job's state here. ``decided`` gets what
        came of the times of schedules, for those who show it."""
        self._interval_s = settings.control_interval_s
        self._live = LiveJobs(database)
        self._pace = Pace()
        self._failure_log = FailureLog(log)
        self._rest = Rest(database)
        self._is_quiet = False  # nothing was under way in the latest round
        self._others_lead = False  # some feed, as of the latest look
        self._turned_at = time.monotonic()
        client = RedisAddress.parse(settings.redis_url).connect(socket_timeout=REDIS_TIMEOUT_S)
        self._figures = ControlFigures(
            Counters(), FleetFigures(hot, client, ScheduleStore(database)), tracing
        )
        counters = self._figures.counters
        self._rounds = Rounds(
            settings,
            hot,
            Recovery(JobStore(database), OutcomeStore(database), hot, LaneMoves(database)),
            job_steps(
                settings,
                database,
                hot,
                counters,
                owner=owner,
                outputs_written=self._rest.wake,
                on_move=on_move,
                tracing=tracing,
            ),
            _chores(settings, hot, client),
            counters,
            self._failure_log,
        )
        self._schedules = ScheduleSteps(
            ScheduleStore(database),
            _starter(settings, database),
            owner=owner,
            on_ended=self._rest.wake,
            firings=counters.firings,
            comparing=Comparing(database, counters.compared),
            decided=decided,
        )

    def tick(self) -> None:
        """Do one round.

        Start jobs whose time has come; look at all live jobs, and work on them if this process
        leads them or could. Each process helps now and then, and when a job changed its state.
        """
        with self._log_failure("schedules could not be looked at", "the next round tries again"):
            self._schedules.look()
        self._pace.restart()
        with self._pace.looking():
            live = self._live.look()
        # the jobs that other processes lead: news of them are commits
        self._is_quiet = True
        leadership = self._rounds.steps.leading.leadership
        self._others_lead = leadership.others_lead(live)
        if self._pace.has_news(live) or leadership.concerns(live):
            self._pace.note_round()
            if self._rounds.rebuilds(self._live.look):
                live = self._live.look()  # recovery has rewound all feeds
            live = self._rounds.readable(live)
            seen = self._rounds.look(live, self._pace)
            self._rounds.work(live, seen)
            self._is_quiet = all(map(_is_quiet, live, seen))
        self._figures.counters.leads = len(leadership)
        with self._log_failure("the fleet's figures are missing", "they come back by themselves"):
            self._figures.fleet.refresh(
                [job for job, _ in live], is_quiet=self._is_quiet and not self._others_lead
            )

    def run(self, stop: threading.Event) -> None:
        """Tick until ``stop`` is set.

        An error of a store is logged, and the next round tries again."""
        faults, counters = 0, self._figures.counters
        while not stop.is_set():
            began = time.monotonic()
            self._rest.forget()
            mark: int | str | None = None
            try:
                # while there is work the rounds come anyway: nothing is asked then
                if self._is_quiet:
                    # before the mark: the commit of this process is no news
                    self._rounds.steps.leading.leadership.renew_if_due()
                    mark = self._rest.mark()
                self._is_quiet = False
                self.tick()
                interval_s = self._rounds.steps.interval_s(self._interval_s)
                self._is_quiet &= interval_s == self._interval_s
                wait_s = max(interval_s, self._pace.rest_s())
                faults = 0
                counters.ticks["ok"] += 1
            except Exception as error:
                self._is_quiet = False
                wait_s = full_jitter(faults, base_s=0.5, cap_s=FAULT_CAP_S) + self._interval_s
                self._failure_log.tell(
                    "control: a round failed", error, f"next look in {wait_s:.1f} s"
                )
                faults += 1
                counters.ticks["failed"] += 1
            counters.tick_s = time.monotonic() - began
            self._turned_at = time.monotonic()  # the loop is alive, whatever a store says
            if stop.is_set():
                break
            # what came in the midst of a round is after its mark
            if self._is_quiet and mark is not None:
                self._rest.until_commit(mark, wait_s, self._longest_rest_s())
            else:
                self._rest.wait(wait_s)
        try:
            self._rest.close()
            self._schedules.close()
            self.release_all()
        # the database is down or its disk full: the leases then end by themselves
        except Exception as error:
            log.warning(
                "control: leases of feeds could not be handed over: %s: %s",
                type(error).__name__,
                error,
            )

    def _longest_rest_s(self) -> float:
        """Return how long it may rest without a commit, with which work begins.

        What is in Redis alone is looked at each ``AT_REST_S``, and leases of others, which end
        without one, each ``ASIDE_S``."""
        return ASIDE_S if self._others_lead else AT_REST_S

    def release_all(self) -> None:
        """Hand the leases of feeds over at once instead of letting them run out."""
        self._rounds.steps.release_all()

    def wake(self) -> None:
        """Tick now instead of at the end of the interval. Any thread."""
        self._rest.wake()

    def is_turning(self) -> bool:
        """Return False when a tick has not returned for ``STUCK_S`` seconds.

        Any thread may ask."""
        return time.monotonic() - self._turned_at < STUCK_S

    def figures(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus; from any thread."""
        yield from self._figures.counters.figures()
        yield from self._figures.fleet.figures()
        if self._figures.tracing is not None:
            yield from self._figures.tracing.sink.figures()

    @contextlib.contextmanager
    def _log_failure(self, what: str, then: str) -> Iterator[None]:
        """Log a failure of the block, which must not stop the round."""
        try:
            yield
        except Exception as error:
            self._failure_log.tell(f"control: {what}", error, then)


def _chores(settings: WorkerSettings, hot: RedisLedger, client: redis.Redis) -> list[Chore]:
    """Make what is looked after for the whole fleet, whichever jobs there are."""
    chores: list[Chore] = [
        DeadHomes(hot, client, settings.visibility_timeout_s),
        FoundAdapters(hot),
    ]
    return chores if settings.broker_url is not None else [SwitchBack(client, settings), *chores]


def _is_quiet(live: LiveJob, seen: JobSeen) -> bool:
    """Return whether only a commit can bring a job something to do.

    It is paused, or open and all that came for it is finished."""
    if not seen.is_current:
        return False
    if live.job.state is JobState.PAUSED:
        resume_at = live.job.resume_at
        goes_on_soon = resume_at is not None and resume_at < time.time() + AT_REST_S
        return seen.is_paused and not goes_on_soon
    is_open = live.job.state is JobState.RUNNING and live.job.total is None
    return is_open and not seen.parked and not any(seen.outstanding)


def _starter(settings: WorkerSettings, database: Database) -> Callable[[Schedule], Started]:
    """Return what starts the jobs of schedules."""
    # The door that took the schedule has checked whose it is.
    remote_limits = RemoteLimits(settings.doors, settings.hook_modules, names_tenants=False)
    return partial(
        start_job,
        Producer(settings, database=database),
        Producer(settings, database=database, remote_limits=remote_limits),
        JobStore(database),
        ScheduleStore(database),
        NoticedStore(database),
    )


def _shovel_beside(settings: WorkerSettings) -> contextlib.AbstractContextManager[None]:
    """Run a shovel where RabbitMQ is the broker.

    RabbitMQ's client is imported where it is used."""
    if settings.broker_url is None:
        return contextlib.nullcontext()
    from penstock_workers.broker.amqp.shovel import start_shovel

    return start_shovel(settings, settings.broker_url)


@contextlib.contextmanager
def start_control(
    settings: WorkerSettings,
    decided: DecidedTimes | None = None,
    on_move: Callable[[], None] = lambda: None,
) -> Iterator[Control]:
    """Run a control loop in a thread and with connections of its own until the block ends.

    A shovel runs beside it."""
    stop = threading.Event()
    with (
        open_stores(settings, "control") as stores,
        open_tracing(settings, CONTROL_LANE) as tracing,
        _shovel_beside(settings),
    ):
        control = Control(
            settings,
            stores.database,
            stores.hot,
            owner=process_name(),
            tracing=tracing,
            decided=decided,
            on_move=on_move,
        )
        thread = threading.Thread(target=control.run, args=(stop,), name="control", daemon=True)
        thread.start()
        try:
            yield control
        finally:
            stop.set()
            control.wake()
            thread.join()
