"""Everything that works on a local job: the private Redis, the control loop, the worker processes."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock_cli.embedded import EmbeddedRedis
from penstock_cli.errors import EmbeddedRedisFailed, UsageProblem
from penstock_cli.figures import Figures, KeptFigures
from penstock_cli.pauses import ends_by_itself, lift_provider, pause_lines
from penstock_cli.reach import knock
from penstock_cli.settings import child_environment
from penstock_cli.state import StateFolder
from penstock_cli.supervisor import MAX_LOG_BYTES, Supervisor
from penstock_cli.text import duration
from penstock_cli.watch import Stall, Watch
from penstock_producer.request_body import LANES_WITH_A_MODEL_OF_THEIR_OWN

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_ledger.model import Job
    from penstock_workers.settings import WorkerSettings

TICK_S = 0.1
LOOK_EVERY_S = 0.25  # at the job's state and figures
DRAIN_MARGIN_S = 10.0  # beyond the worker's own drain time, before it is killed
MAX_REDIS_RESTARTS = 3  # a Redis that dies again and again lacks memory or disk, and starting it is no help


class Fleet:
    """The running services of one local job; a context manager that ends them in reverse order."""

    def __init__(
        self,
        settings: WorkerSettings,
        state: StateFolder,
        workers: int,
        *,
        hurry: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        if settings.broker_url is not None:
            tell("broker_url is for fleets: this job goes through a Redis of its own")
        self._settings = settings.model_copy(
            update={"database_url": state.database_url, "control": False, "broker_url": None}
        )
        self._state = state
        self._count = workers
        self._hurry = hurry
        self._tell = tell
        self._exits = ExitStack()
        self._redis_restarts = 0
        self._pause_told: float | None = None  # when the pause that was told of ends

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            exits.enter_context(logging_to(self._state.logs / "control.log"))
            self._redis = EmbeddedRedis.start(self._state.redis)
            exits.callback(self._stop_redis)
            self._settings = self._settings.model_copy(update={"redis_url": self._redis.endpoint.redis_url})
            self._books = exits.enter_context(self._open_books())
            self._take_over()
            self._control = exits.enter_context(self._run_control())
            self._supervisor = self._start_workers()
            exits.callback(self._stop_workers)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def work(
        self, job: Job, kept: KeptFigures, *, show: Callable[[Figures], None], asked_to_stop: Callable[[], bool]
    ) -> Job:
        """Watch until the job is final, paused by somebody after it ran, or we are asked to stop.

        Raises WorkersKeepCrashing and EmbeddedRedisFailed; what was finished by then is kept.
        """
        job = self._set_going(job)
        started = time.monotonic()

        def seconds() -> float:
            return kept.seconds + time.monotonic() - started

        watch, stall = Watch(self._books, job, seconds), Stall()
        next_look = 0.0
        try:
            while not asked_to_stop():
                self._supervisor.tick()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_EVERY_S
                    self._mend_redis()
                    job = watch.refresh()
                    if job.state.final or (job.state == "paused" and not ends_by_itself(job)):
                        break
                    self._tell_of_pause(job)
                    figures = watch.look(self._supervisor.alive)
                    show(figures)
                    self._tell_of_stall(stall.notice(figures))
                time.sleep(TICK_S)
            if asked_to_stop():
                drain = duration(self._settings.drain_seconds)
                self._tell(f"stopping: what is in flight may finish, for at most {drain}; Ctrl-C again stops now")
        finally:
            self._keep(job, seconds(), kept)
        return job

    def _keep(self, job: Job, seconds: float, kept: KeptFigures) -> None:
        """Save what would be lost with Redis and with this process; the last counters only if Redis still answers."""
        import redis

        stats: dict[str, int] = {}
        with contextlib.suppress(redis.RedisError):
            stats = self._books.stats(job)
        kept.save(seconds, stats)

    def _set_going(self, job: Job) -> Job:
        """A job that was paused goes on: whoever repeats the command has mended the reason."""
        from penstock_ledger.model import JobState

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
        if job.state == "paused" and job.resume_at != self._pause_told:
            self._pause_told = job.resume_at
            for line in (f"paused: {job.reason}", *pause_lines(job, self._books.option())):
                self._tell(line)

    def _tell_of_stall(self, notice: str | None) -> None:
        """With the reason where there is a plain one: nobody answers."""
        if notice is None:
            return
        asked = {} if self._settings.lane in LANES_WITH_A_MODEL_OF_THEIR_OWN else self._settings.providers
        for provider in asked.values():
            try:
                knock(provider.base_url)
            except UsageProblem as error:
                notice = f"{notice}: {error}"
        self._tell(notice)

    def _mend_redis(self) -> None:
        """Start the private Redis again when it died; what it lost is fed again by the control loop."""
        import redis

        with contextlib.suppress(redis.RedisError):
            self._redis.client.ping()
            return
        self._redis_restarts += 1
        if self._redis_restarts > MAX_REDIS_RESTARTS:
            raise EmbeddedRedisFailed(
                f"the private Redis ended {self._redis_restarts} times; see {self._redis.folder / 'redis.log'} "
                "(memory and disk are the usual reasons). The same command resumes the job."
            )
        self._tell("the private Redis ended; starting it again, nothing that was finished is lost")
        self._redis = EmbeddedRedis.start(self._state.redis)

    def _take_over(self) -> None:
        """The state folder is locked by us, so whoever held messages is dead: do not wait for their leases to end."""
        from penstock_workers.lease_scripts import return_leases_of_the_dead

        returned = return_leases_of_the_dead(self._redis.client)
        if returned:
            self._tell(f"{returned} documents were in flight when the last run died; they go again")

    def _stop_redis(self) -> None:
        self._redis.stop()

    def _open_books(self) -> contextlib.AbstractContextManager[Books]:
        from penstock_cli.connect import books

        return books(self._state.root)

    def _run_control(self) -> contextlib.AbstractContextManager[Any]:
        from penstock_workers.control import start_control

        return start_control(self._settings)

    def _start_workers(self) -> Supervisor:
        settings = self._settings
        command = [
            sys.executable,
            "-m",
            "penstock_cli",
            "worker",
            "--lane",
            settings.lane,
            "-c",
            str(settings.concurrency),
        ]
        supervisor = Supervisor(
            command,
            self._count,
            environment=child_environment(as_variables(settings, self._state)),
            logs=self._state.logs,
            tell=self._tell,
        )
        supervisor.start()
        return supervisor

    def _stop_workers(self) -> None:
        """Let workers finish what they hold; whatever takes too long is tried again when the job resumes."""
        self._supervisor.stop(self._settings.drain_seconds + DRAIN_MARGIN_S, self._hurry)


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """What our packages log goes into a bounded file: the terminal belongs to the progress panel."""
    from logging.handlers import RotatingFileHandler

    handler = RotatingFileHandler(path, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
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
