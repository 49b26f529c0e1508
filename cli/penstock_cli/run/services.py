"""The jobs of one machine have a private Redis, a control loop and workers."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock_cli.disk import is_read_only, shortage
from penstock_cli.errors import EmbeddedRedisFailed, RedisNotRunning
from penstock_cli.processes.standby import Standby, worker_command
from penstock_cli.processes.supervisor import MAX_LOG_BYTES, Policy, Process, Supervisor
from penstock_cli.redis_server import SILENCE_MAX_S, EmbeddedRedis, Tell, end
from penstock_cli.settings import child_environment
from penstock_cli.show.progress import HURRIES, Wait
from penstock_cli.state import StateFolder, private_opener, write_private
from penstock_ledger.redaction import LineFormatter
from penstock_producer.feed.queues import queue_name
from penstock_producer.reporting.text import counted, duration

if TYPE_CHECKING:
    from penstock_cli.connect import Books
    from penstock_cli.processes.gpu_workers import Cards
    from penstock_cli.show.progress import Progress
    from penstock_workers.settings import WorkerSettings


# within RESTART_WINDOW_S: a server that ends again and again lacks memory, and starting it is no
# help
MAX_RESTARTS = 3
RESTART_WINDOW_S = 600.0


class RedisKeeper:
    """Owns the private server of one run. Not thread-safe: one thread drives it."""

    def __init__(
        self, server: EmbeddedRedis, tell: Tell, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.server = server
        self._tell = tell
        self._clock = clock
        self._answered_at = clock()
        # of the last RESTART_WINDOW_S, so at most MAX_RESTARTS
        self._restarts: deque[float] = deque()

    def look(self) -> Wait | None:
        """Return what is waited for; None while the server works.

        Raises EmbeddedRedisFailed when it ended too often, what it says of a file system that has
        become read-only, and the errors of ``EmbeddedRedis.start``.
        """
        import redis

        try:
            self.server.ping()
        # it lives, and says why it does not work
        except (redis.ResponseError, redis.BusyLoadingError) as error:
            if is_read_only(error):
                raise  # which does not pass by itself
            self._answered_at = self._clock()
            return Wait(f"the private Redis refuses to work for now: {error}")
        except redis.RedisError:
            return self._silent()
        self._answered_at = self._clock()
        return None

    def _silent(self) -> Wait | None:
        silent_s = self._clock() - self._answered_at
        if not self.server.alive:
            return self._start_again(
                "the private Redis ended; starting it again, nothing that was finished is lost"
            )
        if silent_s <= SILENCE_MAX_S:
            return Wait(
                "the private Redis lives but does not answer; waiting for it, at most "
                f"{duration(SILENCE_MAX_S)} (a slow disk or a machine short of memory is the usual "
                "reason).",
                f"Silent for {duration(silent_s)}.",
            )
        end(self.server.pid, self.server.folder)
        return self._start_again(
            f"the private Redis did not answer for {duration(silent_s)} and was ended; starting it "
            "again"
        )

    def _start_again(self, why: str) -> Wait | None:
        folder, now = self.server.folder, self._clock()
        short = shortage(folder)
        if short is not None:
            return Wait(f"the private Redis ended and waits for space on the disk: {short}")
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= MAX_RESTARTS:
            raise EmbeddedRedisFailed(
                f"the private Redis ended {len(self._restarts) + 1} times within "
                f"{duration(RESTART_WINDOW_S)}; see {folder / 'redis.log'} (too little memory is "
                "the usual reason). The same command resumes the job."
            )
        self._restarts.append(now)
        self._tell(why)
        self.server = EmbeddedRedis.start(folder, self._tell)
        self._answered_at = self._clock()
        return None


LOOK_EVERY_S = 0.25  # at what is shown
# beyond the worker's own drain time, before it is killed: longer than its slowest end (END_S)
DRAIN_MARGIN_S = 12.0


class Services:
    """The ``with`` starts Redis, ``start`` all else, and the ``with`` ends it in reverse order.

    Not thread-safe: one thread drives it."""

    def __init__(
        self,
        of_lanes: Sequence[WorkerSettings],
        lanes: Sequence[str],
        state: StateFolder,
        *,
        cards: Cards | None,
        places: Sequence[Path],
        hurry: Callable[[], bool],
        asked_to_stop: Callable[[], bool],
        progress: Progress,
        standby: Standby,
    ) -> None:
        """Prepare the services.

        ``of_lanes`` are the settings of each lane, ``lanes`` that of each worker, ``cards`` the
        GPUs of those that host a model. ``places`` are the folders that are written to.
        """
        if of_lanes[0].broker_url is not None:
            progress.say(
                "broker_url is for fleets: work on one machine goes through a Redis of its own"
            )
        self._of_lanes = [_in_folder(one, state) for one in of_lanes]
        self._lanes = lanes
        self._cards = cards
        self._state = state
        self._places = places
        self._hurry = hurry
        self._asked_to_stop = asked_to_stop
        self._progress = progress
        self._standby = standby
        # set by the control thread when a job's state changes, cleared by who waits for it
        self.job_moved = threading.Event()
        self._exits = ExitStack()
        self._looked_at = float("-inf")  # monotonic: when a drain was shown last

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            exits.enter_context(logging_to(self._state.logs / "control.log"))
            self._progress.note("starting the private Redis")
            server = EmbeddedRedis.start(self._state.redis, self._progress.say)
            self.keeper = RedisKeeper(server, self._progress.say)
            exits.callback(self._stop_redis)
            url = {"redis_url": server.endpoint.redis_url}
            self._of_lanes = [one.model_copy(update=url) for one in self._of_lanes]
            self.books = exits.enter_context(self._open_books())
            self._take_over()
            self._exits = exits.pop_all()
        return self

    def start(self) -> None:
        """Start the control loop and the workers; who serves has opened the doors before."""
        self._exits.callback(self._progress.note, "stopping the control loop")
        self._exits.enter_context(self._run_control())
        self._progress.note(f"starting {counted(len(self._lanes), 'worker')}")
        self.supervisor = self._start_workers()
        self._exits.callback(self._stop_workers)

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    @property
    def settings(self) -> WorkerSettings:
        """Of the first lane, with the address of the private Redis."""
        return self._of_lanes[0]

    @property
    def lanes(self) -> Sequence[str]:
        """Of each worker."""
        return self._lanes

    def _take_over(self) -> None:
        """Take messages from workers of before, whose leases need not end first.

        The state folder is locked by us, so those workers are dead."""
        from penstock_workers.broker.lease_scripts import return_leases_of_the_dead

        returned = return_leases_of_the_dead(self.keeper.server.client)
        if returned:
            self._progress.say(
                f"{returned} documents were in flight when the last run died; they go again"
            )

    def _stop_redis(self) -> None:
        self._progress.note("stopping the private Redis")
        self.keeper.server.stop()

    def _open_books(self) -> contextlib.AbstractContextManager[Books]:
        from penstock_cli.connect import books

        return books(self._state.root)

    @contextlib.contextmanager
    def _run_control(self) -> Iterator[None]:
        from penstock_workers.control import start_control
        from penstock_workers.metrics import start_metrics
        from penstock_workers.settings import CONTROL_LANE

        # the page's port is the workers'
        own = self.settings.model_copy(update={"lane": CONTROL_LANE, "metrics_port": None})
        with (
            start_control(self.settings, on_move=self.job_moved.set) as control,
            start_metrics(own, control.figures),
        ):
            yield

    def variables_by_worker(self) -> list[dict[str, str]]:
        """Return the settings of each worker, and its GPUs where it was given some."""
        of_lanes: dict[str, dict[str, str]] = {
            one.lane: as_variables(one, self._state) for one in self._of_lanes
        }
        found = []
        for at, lane in enumerate(self._lanes):
            variables = of_lanes[lane]
            if self._cards is not None and lane == self._cards.settings.lane:
                variables = variables | self._cards.of_worker(self._lanes[: at + 1].count(lane))
            found.append(variables)
        return found

    def _start_workers(self) -> Supervisor:
        variables = self.variables_by_worker()

        def forked(number: int, log: Path) -> Process | None:
            """Fork a worker; None for a lane that the fork server does not know."""
            lane = self._lanes[number - 1]
            return self._standby.take(lane, number, variables[number - 1], log)

        supervisor = Supervisor(
            lambda number: worker_command(self._lanes[number - 1], number),
            len(self._lanes),
            environment=child_environment({}),
            logs=self._state.logs,
            take=forked,
            tell=self._progress.say,
            policy=Policy(variables=lambda number: variables[number - 1]),
        )
        supervisor.start()
        return supervisor

    def _stop_workers(self) -> None:
        """Let workers finish what they hold.

        Whatever takes too long is tried again when the job resumes."""
        self._progress.note("stopping the workers")
        self.supervisor.stop(
            self.settings.drain_seconds + DRAIN_MARGIN_S, self._hurry, self._draining
        )

    def _draining(self, left_s: float) -> None:
        """Show what the end waits for, every ``LOOK_EVERY_S``."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S or not self._asked_to_stop():
            return
        self._looked_at = now
        held = self._calls_held()
        self._progress.hint(HURRIES)
        if held == 0:
            self._progress.note(
                "stopping:",
                f"nothing is under way any more; the workers end within {duration(left_s)}",
            )
            return
        documents = "documents" if held is None else counted(held, "document")
        self._progress.note(
            "stopping:",
            f"nothing new is asked, and {documents} with the workers may still be answered, within "
            f"{duration(left_s)}; the others wait for the resume. Ctrl-C again ends at once: "
            "answers that are on their way then are paid for, lost, and asked for again on "
            f"resume.{self._no_room()}",
        )

    def _no_room(self) -> str:
        short = next(filter(None, map(shortage, self._places)), None)
        return (
            f" There is no room for their answers: {short}: free some space now." if short else ""
        )

    def _calls_held(self) -> int | None:
        """Return how many calls are held; None when Redis does not say."""
        import redis

        with contextlib.suppress(redis.RedisError, RedisNotRunning):
            depths = [
                self.books.redis.depth(queue_name(lane)) for lane in dict.fromkeys(self._lanes)
            ]
            return sum(depth.unacked - depth.relayed for depth in depths)
        return None


