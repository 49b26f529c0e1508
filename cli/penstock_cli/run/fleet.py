"""Everything that works on a local job: the private Redis, the control loop, the workers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock_cli.disk import DiskGuard, SpaceHold, StoresAway
from penstock_cli.errors import UsageProblem
from penstock_cli.processes.standby import Standby
from penstock_cli.run.check import knock
from penstock_cli.run.conclude import still_at_provider
from penstock_cli.run.request import runs_alone
from penstock_cli.run.services import LOOK_EVERY_S, Services
from penstock_cli.run.watch import Stall, Watch, resumed
from penstock_cli.show.figures import JobFigures, KeptFigures
from penstock_cli.show.progress import Wait
from penstock_cli.state import StateFolder
from penstock_ledger.model import JobState
from penstock_ledger.reasons import By, Reason
from penstock_producer.errors import JobRefused
from penstock_producer.job.lanes import has_own_model
from penstock_producer.reporting.pauses import ends_by_itself, pause_lines
from penstock_producer.reporting.words import counted_batches

if TYPE_CHECKING:
    from penstock_cli.processes.gpu_workers import Cards
    from penstock_cli.show.progress import Progress
    from penstock_ledger.model import Job
    from penstock_workers.settings import WorkerSettings

TICK_S = 0.1
LEAVE_S = 10.0  # that control may take to move a job which its lane has paused


class Fleet:
    """The running services of one local job; a context manager that ends them in reverse order."""

    def __init__(
        self,
        of_lanes: Sequence[WorkerSettings],
        state: StateFolder,
        workers: int,
        *,
        cards: Cards | None,
        places: Sequence[Path],
        hurry: Callable[[], bool],
        progress: Progress,
        standby: Standby,
    ) -> None:
        """Prepare the fleet of one machine.

        ``of_lanes`` are the settings of each lane that the job may go to, ``cards`` the GPUs of
        those that host a model. ``places`` are the folders that it writes to.
        """
        hosting = {} if cards is None else {cards.settings.lane: len(cards.groups)}
        lanes = [
            one.lane
            for one in of_lanes
            for _ in range(
                hosting.get(one.lane, 1 if runs_alone(one.lane) and len(of_lanes) > 1 else workers)
            )
        ]
        self._services = Services(
            of_lanes,
            lanes,
            state,
            cards=cards,
            places=places,
            hurry=hurry,
            asked_to_stop=lambda: self._asked_to_stop(),
            progress=progress,
            standby=standby,
        )
        self._places = places
        self._progress = progress
        self._tell = progress.say
        self._stores = StoresAway(f" in {state.root}")
        self._asked_to_stop: Callable[[], bool] = lambda: False
        self._first_steps = FirstSteps()
        self._is_after_end = False  # the job was over when this run began
        self._leaving = Leaving(has_others=len(of_lanes) > 1)
        self._pause_said: float | None = None  # when the pause ends that was said

    def __enter__(self) -> Self:
        self._services.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._services.__exit__(*raised)

    def work(self, job: Job, kept: KeptFigures, *, asked_to_stop: Callable[[], bool]) -> Job:
        """Start the workers and watch them.

        It ends when the job is final, is paused while it runs, or we are asked to stop.

        Raises WorkersKeepCrashing and EmbeddedRedisFailed; what was finished by then is kept.
        """
        self._asked_to_stop = asked_to_stop
        self._services.start()
        self._is_after_end = job.state.final
        job = self._set_going(job)
        started = time.monotonic()

        def seconds() -> float:
            return kept.seconds + time.monotonic() - started

        self._watch, self._stall = Watch(self._services.books, job, seconds), Stall()
        space = SpaceHold(self._services.books, self._this_job)
        self._disk = DiskGuard(self._places, hold=space.hold, go_on=space.go_on)
        next_look = 0.0
        try:
            while not asked_to_stop():
                self._services.supervisor.tick()
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + LOOK_EVERY_S
                    if self._look():
                        break
                if self._services.job_moved.wait(TICK_S):
                    self._services.job_moved.clear()
                    next_look = 0.0
        finally:
            self._keep(self._watch.job, seconds(), kept)
        return self._watch.job

    def let_workers_end(self) -> None:
        """Ask the workers to end, which hold nothing of the job any more; wait for none."""
        self._services.supervisor.terminate()

    @property
    def failing(self) -> str | None:
        """The last failure, where nothing has finished in this run.

        It is None where something has, or nothing failed."""
        return self._first_steps.failing

    def _look(self) -> bool:
        """Look after everything once and show it.

        It is True when the job is over, or paused until a person acts."""
        import redis
        from sqlalchemy.exc import SQLAlchemyError

        from penstock_ledger import DatabaseUnavailable

        short, silent = self._disk.look(), self._services.keeper.look()
        waits, figures = short or silent, None
        try:
            job = self._watch.refresh()
            if job.state.final:
                return not self._reads_batches(job)
            if job.state == "paused" and not (
                self._disk.holds or ends_by_itself(job) or self._leaving.is_possible(job)
            ):
                return True
            self._tell_of_pause(job)
            if silent is None:
                figures = self._watch.look(self._services.supervisor.alive)
            self._stores.are_back()
        except (redis.RedisError, SQLAlchemyError, DatabaseUnavailable, OSError) as error:
            waits = waits or self._stores.wait_for(error)
        if figures is not None:
            self._progress.show(figures)
            self._tell_of_stall(self._stall.notice(figures))
            waits = waits or self._first_steps.look(figures)
        if waits is None:
            self._progress.note(None)
        else:
            self._progress.note(waits.why, waits.more)
        return False

    def _reads_batches(self, job: Job) -> bool:
        """Return whether a job that was over is waited for, to read what is at its provider."""
        left = still_at_provider(self._services.books, job) if self._is_after_end else 0
        if left:
            self._progress.note(
                f"the job is over; until the provider has ended {counted_batches(left)} of it, the "
                "answers are waited for",
                "Ctrl-C ends this; nothing of the job's results depends on it",
            )
        return left > 0

    def _this_job(self, _state: JobState) -> list[Job]:
        return [self._services.books.jobs.get(self._watch.job.job_id)]

    def _keep(self, job: Job, seconds: float, kept: KeptFigures) -> None:
        """Save what would be lost with Redis and with this process.

        The last counters only if Redis still answers."""
        import redis

        stats: dict[str, int] = {}
        with contextlib.suppress(redis.RedisError):
            stats = self._services.books.stats(job)
        with contextlib.suppress(OSError):  # a full disk: these figures decorate reports
            kept.save(seconds, stats)

    def _set_going(self, job: Job) -> Job:
        """Let a paused job go on: repeating the command says that its reason is gone."""
        if job.state == JobState.PAUSED:
            self._tell(
                "going on with a paused job (it was paused because: "
                f"{job.reason or 'no reason recorded'})"
            )
            with contextlib.suppress(JobRefused):  # it was ended meanwhile, which is seen at once
                return resumed(self._services.books, job, self._tell)
        job = self._services.books.jobs.get(job.job_id)
        self._services.books.redis.set_job_state(job.job_id, job.state)
        return job

    def _tell_of_pause(self, job: Job) -> None:
        """Say once that a job is paused, where the pause ends by itself."""
        if job.state == "paused" and job.resume_at != self._pause_said:
            self._pause_said = job.resume_at
            for line in (f"paused: {job.reason}", *pause_lines(job, self._services.books.option())):
                self._tell(line)

    def _tell_of_stall(self, notice: str | None) -> None:
        """Say that nothing finishes, with the reason where the provider cannot be reached."""
        if notice is None:
            return
        asked = (
            {}
            if all(map(has_own_model, self._services.lanes))
            else self._services.settings.providers
        )
        for provider in asked.values():
            try:
                knock(provider.base_url)
            except UsageProblem as error:
                notice = f"{notice}: {error}"
        self._tell(notice)


class FirstSteps:
    """Shows what goes on until the first document of a run has finished."""

    def __init__(self) -> None:
        self.failing: str | None = None  # the last failure, until then
        self._calling = False  # whether a worker has taken a document
        self._finished_before: int | None = None  # documents that had an outcome before

    def look(self, figures: JobFigures) -> Wait | None:
        """Return what is waited for."""
        if self._finished_before is None:
            self._finished_before = figures.finished
        self._calling = self._calling or figures.claimed > 0
        if figures.finished > self._finished_before:
            self.failing = None
            return None
        if figures.batches is not None:
            return None  # the figures say how far its batches are
        self.failing = figures.cause
        if figures.engines is not None and figures.engines.loading is not None:
            return Wait("the model loads; the first documents follow", figures.engines.loading)
        return Wait(
            "the first calls are under way"
            if self._calling
            else "starting workers; the first calls follow"
        )


class Leaving:
    """A lane that has paused its job, which control moves to another lane within seconds."""

    def __init__(self, *, has_others: bool) -> None:
        self._has_others = has_others
        self._fault: Reason | None = None
        self._since = 0.0  # monotonic

    def is_possible(self, job: Job) -> bool:
        """Return whether the job may still be moved."""
        if not self._has_others or job.pause is None or job.pause.by is not By.LANE:
            return False
        if self._fault != job.pause:
            self._fault, self._since = job.pause, time.monotonic()
        return time.monotonic() - self._since < LEAVE_S
