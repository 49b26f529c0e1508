"""One loop that steers every live job: a tick looks at each, does a bounded amount of work, and comes back."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence

from penstock_ledger import Database, JobStore, OutcomeStore, RedisAddress, RedisLedger
from penstock_ledger.model import Job
from penstock_producer.wire import queue_name
from penstock_ratelimit import full_jitter
from penstock_workers.broker.amqp.homecoming import Homecoming
from penstock_workers.broker.amqp.shovel import start_shovel
from penstock_workers.control.counted import Counted
from penstock_workers.control.lookout import Lookout
from penstock_workers.control.recover import Recovery
from penstock_workers.control.steer import Steering
from penstock_workers.failure_log import FailureLog
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import CONTROL_LANE, WorkerSettings, process_name
from penstock_workers.stores import open_stores
from penstock_workers.tracing import Tracing, open_tracing

log = logging.getLogger(__name__)

PROMOTE_MAX = 1_000  # due retries brought back per queue and tick
LOOK_TIMEOUT_S = 15.0  # as for the other connections of a control loop
STUCK_S = 300.0  # of one tick: stores and sources answer, or fail, much sooner
FAULT_CAP_S = 10.0  # a store that is away is asked again at least this often


class Control:
    """Owns its own connections, so that it can live in any process and any thread. ``tick`` is not thread-safe."""

    def __init__(
        self,
        settings: WorkerSettings,
        database: Database,
        hot: RedisLedger,
        *,
        owner: str,
        tracing: Tracing | None = None,
    ) -> None:
        self._settings = settings
        self._tracing = tracing
        self._turned_at = time.monotonic()
        self._jobs = JobStore(database)
        self._failure_log = FailureLog(log)
        outcomes = OutcomeStore(database)
        self._hot = hot
        self._recovery = Recovery(self._jobs, outcomes, hot)
        self._counted = Counted()
        self._steering = Steering(settings, database, hot, self._counted, owner=owner, tracing=tracing)
        client = RedisAddress.parse(settings.redis_url).connect(socket_timeout=LOOK_TIMEOUT_S)
        self._lookout = Lookout(hot, client)
        self._homecoming = Homecoming(client, settings) if settings.broker_url is None else None
        self._ticks = 0
        self._longest_s = settings.max_retry_after_s + settings.retry_cap_s  # that a retry may wait

    def tick(self) -> None:
        """One round over all live jobs."""
        live = self._jobs.live()
        self._counted.rebuilds += self._recovery.heed(live)
        if self._homecoming is not None:
            self._homecoming.look()
        self._steering.look_around(live)
        first = self._ticks % max(1, len(live))
        for job in (*live[first:], *live[:first]):  # by turns: who is fed first is ahead in the queue
            self._steer(job)
        self._ticks += 1
        for lane in {str(job.spec.get("lane", "api")) for job in live}:
            self._counted.add(
                "promoted", lane, self._hot.promote(queue_name(lane), PROMOTE_MAX, longest_s=self._longest_s)
            )
        self._counted.leads = self._steering.leads
        self._counted.windows = self._steering.windows()
        self._look(live)

    def run(self, stop: threading.Event) -> None:
        """Tick until told to stop. A fault of a store is tried again, for as long as it takes."""
        faults = 0
        while not stop.is_set():
            wait_s, began = self._settings.control_interval_s, time.monotonic()
            try:
                self.tick()
                faults = 0
                self._counted.ticks["ok"] += 1
            except Exception as error:
                wait_s = full_jitter(faults, base_s=0.5, cap_s=FAULT_CAP_S) + wait_s
                self._failure_log.tell("control: a round failed", error, f"next look in {wait_s:.1f} s")
                faults += 1
                self._counted.ticks["failed"] += 1
            self._counted.tick_s = time.monotonic() - began
            self._turned_at = time.monotonic()  # whatever a store says: a loop that turns is a loop that lives
            stop.wait(wait_s)
        try:
            self._steering.release_all()
        except Exception as error:  # a full disk, a database that is away: the leases then end by themselves
            log.warning("control: leases of feeds could not be handed over: %s: %s", type(error).__name__, error)

    def turns(self) -> bool:
        """False when a tick has not come back for so long that it never will. Any thread."""
        return time.monotonic() - self._turned_at < STUCK_S

    def figures(self) -> Iterator[Sample]:
        """Any thread."""
        yield from self._counted.figures()
        yield from self._lookout.figures()
        if self._tracing is not None:
            yield from self._tracing.sink.figures()

    def _steer(self, job: Job) -> None:
        """One job's trouble must not hold up the others."""
        try:
            self._steering.steer(job)
        except Exception as error:
            self._failure_log.tell(
                "control: a job could not be steered",
                error,
                f"{job.job_id} is tried again with the next tick",
                level=logging.ERROR,
            )

    def _look(self, live: Sequence[Job]) -> None:
        """Figures must not hold up the work that they are about."""
        try:
            self._lookout.look(live)
        except Exception as error:
            self._failure_log.tell("control: the fleet's figures are missing", error, "they come back by themselves")


@contextlib.contextmanager
def start_control(settings: WorkerSettings) -> Iterator[Control]:
    """Run a control loop in a thread of its own, with connections of its own, until the block ends; and a shovel beside it."""
    stop = threading.Event()
    with (
        open_stores(settings, "control") as stores,
        open_tracing(settings, CONTROL_LANE) as tracing,
        start_shovel(settings),
    ):
        control = Control(settings, stores.database, stores.hot, owner=process_name(), tracing=tracing)
        thread = threading.Thread(target=control.run, args=(stop,), name="control", daemon=True)
        thread.start()
        try:
            yield control
        finally:
            stop.set()
            thread.join()
