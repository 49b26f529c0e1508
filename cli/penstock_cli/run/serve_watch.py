"""Looks after a machine that serves, and shows what it does."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from penstock_cli.disk import DiskGuard, SpaceHold, StoresAway
from penstock_cli.processes.standby import DOOR, Standby
from penstock_cli.processes.supervisor import Policy, Supervisor
from penstock_cli.run.services import DRAIN_MARGIN_S, Services, as_variables
from penstock_cli.settings import child_environment
from penstock_cli.show.progress import Wait
from penstock_cli.state import FOR_OTHERS, StateFolder
from penstock_ledger.model import Job, JobState
from penstock_producer.feed.queues import serving_of
from penstock_producer.job.lanes import LANES, has_own_model, packs
from penstock_producer.reporting.text import count, counted

if TYPE_CHECKING:
    from penstock_cli.show.progress import Progress
    from penstock_gateway import GatewaySettings


ASK_S: Final = 2.0  # for one question whether they serve
COMMAND: Final = (sys.executable, "-m", "penstock_cli", DOOR)


class Doors:
    """Started with the ``with``; at its end they finish the requests that have begun."""

    def __init__(
        self,
        settings: GatewaySettings,
        services: Services,
        state: StateFolder,
        progress: Progress,
        hurry: Callable[[], bool],
        standby: Standby,
    ) -> None:
        self._settings = settings
        self._services = services
        self._state = state
        self._progress = progress
        self._hurry = hurry
        self._standby = standby

    @property
    def url(self) -> str:
        """As a browser on this machine asks for it."""
        door = self._settings.gateway
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(door.host, door.host)  # noqa: S104 -- compared
        return f"http://{host}:{door.port}"

    def __enter__(self) -> Self:
        self._progress.note("opening the doors")
        variables = as_variables(self._services.settings, self._state) | {
            f"PENSTOCK_{name.upper()}": json.dumps(
                getattr(self._settings, name).model_dump(mode="json")
            )
            for name in ("gateway", "doors")
        }
        self.supervisor = Supervisor(
            lambda _: COMMAND,
            1,
            environment=child_environment(variables),
            logs=self._state.logs,
            take=lambda number, log: self._standby.take(
                DOOR, number, variables, log, umask=FOR_OTHERS
            ),
            tell=self._progress.say,
            policy=Policy(
                name=lambda _: "the process of the HTTP API",
                log=lambda _: "doors",
                umask=FOR_OTHERS,
            ),
        )
        self.supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.note("closing the doors; requests that have begun are finished")
        self.supervisor.stop(self._settings.gateway.drain_s + DRAIN_MARGIN_S, self._hurry)

    def serve(self) -> bool:
        """Return whether they accept work now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=ASK_S) as answer:  # noqa: S310 -- our own address
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self, asked_to_stop: Callable[[], bool], pause_s: float) -> None:
        """Wait until they serve. Raises WorkersKeepCrashing."""
        while not (asked_to_stop() or self.serve()):
            self.supervisor.tick()
            time.sleep(pause_s)


STARTING_TICK_S: Final = 0.1
TICK_S: Final = 0.25  # once it serves
LOOK_S: Final = 1.0  # at Redis, the disk and what is shown
COUNT_EVERY_S: Final = 2.0  # the documents of the jobs that run
REST_S: Final = 10.0  # while nothing is committed; a worker that loads again is in Redis alone
# of those that run, the newest; so many sums are read every COUNT_EVERY_S at most
JOBS_COUNTED: Final = 200
NOT_AT_ONCE: Final = (
    "the lane batch asks the provider by batches alone: calls that wait for their answer are "
    "refused (--lane auto answers both)"
)


