"""Room on the disks that a local job writes to, and the hold on the job while it is short.

A job is held before the disk is full, so that the answers of calls in flight, which are paid for,
can still be stored. If it fills all the same, workers keep their answers in memory and take nothing
new until they are stored.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_cli.show.progress import Wait
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import By, Code, Reason
from penstock_producer.reporting.text import one_line
from penstock_producer.storage import free_bytes

if TYPE_CHECKING:
    from penstock_cli.connect import Books

LOW_BYTES = 32 * 1024 * 1024  # room for what is in flight, the log of SQLite and the AOF of Redis
ENOUGH_BYTES = 2 * LOW_BYTES  # before a held job goes on, so that it is not held again at once

# errors of a store that runs: longer than locks, checkpoints and slow disks take
AWAY_MAX_S: Final = 300.0

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def shortage(path: Path) -> str | None:
    """Return one line on a disk that is nearly full: the place and what is free."""
    free = free_bytes(path)
    return None if free is None or free >= LOW_BYTES else f"{path} has {megabytes(free)} left"


def is_full(error: BaseException) -> bool:
    """Return whether an error says that there is no room.

    It may come from the operating system, from SQLite or from Redis."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    text = str(error).lower()
    return "disk is full" in text or "no space left" in text or "misconf" in text


def is_read_only(error: BaseException) -> bool:
    """Return whether an error says that nothing can be written there any more.

    It may come from the operating system, from SQLite or from Redis."""
    if isinstance(error, OSError):
        return error.errno == errno.EROFS
    text = str(error).lower()
    return "readonly database" in text or "read-only file system" in text


def is_held(job: Job) -> bool:
    """Return whether the job waits for room on a disk, and for nothing else."""
    return job.pause is not None and job.pause.code == Code.DISK_FULL


def megabytes(number: int) -> str:
    """Write bytes as megabytes."""
    return f"{max(0, number) / 1_000_000:,.1f} MB"


class DiskGuard:
    """Holds a job while a disk is short of room, and lets it go on. Driven by one thread."""

    def __init__(
        self,
        places: Sequence[Path],
        *,
        hold: Callable[[Reason], bool],
        go_on: Callable[[], bool],
        free: Callable[[Path], int | None] = free_bytes,
    ) -> None:
        """Watch some places.

        ``hold`` (given the reason) and ``go_on`` answer whether they changed the job's state.
        """
        self._places = list(places)
        self._hold = hold
        self._go_on = go_on
        self._free = free
        self.holds = False

    def look(self) -> Wait | None:
        """Return what is waited for; None while there is room.

        Raises what ``hold`` and ``go_on`` raise.
        """
        least = ENOUGH_BYTES if self.holds else LOW_BYTES
        short = [
            (free, place)
            for place in self._places
            if (free := self._free(place)) is not None and free < least
        ]
        if not short:
            self.holds = self.holds and not self._go_on()
            return None
        free, place = min(short)
        if not self.holds:
            room = {"place": str(place), "free_bytes": free}
            self.holds = self._hold(Reason(Code.DISK_FULL, By.CONTROL, room))
        return Wait(
            f"the disk of {place} is nearly full: no new calls until {megabytes(ENOUGH_BYTES)} are "
            "free; what is paid for is kept. Free some space and the job goes on by itself.",
            f"{megabytes(free)} are left.",
        )


class SpaceHold:
    """Pauses jobs while a disk is short of room, and lets those go on that it has paused."""

    def __init__(self, books: Books, jobs: Callable[[JobState], Iterable[Job]]) -> None:
        """``jobs`` returns those that are in a state now."""
        self._books, self._jobs = books, jobs

    def hold(self, why: Reason) -> bool:
        """Let jobs wait for space; what is asked already is answered and kept.

        It is False when that could not be written any more: then workers wait by themselves."""
        return self._moved(JobState.RUNNING, JobState.PAUSED, why)

    def go_on(self) -> bool:
        return self._moved(JobState.PAUSED, JobState.RUNNING, None)

    def _moved(self, before: JobState, to: JobState, why: Reason | None) -> bool:
        import redis
        from sqlalchemy.exc import SQLAlchemyError

        from penstock_ledger import DatabaseUnavailable

        moved = True
        try:
            for job in self._jobs(before):
                if why is None and not is_held(job):
                    continue  # something else has stopped it meanwhile
                moved &= self._books.jobs.set_state(job.job_id, to, why=why, expect={before})
                with contextlib.suppress(redis.RedisError):  # the control loop repeats it
                    self._books.redis.set_job_state(job.job_id, to)
        except (SQLAlchemyError, DatabaseUnavailable):
            return False
        return moved


class StoresAway:
    """Since when stores that run give errors. Driven by one thread."""

    def __init__(self, where: str = "") -> None:
        """``where`` says where the stores are, where that is worth telling."""
        self._where = where
        self._since: float | None = None  # monotonic

    def are_back(self) -> None:
        self._since = None

    def wait_for(self, error: Exception) -> Wait:
        """Return what to say of a store that gives errors.

        Raises the error again when it does for too long, a full disk excepted."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since > AWAY_MAX_S and not is_full(error):
            raise error
        return Wait(f"waiting for queue and ledger{self._where}: {one_line(str(error))}")
