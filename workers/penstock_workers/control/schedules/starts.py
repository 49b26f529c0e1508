"""Keeps submits that are under way, in threads.

Reading a source may take long or hang, and must hold up neither jobs nor other schedules."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from penstock_ledger import Schedule

STARTS_AT_ONCE = 4  # threads: one source that hangs leaves the others three
OVERDUE_S = 3_900.0  # a submit ends its reading after an hour; one that has not ended by now hangs


@dataclass(frozen=True, slots=True)
class Started:
    """The result of a start: a job, or none, and why."""

    job_id: str | None
    why_not: str | None = None
    waits: bool = False  # for what ``why_not`` says: the time is not decided yet
    read: bytes | None = None  # what was read in vain, and need not be read again


@dataclass(frozen=True, slots=True)
class Start:
    """The job of one planned time, being submitted."""

    schedule: Schedule
    result: Future[Started]
    began: float  # monotonic seconds

    @property
    def hangs(self) -> bool:
        return not self.result.done() and time.monotonic() - self.began > OVERDUE_S


class Starts:
    """The starts under way, each in a thread of its own. For the control thread.

    The threads are daemons: the process that holds the schedule next submits the same job."""

    def __init__(self, start: Callable[[Schedule], Started], on_ended: Callable[[], None]) -> None:
        self._start = start
        self._on_ended = on_ended  # called in the starting thread
        self._under_way: dict[str, Start] = {}  # by schedule id; at most STARTS_AT_ONCE
        self._given_up: list[Start] = []  # whose threads still hang: they count until they end

    def __contains__(self, schedule_id: str) -> bool:
        return schedule_id in self._under_way

    @property
    def has_room(self) -> bool:
        self._given_up = [start for start in self._given_up if not start.result.done()]
        return len(self._under_way) + len(self._given_up) < STARTS_AT_ONCE

    def begin(self, schedule: Schedule) -> None:
        start = Start(schedule, Future(), time.monotonic())
        self._under_way[schedule.schedule_id] = start
        threading.Thread(
            target=self._run, args=(start,), name="schedule-start", daemon=True
        ).start()

    def running(self) -> Sequence[Start]:
        return [
            start
            for start in self._under_way.values()
            if not start.result.done() and not start.hangs
        ]

    def ended(self) -> Sequence[Start]:
        """Return the starts that are done, failed or hanging, each until it is forgotten."""
        return [start for start in self._under_way.values() if start.result.done() or start.hangs]

    def forget(self, start: Start) -> None:
        """Forget a start, once it is written down what came of it."""
        del self._under_way[start.schedule.schedule_id]
        if not start.result.done():
            self._given_up.append(start)

    def _run(self, start: Start) -> None:
        try:
            start.result.set_result(self._start(start.schedule))
        except BaseException as error:
            start.result.set_exception(error)
        self._on_ended()