class Watch:
    """Until it is asked to stop. Not thread-safe: one thread drives it."""

    def __init__(
        self, services: Services, doors: Doors, state: StateFolder, lane: str, progress: Progress
    ) -> None:
        self._services = services
        self._lane = lane
        self._doors = doors
        self._progress = progress
        self._root = state.root
        self._jobs = services.books.jobs
        space = SpaceHold(services.books, lambda before: self._jobs.list(JOBS_COUNTED, {before}))
        self._disk = DiskGuard(
            [state.root],
            # tenants read why, and not where
            hold=lambda why: space.hold(replace(why, params={**why.params, "place": "the server"})),
            go_on=space.go_on,
        )
        self._stores = StoresAway()
        self._counted_at = self._looked_at = float("-inf")
        self._text = self._load = ""
        self._commits = services.books.database.commits()
        self._mark: int | str | None = None

    def until(self, asked_to_stop: Callable[[], bool]) -> None:
        """Look after everything until it is asked to stop.

        Raises WorkersKeepCrashing and EmbeddedRedisFailed; what was finished by then is kept.
        """
        self._doors.wait(asked_to_stop, STARTING_TICK_S)
        if not asked_to_stop():
            url = self._doors.url
            sdk = f"OpenAI's SDK: base_url={url}/v1"
            self._progress.say(f"serving on {url}  ({sdk} · dashboard: {url}/)")
            if packs(self._lane):
                self._progress.say(NOT_AT_ONCE)
        next_look = 0.0
        while not asked_to_stop():
            self._services.supervisor.tick()
            self._doors.supervisor.tick()
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + LOOK_S
                self._look()
            time.sleep(TICK_S)

    def _look(self) -> None:
        """Look after everything once and show it."""
        import redis
        from sqlalchemy.exc import SQLAlchemyError

        from penstock_ledger import DatabaseUnavailable

        waits: Wait | None = None
        try:
            waits = self._services.keeper.look()
            waits = self._disk.look() or waits
            text = self._standing()
            self._stores.are_back()
        except (redis.RedisError, SQLAlchemyError, DatabaseUnavailable, OSError) as error:
            text, waits = "", waits or self._stores.wait_for(error)
        if waits is None:
            self._progress.note(text)
        else:
            self._progress.note(waits.why, waits.more)

    def _standing(self) -> str:
        """Return ``serving http://… · 2 jobs run, 1,240 documents to go``."""
        now = time.monotonic()
        if now - self._looked_at >= COUNT_EVERY_S:
            self._looked_at = now
            before, self._mark = self._mark, self._commits.mark()
            is_news = self._mark is None or self._mark != before or self._load
            if is_news or now - self._counted_at >= REST_S:
                self._counted_at, self._load = now, self._loading()
                self._text = f"serving {self._doors.url} · {self._load}{self._work()}"
        return self._text

    def _loading(self) -> str:
        """Return ``a worker loads the model qwen · `` while none serves it, else nothing."""
        workers = self._services.books.redis.workers()
        lanes = [serving_of(workers, lane) for lane in LANES if has_own_model(lane)]
        missing = {
            one.shown for lane in lanes for one in lane.loading if not lane.serves(one.names[0])
        }
        return f"a worker loads the model {', '.join(sorted(missing))} · " if missing else ""

    def _work(self) -> str:
        at_work = self._jobs.list(JOBS_COUNTED, {JobState.RUNNING})
        whole = [job for job in at_work if job.total is not None]
        opened = len(at_work) - len(whole)
        # those of calls that wait among them
        waiting = f", {counted(opened, 'open job')} besides" if opened else ""
        if not whole:
            return f"no job runs{waiting}"
        left = sum(map(self._left, whole))
        more = " or more" if len(at_work) == JOBS_COUNTED else ""
        verb = "runs" if len(whole) == 1 else "run"
        return f"{counted(len(whole), 'job')}{more} {verb}, {count(left)} documents to go{waiting}"

    def _left(self, job: Job) -> int:
        counts = self._services.books.outcomes.counts(job.job_id)
        return max(0, (job.total or 0) - counts.succeeded - counts.dead)
