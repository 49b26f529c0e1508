"""Everything that works on a local job: the private Redis, the control loop, the worker processes."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock_cli.disk import DiskGuard, is_full, shortage
from penstock_cli.errors import RedisNotRunning, UsageProblem
from penstock_cli.processes.standby import Standby, worker_command
from penstock_cli.processes.supervisor import MAX_LOG_BYTES, Supervisor
from penstock_cli.processes.worker_process import Policy, Process
from penstock_cli.redis_server.keeper import RedisKeeper
from penstock_cli.redis_server.server import EmbeddedRedis
from penstock_cli.report.words import counted_batches
from penstock_cli.run.batches_left import still_at_provider
from penstock_cli.run.reachable import knock
from penstock_cli.run.request import runs_alone
from penstock_cli.settings import child_environment
from penstock_cli.show.figures import JobFigures, KeptFigures
from penstock_cli.show.pauses import ends_by_itself, pause_lines
from penstock_cli.show.progress import HURRIES, Wait
from penstock_cli.show.text import counted, duration, one_line
from penstock_cli.state import StateFolder
from penstock_cli.watching.holds import lift_provider
from penstock_cli.watching.watch import Stall, Watch
from penstock_ledger.log_lines import LineFormatter
from penstock_ledger.model import JobState
from penstock_producer.feed.queues import queue_name
from penstock_producer.job.lanes import has_own_model
from penstock_workers.lane_changes import is_lane_at_fault

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_cli.show.progress import Progress
    from penstock_ledger.model import Job
    from penstock_workers.settings import WorkerSettings

TICK_S = 0.1
LOOK_EVERY_S = 0.25  # at the job's state and figures
DRAIN_MARGIN_S = 12.0  # beyond the worker's own drain time, before it is killed: longer than its slowest end (END_S)
LEAVE_S = 10.0  # that control may take to move a job which its lane has paused
STORES_AWAY_MAX_S = 300.0  # errors of a store that runs: longer than locks, checkpoints and slow disks take


class Fleet:
    """The running services of one local job; a context manager that ends them in reverse order."""

    def __init__(
        self,
        of_lanes: Sequence[WorkerSettings],
        state: StateFolder,
        workers: int,
        *,
        places: Sequence[Path],
        hurry: Callable[[], bool],
        progress: Progress,
        standby: Standby,
    ) -> None:
        """``of_lanes``: settings of each lane that the job may go to; ``places`` are the folders that it writes to."""
        settings = of_lanes[0]
        self._standby = standby
        if settings.broker_url is not None:
            progress.say("broker_url is for fleets: this job goes through a Redis of its own")
        self._of_lanes = [_in_folder(one, state) for one in of_lanes]
        self._settings = self._of_lanes[0]
        self._state = state
        self._lanes = [
            one.lane for one in of_lanes for _ in range(1 if runs_alone(one.lane) and len(of_lanes) > 1 else workers)
        ]
        self._places = places
        self._hurry = hurry
        self._progress = progress
        self._tell = progress.say
        self._exits = ExitStack()
        self._away_since: float | None = None  # monotonic: since when a store that runs gives errors
        self._asked_to_stop: Callable[[], bool] = lambda: False
        self._calling = False  # whether a worker has taken a document in this run
        self._finished_before: int | None = None  # documents that had an outcome when this run began
        self._failing: str | None = None
        self._is_after_end = False  # the job was over when this run began
        self._fault: tuple[str | None, float] | None = (
            None  # for which its lane has paused it, and monotonic: since when
        )
        self._pause_said: float | None = None  # when the pause ends that was said

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            exits.enter_context(logging_to(self._state.logs / "control.log"))
            self._progress.note("starting the private Redis")
            server = EmbeddedRedis.start(self._state.redis, self._tell)
            self._keeper = RedisKeeper(server, self._tell)
            exits.callback(self._stop_redis)
            url = {"redis_url": server.endpoint.redis_url}
            self._of_lanes = [one.model_copy(update=url) for one in self._of_lanes]
            self._settings = self._of_lanes[0]
            self._books = exits.enter_context(self._open_books())
            self._take_over()
            exits.callback(self._progress.note, "stopping the control loop")
            self._control = exits.enter_context(self._run_control())
            self._progress.note(f"starting {counted(len(self._lanes), 'worker')}")
            self._supervisor = self._start_workers()
            exits.callback(self._stop_workers)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def work(self, job: Job, kept: KeptFigures, *, asked_to_stop: Callable[[], bool]) -> Job:
        """Watch until the job is final, is paused while it runs, or we are asked to stop.

        Raises WorkersKeepCrashing and EmbeddedRedisFailed; what was finished by then is kept.
        """
        self._asked_to_stop = asked_to_stop
        self._is_after_end = job.state.final
        job = self._set_going(job)
        started = time.monotonic()

        def seconds() -> float:
            return kept.seconds + time.monotonic() - started

        self._watch, self._stall = Watch(self._books, job, seconds), Stall()
        self._disk = DiskGuard(self._places, hold=self._hold, go_on=self._go_on)
        next_look = 0.0
        try:
            while not asked_to_stop():
                self._supervisor.tick()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_EVERY_S
                    if self._look():
                        break
                time.sleep(TICK_S)
        finally:
            self._keep(self._watch.job, seconds(), kept)
        return self._watch.job

    @property
    def failing(self) -> str | None:
        """The last failure, where nothing has finished in this run; None where something has, or nothing failed."""
        return self._failing

    def _look(self) -> bool:
        """Look after everything once and show it; True when the job is over, or paused until a person acts."""
        import redis
        from sqlalchemy.exc import SQLAlchemyError

        from penstock_ledger import DatabaseUnavailable

        short, silent = self._disk.look(), self._keeper.look()
        waits, figures = short or silent, None
        try:
            job = self._watch.refresh()
            if job.state.final:
                return not self._reads_batches(job)
            if job.state == "paused" and not (self._disk.holds or ends_by_itself(job) or self._may_leave(job)):
                return True
            self._tell_of_pause(job)
            if silent is None:
                figures = self._watch.look(self._supervisor.alive)
            self._away_since = None
        except (redis.RedisError, SQLAlchemyError, DatabaseUnavailable, OSError) as error:
            waits = waits or self._away(error)
        if figures is not None:
            self._progress.show(figures)
            self._tell_of_stall(self._stall.notice(figures))
            waits = waits or self._first_steps(figures)
        if waits is None:
            self._progress.note(None)
        else:
            self._progress.note(waits.why, waits.more)
        return False

    def _reads_batches(self, job: Job) -> bool:
        """Whether a job that was over before is still waited for: the command was given again to read what is at its provider."""
        left = still_at_provider(self._books, job) if self._is_after_end else 0
        if left:
            self._progress.note(
                f"the job is over; until the provider has ended {counted_batches(left)} of it, the answers are waited for",
                "Ctrl-C ends this; nothing of the job's results depends on it",
            )
        return left > 0

    def _may_leave(self, job: Job) -> bool:
        """Whether control may still move a job that its lane has paused to another one; it does so within seconds."""
        if len(self._of_lanes) == 1 or not is_lane_at_fault(job.reason):
            return False
        if self._fault is None or self._fault[0] != job.reason:
            self._fault = job.reason, time.monotonic()
        return time.monotonic() - self._fault[1] < LEAVE_S

    def _away(self, error: Exception) -> Wait:
        """What to say of a store that gives errors. Raises the error again when it does for too long, a full disk excepted."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since > STORES_AWAY_MAX_S and not is_full(error):
            raise error
        return Wait(f"waiting for queue and ledger in {self._state.root}: {one_line(str(error))}")

    def _first_steps(self, figures: JobFigures) -> Wait | None:
        """What goes on until the first document of this run has finished."""
        if self._finished_before is None:
            self._finished_before = figures.finished
        self._calling = self._calling or figures.claimed > 0
        if figures.finished > self._finished_before:
            self._failing = None
            return None
        if figures.batches is not None:
            return None  # the figures say how far its batches are
        self._failing = figures.cause
        if figures.engines is not None and figures.engines.loading is not None:
            return Wait("the model loads; the first documents follow", figures.engines.loading)
        return Wait("the first calls are under way" if self._calling else "starting workers; the first calls follow")

    def _hold(self, why: str) -> bool:
        """Let the job wait for space; False when that could not be written any more: then workers wait by themselves."""
        return self._moved(JobState.RUNNING, JobState.PAUSED, why)

    def _go_on(self) -> bool:
        return self._moved(JobState.PAUSED, JobState.RUNNING, None)

    def _moved(self, before: JobState, to: JobState, why: str | None) -> bool:
        import redis
        from sqlalchemy.exc import SQLAlchemyError

        from penstock_ledger import DatabaseUnavailable

        job_id = self._watch.job.job_id
        try:
            moved = self._books.jobs.set_state(job_id, to, reason=why, expect={before})
        except (SQLAlchemyError, DatabaseUnavailable):
            return False
        with contextlib.suppress(redis.RedisError):  # the control loop repeats it
            self._books.redis.set_job_state(job_id, to)
        return moved

    def _keep(self, job: Job, seconds: float, kept: KeptFigures) -> None:
        """Save what would be lost with Redis and with this process; the last counters only if Redis still answers."""
        import redis

        stats: dict[str, int] = {}
        with contextlib.suppress(redis.RedisError):
            stats = self._books.stats(job)
        with contextlib.suppress(OSError):  # a full disk: these figures decorate reports
            kept.save(seconds, stats)

    def _set_going(self, job: Job) -> Job:
        """A job that was paused goes on: repeating the command says that its reason is gone."""
        if job.state == JobState.PAUSED:
            self._tell(f"going on with a paused job (it was paused because: {job.reason or 'no reason recorded'})")
            self._books.jobs.set_state(job.job_id, JobState.RUNNING, expect={JobState.PAUSED})
            lifted = lift_provider(self._books, job)
            if lifted:
                self._tell(lifted)
        job = self._books.jobs.get(job.job_id)
        self._books.redis.set_job_state(job.job_id, job.state)
        return job

    def _tell_of_pause(self, job: Job) -> None:
        """Once per pause that ends by itself."""
        if job.state == "paused" and job.resume_at != self._pause_said:
            self._pause_said = job.resume_at
            for line in (f"paused: {job.reason}", *pause_lines(job, self._books.option())):
                self._tell(line)

    def _tell_of_stall(self, notice: str | None) -> None:
        """With the reason where the provider cannot be reached."""
        if notice is None:
            return
        asked = {} if all(map(has_own_model, self._lanes)) else self._settings.providers
        for provider in asked.values():
            try:
                knock(provider.base_url)
            except UsageProblem as error:
                notice = f"{notice}: {error}"
        self._tell(notice)

    def _take_over(self) -> None:
        """The state folder is locked by us, so the workers that held messages are dead: do not wait for their leases to end."""
        from penstock_workers.broker.lease_scripts import return_leases_of_the_dead

        returned = return_leases_of_the_dead(self._keeper.server.client)
        if returned:
            self._tell(f"{returned} documents were in flight when the last run died; they go again")

    def _stop_redis(self) -> None:
        self._progress.note("stopping the private Redis")
        self._keeper.server.stop()

    def _open_books(self) -> contextlib.AbstractContextManager[Books]:
        from penstock_cli.connect import books

        return books(self._state.root)

    def _run_control(self) -> contextlib.AbstractContextManager[Any]:
        from penstock_workers.control import start_control

        return start_control(self._settings)

    def _start_workers(self) -> Supervisor:
        variables = {one.lane: as_variables(one, self._state) for one in self._of_lanes}

        def forked(number: int, log: Path) -> Process | None:
            """Of the lane whose modules are imported already; the others are started as they are."""
            lane = self._lanes[number - 1]
            return self._standby.take(number, variables[lane], log) if lane == self._standby.lane else None

        supervisor = Supervisor(
            lambda number: worker_command(self._lanes[number - 1], number),
            len(self._lanes),
            environment=child_environment({}),
            logs=self._state.logs,
            take=forked,
            tell=self._tell,
            policy=Policy(variables=lambda number: variables[self._lanes[number - 1]]),
        )
        supervisor.start()
        return supervisor

    def _stop_workers(self) -> None:
        """Let workers finish what they hold; whatever takes too long is tried again when the job resumes."""
        self._looked_at = float("-inf")
        self._progress.note("stopping the workers")
        self._supervisor.stop(self._settings.drain_seconds + DRAIN_MARGIN_S, self._hurry, self._draining)

    def _draining(self, left_s: float) -> None:
        """Show what the end waits for, every ``LOOK_EVERY_S``."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S or not self._asked_to_stop():
            return
        self._looked_at = now
        held = self._calls_held()
        documents = "documents" if held is None else counted(held, "document")
        self._progress.hint(HURRIES)
        self._progress.note(
            "stopping:",
            f"nothing new is asked, and {documents} with the workers may still be answered, within {duration(left_s)}; the "
            "others wait for the resume. Ctrl-C again ends at once: answers that are on their way then are paid for, lost, and "
            f"asked for again on resume.{self._no_room()}",
        )

    def _no_room(self) -> str:
        short = next(filter(None, map(shortage, self._places)), None)
        return f" There is no room for their answers: {short}: free some space now." if short else ""

    def _calls_held(self) -> int | None:
        """None when Redis does not say."""
        import redis

        with contextlib.suppress(redis.RedisError, RedisNotRunning):
            depths = [self._books.redis.depth(queue_name(lane)) for lane in dict.fromkeys(self._lanes)]
            return sum(depth.unacked - depth.relayed for depth in depths)
        return None


def _in_folder(settings: WorkerSettings, state: StateFolder) -> WorkerSettings:
    """The settings of a worker of this job."""
    own = {"database_url": state.database_url, "control": False, "broker_url": None, **_kept_beside(settings, state)}
    return settings.model_copy(update=own)


def _kept_beside(settings: WorkerSettings, state: StateFolder) -> dict[str, Any]:
    """What the lane's workers keep on this machine lies in the job's folder."""
    own = settings.of_lane(settings.lane)
    return {} if own is None else {settings.lane: own.kept_in(state.root)}


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """What our packages log goes into a bounded file: the terminal belongs to the progress panel."""
    from logging.handlers import RotatingFileHandler

    class LogFile(RotatingFileHandler):
        """What a full disk does not take is lost; the screen says why, so that logging does not."""

        def handleError(self, record: logging.LogRecord) -> None:
            pass

    handler = LogFile(path, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        with contextlib.suppress(OSError):
            handler.close()


def as_variables(settings: WorkerSettings, state: StateFolder) -> dict[str, str]:
    """The settings as PENSTOCK_* variables, complete, with an empty settings file so that no other one is merged in."""
    nothing = state.root / "workers.toml"
    nothing.write_text("# Empty on purpose: workers of `penstock run` get all their settings as variables.\n")
    variables = {"PENSTOCK_CONFIG": str(nothing)}
    for name, value in settings.model_dump(mode="json").items():
        if value is not None:
            variables[f"PENSTOCK_{name.upper()}"] = value if isinstance(value, str) else json.dumps(value)
    return variables
