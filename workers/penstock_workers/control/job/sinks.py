"""Writes a job's results in a fleet: what grows while it runs, and the rest before it is complete.

A pass that fails is tried again, later and later, and the job runs on meanwhile. It is paused with
the reason where trying again cannot help, and at its end where that did not help; once it is
resumed it goes on where it was. Passes run in threads, so one job's files hold up no other job's
feeding.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from penstock_ledger import PlaceLost
from penstock_ledger.model import Job
from penstock_ledger.reasons import By, Code, Reason, explain
from penstock_producer.errors import ProducerError, SinkTaken, SinkUnfit
from penstock_producer.job.spec import JobSpec

log = logging.getLogger(__name__)

PASS_EVERY_S: Final = 5.0  # of what grows; each pass that finds news is a few transactions
PASSES_AT_ONCE: Final = 4  # one database that hangs holds up one of them
FILES_AT_ONCE: Final = 1  # each has some buffers in memory
TRIES: Final = 8  # in a row, at the end of a job: six minutes with the pauses between them
RETRY_BASE_S: Final = 5.0
RETRY_CAP_S: Final = 120.0


class Sink(Protocol):
    """A place for a job's results.

    ``write`` runs in a thread of its own, one at a time for each job; calling it again writes
    nothing twice.
    """

    @property
    def name(self) -> str: ...

    @property
    def grows(self) -> bool:
        """Return whether it is written while the job runs."""
        ...

    def is_wanted(self, spec: JobSpec) -> bool: ...

    def write(self, job: Job, spec: JobSpec, *, whole: bool) -> None:
        """Write what is new, or everything when ``whole``.

        All outcomes of the job are there then."""
        ...

    def forget(self, job_id: str) -> None: ...


class SinkGivenUp(ProducerError):
    """A job's results cannot be written, as far as can be seen from here."""

    def __init__(self, error: Exception) -> None:
        self.reason = Reason(Code.RESULTS_NOT_WRITTEN, By.CONTROL, {"detail": str(error)})
        super().__init__(explain(self.reason))


@dataclass
class _Progress:
    """The progress of one sink of one job."""

    next_at: float = 0.0  # monotonic: of the next pass while the job runs
    not_before: float = 0.0  # monotonic: after a failure
    failures: int = 0  # in a row
    begun_whole: bool = False
    is_whole: bool = False


class Key(NamedTuple):
    """The purpose of a piece of work. One at a time has it."""

    job_id: str
    generation: int
    sink: str


class Background:
    """Runs at most ``at_once`` pieces of work at a time; a later round starts what finds no room.

    The threads are daemons: the process that leads the job next does all of it again, so no end of
    a process waits for them. ``start`` and ``ended`` belong to the control thread.
    """

    def __init__(self, at_once: int, on_ended: Callable[[], None]) -> None:
        self._at_once = at_once
        self._on_ended = on_ended  # called in the working thread, after success and failure
        # bounded by the jobs that are led here, and their sinks
        self._work: dict[Key, Future[None]] = {}

    def start(self, key: Key, work: Callable[[], None]) -> bool:
        """Start the work in a thread, unless it is under way or there is no room now.

        Return whether it was started."""
        under_way = sum(not future.done() for future in self._work.values())
        if key in self._work or under_way >= self._at_once:
            return False
        future = self._work[key] = Future()
        threading.Thread(target=self._run, args=(work, future), name=key.sink, daemon=True).start()
        return True

    def ended(self, key: Key) -> bool:
        """Return True once after the work that was started with this key has ended.

        Raises what the work raised."""
        future = self._work.get(key)
        if future is None or not future.done():
            return False
        del self._work[key]
        future.result()
        return True

    def keep_only(self, live: Collection[str]) -> None:
        """Forget what ended for jobs that are not live any more."""
        self._work = {
            key: future
            for key, future in self._work.items()
            if key.job_id in live or not future.done()
        }

    def _run(self, work: Callable[[], None], future: Future[None]) -> None:
        try:
            work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        self._on_ended()


class JobSinks:
    """Writes results, on the control thread of the process that leads the job's last generation."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        on_ended: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sinks = sinks
        self._passes = Background(PASSES_AT_ONCE, on_ended)
        self._files = Background(FILES_AT_ONCE, on_ended)
        self._progress: dict[Key, _Progress] = {}
        self._begun: set[str] = set()  # jobs of which a sink may hold something
        self._clock = clock

    def look(self, job: Job, spec: JobSpec) -> None:
        """Begin the passes that are due for a running job.

        Raises SinkGivenUp."""
        for sink in self._sinks:
            if sink.grows and sink.is_wanted(spec):
                self._turn(sink, job, spec, whole=False)

    def written(self, job: Job, spec: JobSpec) -> bool:
        """Write everything, now that all outcomes are there; return True once every sink has them.

        Raises SinkGivenUp."""
        wanted = [sink for sink in self._sinks if sink.is_wanted(spec)]
        # each begins, whatever others do
        turns = [self._turn(sink, job, spec, whole=True) for sink in wanted]
        return all(turns)

    def keep_only(self, live: Collection[str]) -> None:
        """Forget jobs that have ended."""
        for key in [key for key in self._progress if key.job_id not in live]:
            del self._progress[key]
        for job_id in self._begun.difference(live):
            self._begun.discard(job_id)
            for sink in self._sinks:
                sink.forget(job_id)
        self._passes.keep_only(live)
        self._files.keep_only(live)

    def _turn(self, sink: Sink, job: Job, spec: JobSpec, *, whole: bool) -> bool:
        key = Key(job.job_id, job.generation, sink.name)
        progress = self._progress.setdefault(key, _Progress())
        self._begun.add(job.job_id)
        if progress.is_whole:
            return True
        work = self._passes if sink.grows else self._files
        if self._has_ended(work, key, progress):
            progress.failures = 0
            progress.next_at = self._clock() + PASS_EVERY_S
            progress.is_whole = progress.begun_whole
        if progress.is_whole:
            return True
        due = progress.not_before if whole else max(progress.not_before, progress.next_at)
        if self._clock() >= due and work.start(key, lambda: sink.write(job, spec, whole=whole)):
            if whole and not progress.begun_whole:
                progress.failures = 0
            progress.begun_whole = whole
        return False

    def _has_ended(self, work: Background, key: Key, progress: _Progress) -> bool:
        """Return whether a pass has just ended well. Raises SinkGivenUp."""
        try:
            return work.ended(key)
        except SinkTaken as error:
            log.info("job %s: %s", key.job_id, error)
            progress.not_before = self._clock() + PASS_EVERY_S
            return False
        except Exception as error:
            progress.failures += 1
            if isinstance(error, SinkUnfit | PlaceLost) or (
                progress.begun_whole and progress.failures >= TRIES
            ):
                del self._progress[key]  # once the job is resumed it begins anew
                raise SinkGivenUp(error) from error
            wait_s = min(RETRY_CAP_S, RETRY_BASE_S * 2 ** (progress.failures - 1))
            progress.not_before = self._clock() + wait_s
            log.warning(
                "job %s: results could not be written (%s), tried again in %.0f s: %s: %s",
                key.job_id,
                key.sink,
                wait_s,
                type(error).__name__,
                error,
            )
            return False