def _in_folder(settings: WorkerSettings, state: StateFolder) -> WorkerSettings:
    """Return the settings of a worker of this machine."""
    own = {
        "database_url": state.database_url,
        "control": False,
        "broker_url": None,
        **_kept_beside(settings, state),
    }
    return settings.model_copy(update=own)


def _kept_beside(settings: WorkerSettings, state: StateFolder) -> dict[str, Any]:
    """Return where the lane's workers keep what lies in the state folder."""
    own = settings.of_lane(settings.lane)
    return {} if own is None else {settings.lane: own.kept_in(state.root)}


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send the logs of our packages into a bounded file, since the panel has the terminal."""
    from logging.handlers import RotatingFileHandler

    class LogFile(RotatingFileHandler):
        """A log that loses what a full disk does not take; the screen says why, not the log."""

        def _open(self) -> Any:
            return open(self.baseFilename, self.mode, encoding=self.encoding, opener=private_opener)

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
    """Return all settings as PENSTOCK_* variables, with an empty settings file beside them.

    So no other file is merged in. The concurrency is left out unless it was named: workers climb to
    a default more gently."""
    nothing = state.root / "workers.toml"
    write_private(
        nothing,
        "# Empty on purpose: workers of `penstock run` get all their settings as variables.\n",
    )
    variables = {"PENSTOCK_CONFIG": str(nothing)}
    for name, value in settings.model_dump(mode="json").items():
        if value is not None and (name != "concurrency" or name in settings.model_fields_set):
            variables[f"PENSTOCK_{name.upper()}"] = (
                value if isinstance(value, str) else json.dumps(value)
            )
    return variables
