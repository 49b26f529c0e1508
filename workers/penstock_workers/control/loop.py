"""One loop over all live jobs: each round does a bounded amount of work for each."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

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
    ScheduleStore,
)
from penstock_ledger.model import Job, JobState
from penstock_producer import Producer
from penstock_producer.accepting.remote_limits import RemoteLimits
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import LANES
from penstock_ratelimit import full_jitter
from penstock_workers.broker.amqp.relay_scripts import SwitchBack
from penstock_workers.control.counters import Counters
from penstock_workers.control.feeds.dead_homes import DeadHomes
from penstock_workers.control.feeds.found_adapters import FoundAdapters
from penstock_workers.control.fleet_figures import FleetFigures
from penstock_workers.control.job.recover import Recovery
from penstock_workers.control.job_steps import job_steps
from penstock_workers.control.schedules.schedule_steps import ScheduleSteps
from penstock_workers.control.schedules.start_job import start_job
from penstock_workers.decided_times import DecidedTimes
from penstock_workers.failure_log import FailureLog
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import CONTROL_LANE, WorkerSettings, process_name
from penstock_workers.stores import open_stores
from penstock_workers.tracing import Tracing, open_tracing

log = logging.getLogger(__name__)

PROMOTE_MAX = 1_000  # due retries brought back per queue and round
# between the rounds of a process that leads nothing: it helps where a leader is busy or dead
ASIDE_S = 2.0
# times the CPU of looking at all live jobs: a thousand of them cost no more than a twentieth of a
# core
REST = 19.0
STUCK_S = 300.0  # of one round: stores and sources answer, or fail, much sooner
FAULT_CAP_S = 10.0  # a store that is away is asked again at least this often


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
    ) -> None:
        """Make the loop.

        ``decided`` gets what came of the times of schedules, for those who show it."""
        self._settings = settings
        self._tracing = tracing
        self._turned_at = time.monotonic()
        self._failure_log = FailureLog(log)
        self._hot = hot
        self._live = LiveJobs(database)
        self._recovery = Recovery(
            JobStore(database), OutcomeStore(database), hot, LaneMoves(database)
        )
        self._counters = Counters()
        self._wake = threading.Event()
        self._steps = job_steps(
            settings,
            database,
            hot,
            self._counters,
            owner=owner,
            outputs_written=self._wake.set,
            tracing=tracing,
        )
        schedules = ScheduleStore(database)
        # The door that took the schedule has checked whose it is.
        remote_limits = RemoteLimits(settings.doors, settings.hook_modules, names_tenants=False)
        producers = (
            Producer(settings, database=database),
            Producer(settings, database=database, remote_limits=remote_limits),
        )
        self._schedules = ScheduleSteps(
            schedules,
            partial(start_job, *producers, JobStore(database), schedules, NoticedStore(database)),
            owner=owner,
            on_ended=self._wake.set,
            firings=self._counters.firings,
            decided=decided,
        )
        client = RedisAddress.parse(settings.redis_url).connect(socket_timeout=REDIS_TIMEOUT_S)
        self._fleet_figures = FleetFigures(hot, client, schedules)
        self._dead_homes = DeadHomes(hot, client, settings.visibility_timeout_s)
        self._found_adapters = FoundAdapters(hot)
        self._switch_back = SwitchBack(client, settings) if settings.broker_url is None else None
        self._rounds = 0
        self._looked_s = 0.0  # CPU that the latest round took to look at all live jobs
        # monotonic time of the next round, whether or not this process leads anything
        self._next_round = 0.0
        self._states: dict[str, JobState] = {}  # of the jobs at the last look
        self._longest_s = settings.max_retry_after_s + settings.retry_cap_s  # that a retry may wait

    def tick(self) -> None:
        """Do one round.

        Start jobs whose time has come; look at all live jobs, and work on them if this process
        leads them or could.
        """
        self._look_at_schedules()
        began = time.thread_time()
        live = self._live.look()
        self._looked_s = time.thread_time() - began
        if self._is_due(live):
            self._next_round = time.monotonic() + ASIDE_S
            self._round(live)
        self._counters.leads = len(self._steps.leading.leadership)
        self._refresh_figures([job for job, _ in live])

    def _is_due(self, live: Sequence[LiveJob]) -> bool:
        """Return whether this process works on jobs in this round.

        It always does if it leads a feed or could; else when a job changed its state, and now and
        then.
        """
        before, self._states = self._states, {job.job_id: job.state for job, _ in live}
        is_news = before != self._states
        return (
            is_news
            or self._steps.leading.leadership.concerns(live)
            or time.monotonic() >= self._next_round
        )

    def _round(self, live: Sequence[LiveJob]) -> None:
        if self._recovery.rebuild_if_lost([job for job, _ in live]):
            self._counters.rebuilds += 1
            live = self._live.look()  # recovery has rewound all feeds
        if self._switch_back is not None:
            self._switch_back.look()
        self._dead_homes.look()
        self._found_adapters.look()
        began = time.thread_time()
        seen = self._hot.see([job for job, _ in live])
        self._steps.prepare(live, seen)
        self._looked_s += time.thread_time() - began
        jobs = list(zip(live, seen, strict=True))
        first = self._rounds % max(1, len(jobs))
        in_turns = (*jobs[first:], *jobs[:first])  # the job that is fed first is ahead in the queue
        for job, of_job in sorted(
            in_turns, key=lambda of_round: self._steps.leading.place(of_round[0])
        ):
            self._step(job, of_job)
        self._rounds += 1
        # all lanes while a job has moved: retries may wait where it was
        lanes = LANES if any(job.moves for job, _ in live) else {job.lane for job, _ in live}
        for lane in lanes:
            promoted = self._hot.promote(queue_name(lane), PROMOTE_MAX, longest_s=self._longest_s)
            self._counters.add("promoted", lane, promoted)
        self._counters.windows = self._steps.leading.windows()

    def run(self, stop: threading.Event) -> None:
        """Tick until ``stop`` is set.

        An error of a store is logged, and the next round tries again."""
        faults = 0
        while not stop.is_set():
            usual_s, began = self._settings.control_interval_s, time.monotonic()
            self._wake.clear()
            try:
                self.tick()
                wait_s, faults = (
                    max(self._steps.interval_s(usual_s), REST * self._looked_s),
                    0,
                )
                self._counters.ticks["ok"] += 1
            except Exception as error:
                wait_s = full_jitter(faults, base_s=0.5, cap_s=FAULT_CAP_S) + usual_s
                self._failure_log.tell(
                    "control: a round failed", error, f"next look in {wait_s:.1f} s"
                )
                faults += 1
                self._counters.ticks["failed"] += 1
            self._counters.tick_s = time.monotonic() - began
            self._turned_at = time.monotonic()  # the loop is alive, whatever a store says
            if not stop.is_set():
                self._wake.wait(wait_s)
        try:
            self._schedules.close()
            self._steps.release_all()
        # the database is down or its disk full: the leases then end by themselves
        except Exception as error:
            log.warning(
                "control: leases of feeds could not be handed over: %s: %s",
                type(error).__name__,
                error,
            )

    def wake(self) -> None:
        """Tick now instead of at the end of the interval. Any thread."""
        self._wake.set()

    def is_turning(self) -> bool:
        """Return False when a tick has not returned for ``STUCK_S`` seconds.

        Any thread may ask."""
        return time.monotonic() - self._turned_at < STUCK_S

    def figures(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus; from any thread."""
        yield from self._counters.figures()
        yield from self._fleet_figures.figures()
        if self._tracing is not None:
            yield from self._tracing.sink.figures()

    def _step(self, live: LiveJob, seen: JobSeen) -> None:
        """Work on one job; its failure must not stop the others."""
        try:
            self._steps.step(live, seen)
        except Exception as error:
            self._failure_log.tell(
                "control: a job could not be worked on",
                error,
                f"{live.job.job_id} is tried again in the next round",
                level=logging.ERROR,
            )

    def _look_at_schedules(self) -> None:
        """Look at the schedules, whose failure must not stop the round."""
        try:
            self._schedules.look()
        except Exception as error:
            self._failure_log.tell(
                "control: schedules could not be looked at", error, "the next round tries again"
            )

    def _refresh_figures(self, live: Sequence[Job]) -> None:
        """Read the figures; their failure must not stop the round."""
        try:
            self._fleet_figures.refresh(live)
        except Exception as error:
            self._failure_log.tell(
                "control: the fleet's figures are missing", error, "they come back by themselves"
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
    settings: WorkerSettings, decided: DecidedTimes | None = None
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
        )
        thread = threading.Thread(target=control.run, args=(stop,), name="control", daemon=True)
        thread.start()
        try:
            yield control
        finally:
            stop.set()
            control.wake()
            thread.join()
