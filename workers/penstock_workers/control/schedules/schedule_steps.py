"""Decides the planned times of schedules that have come, one at a time for each schedule.

Any control process does it. Holding a schedule is a lease in SQL, and each planned time has one job
key, so a process that dies between the submit and writing it down is followed by one that finds the
job.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from penstock_ledger import (
    DatabaseUnavailable,
    Decision,
    FiringOutcome,
    PenstockError,
    Schedule,
    ScheduleStore,
)
from penstock_ledger.redaction import redact
from penstock_producer.errors import (
    ScheduleError,
    SinkError,
    SinkUnfit,
    SourceForbidden,
    SourceUnavailable,
)
from penstock_producer.pins import DOOR, REMOTE
from penstock_producer.schedules.timetable import Due, Timetable, due
from penstock_workers.control.schedules.comparing import Comparing
from penstock_workers.control.schedules.starts import Start, Started, Starts
from penstock_workers.decided_times import DecidedTimes
from penstock_workers.failure_log import FailureLog

log = logging.getLogger(__name__)

LOOK_S = 5.0  # between looks at what is due: a planned time is a whole minute
HOLD_S = 60.0  # a process that dies while it starts a job is followed after this
RETRY_S = 60.0  # a source that is not there yet is looked for again, so often:
TRIES_MAX = 5
WAIT_S = 15.0  # an earlier job that has not ended is asked about again
REASON_CHARS = 1_000


class ScheduleSteps:
    """Starts the jobs of schedules when their time has come, on the control thread."""

    def __init__(
        self,
        store: ScheduleStore,
        start: Callable[[Schedule], Started],
        *,
        owner: str,
        on_ended: Callable[[], None],
        firings: Counter[FiringOutcome],
        comparing: Comparing,
        decided: DecidedTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the steps of one control process.

        ``start`` submits the job of a planned time, in a thread; ``firings`` counts what came of
        the times decided here, and ``decided``, which has a bound, gets each of them.
        """
        self._store = store
        self._owner = owner
        self._firings = firings
        self._comparing = comparing
        self._decided = decided
        self._clock = clock
        self._starts = Starts(start, on_ended)
        self._failures = FailureLog(log)
        self._next_look = 0.0

    def look(self) -> None:
        """Take one bounded step for each schedule that is due.

        Raises the database's errors; the next look goes on."""
        for start in self._starts.ended():
            self._guarded(start.schedule, partial(self._write_down, start))
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + LOOK_S
        self._comparing.look()
        for start in self._starts.running():
            self._store.hold(start.schedule, self._owner, HOLD_S)
        now, found = self._store.due()
        for schedule in found:
            if schedule.schedule_id not in self._starts:
                self._guarded(schedule, partial(self._step, schedule, now))

    def close(self) -> None:
        """Let others go on at once. A submit that is under way leaves a job, or nothing."""
        self._store.release(self._owner)

    def _step(self, schedule: Schedule, now: float) -> None:
        if not self._starts.has_room or not self._store.hold(schedule, self._owner, HOLD_S):
            return
        try:
            timetable = Timetable(schedule.cron, schedule.timezone)
        # this machine knows fewer zones than the one it was added on
        except ScheduleError as error:
            self._store.wait(schedule, self._owner, str(error), retry_at=now + RETRY_S)
            return
        step = due(timetable, schedule.catch_up, schedule.next_at, now)
        if not step.start:
            self._skip(schedule, timetable, step)
            return
        earlier = None if schedule.overlap else self._store.running(schedule.schedule_id)
        if earlier is not None:
            why = f"job {earlier} of an earlier time has not ended"
            self._store.wait(schedule, self._owner, why, retry_at=now + WAIT_S)
            return
        ended = self._comparing.waits_for(schedule.schedule_id, schedule.drift)
        if ended is not None:
            why = f"job {ended} is being compared with the run before"
            self._store.wait(schedule, self._owner, why, retry_at=now + LOOK_S)
            return
        self._starts.begin(schedule)

    def _skip(self, schedule: Schedule, timetable: Timetable, step: Due) -> None:
        """Decide that a planned time has passed.

        It has failed if it was tried in vain; else it was skipped."""
        outcome = FiringOutcome.FAILED if schedule.tries else FiringOutcome.SKIPPED
        why = schedule.waits_for or "no control process was there to start it"
        reason = (
            f"missed ({why}); catch-up is {schedule.catch_up}, next is {timetable.shown(step.then)}"
        )
        decision = Decision(schedule.next_at, outcome, step.then, reason=reason)
        if self._decide(schedule, decision):
            log.warning(
                "schedule %s: %s: %s", schedule.name, timetable.shown(schedule.next_at), reason
            )

    def _write_down(self, start: Start) -> None:
        schedule = start.schedule
        timetable = Timetable(schedule.cron, schedule.timezone)
        then, shown = timetable.after(schedule.next_at), timetable.shown(schedule.next_at)
        error = _error_of(start)
        if error is None:
            self._started(schedule, start.result.result(), then, shown)
        else:
            self._failed(schedule, error, then, shown)
        self._starts.forget(start)

    def _started(self, schedule: Schedule, started: Started, then: float, shown: str) -> None:
        if started.waits:
            retry_at = self._store.now() + WAIT_S
            self._store.wait(schedule, self._owner, str(started.why_not), retry_at=retry_at)
            return
        if started.job_id is None:
            outcome, why = FiringOutcome.NOTHING_NEW, started.why_not
            self._decide(
                schedule, Decision(schedule.next_at, outcome, then, reason=why, taken=started.read)
            )
            return
        decision = Decision(schedule.next_at, FiringOutcome.STARTED, then, job_id=started.job_id)
        if self._decide(schedule, decision):
            # not INFO, which processes leave out: a night's work began, and this is the only line
            # that says so
            log.warning("schedule %s: %s: started job %s", schedule.name, shown, started.job_id)

    def _failed(self, schedule: Schedule, error: BaseException, then: float, shown: str) -> None:
        why = redact(str(error) or type(error).__name__)[:REASON_CHARS]
        told = _told(schedule, error)[:REASON_CHARS]
        tries = schedule.tries + 1
        if _may_pass(error) and tries < TRIES_MAX:
            nth = f"try {tries} of {TRIES_MAX}"
            retry_at = self._store.now() + RETRY_S
            self._store.wait(schedule, self._owner, f"{nth}: {told}", retry_at=retry_at, tried=True)
            log.warning(
                "schedule %s: %s: %s: %s; tried again in %g s",
                schedule.name,
                shown,
                nth,
                why,
                RETRY_S,
            )
            return
        decision = Decision(schedule.next_at, FiringOutcome.FAILED, then, reason=told)
        if self._decide(schedule, decision):
            log.error("schedule %s: %s: no job was started: %s", schedule.name, shown, why)

    def _decide(self, schedule: Schedule, decision: Decision) -> bool:
        """Write a decision down.

        Return False when another process was first, which counts it."""
        is_ours = self._store.decide(schedule, decision)
        if is_ours:
            self._firings[decision.outcome] += 1
            if self._decided is not None:
                self._decided.append((schedule, decision))
        return is_ours

    def _guarded(self, schedule: Schedule, work: Callable[[], None]) -> None:
        """Do the work of one schedule, whose trouble does not stop the others."""
        try:
            work()
        except Exception as error:
            self._failures.tell(
                "control: a schedule could not be looked after",
                error,
                f"{schedule.name} is looked after again in {LOOK_S:g} s",
                level=logging.ERROR,
            )


def _error_of(start: Start) -> BaseException | None:
    if start.hangs:
        return TimeoutError(
            "reading the source hangs; look at the file system or the network that it lies on"
        )
    return start.result.exception()


def _told(schedule: Schedule, error: BaseException) -> str:
    """Return what is kept with the schedule of an error; the log has it all.

    Of a schedule that a remote door has added, only what its caller may know."""
    if schedule.source.get(DOOR) != REMOTE:
        return redact(str(error) or type(error).__name__)
    return (
        redact(error.public_message)
        if isinstance(error, PenstockError)
        else "the source could not be read"
    )


def _may_pass(error: BaseException) -> bool:
    """Return whether an error may pass by itself.

    A source, a database or a place for results that is away, a full disk, and what was not foreseen
    may pass; what only an edit corrects does not.
    """
    if isinstance(error, PenstockError):
        away = isinstance(error, SourceUnavailable | DatabaseUnavailable | SinkError)
        return away and not isinstance(error, SourceForbidden | SinkUnfit)
    return not isinstance(error, TimeoutError)
