"""A job of a call: started, followed, stopped, and read."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from penstock import place, progress
from penstock.answers import Answer, Answers, Source
from penstock.child import Child
from penstock.errors import BadCall, PenstockError, RunFailed
from penstock.rows import ListRows, Rows
from penstock_producer import JobNotFound, Producer, SourceError
from penstock_producer.tables.columns import Row, Table, text_of

__all__ = [
    "FINAL",
    "STATE",
    "Books",
    "Given",
    "Job",
    "Ledger",
    "LocalJob",
    "RunStopped",
    "Status",
]

POLL_S: Final = 0.1
_OF_REPORT: Final = ("total", "succeeded", "dead", "retries")
FINAL: Final = ("completed", "cancelled", "failed")
STATE: Final = "state"


class RunStopped(PenstockError):
    """The job is paused, and a person has to say how it goes on."""

    def __init__(self, message: str, answers: Answers) -> None:
        super().__init__(message)
        self.answers = answers


class Given(NamedTuple):
    """The input of a call: its rows, and how their answers are read."""

    rows: Rows | None  # None: the engine reads them elsewhere
    ids: Sequence[str] | None  # of the rows
    model: Callable[[str], Any] | None  # from an answer's text to what `response_format` names
    keep: str | None = None  # columns of rows that the engine reads; None: of the answers alone


class Status(NamedTuple):
    """The state of a job and its counts."""

    state: str  # running, paused, completed, …; interrupted where nothing works on it
    total: int | None
    succeeded: int
    dead: int
    cost_usd: float | None
    waits_for: str | None = None  # why it is paused, where a person has to say how it goes on


class Books(Protocol):
    """The records of one job, wherever they are."""

    @property
    def spec(self) -> Mapping[str, Any]: ...

    def is_kept(self) -> bool:
        """Return whether the job was accepted."""
        ...

    def rows(self, after: str | None = None) -> Iterator[tuple[str, Row]]:
        """Yield its outcomes as rows of its table, each with the place to go on behind it."""
        ...

    def latest(self, number: int) -> list[str]:
        """Return the newest answers, each with its document."""
        ...

    def status(self) -> Status: ...

    def report(self) -> dict[str, Any]: ...


class Ledger:
    """The books of a job in a database."""

    def __init__(self, database_url: str, key: Callable[[], str]) -> None:
        """``key`` returns the job's, which a sample gets late."""
        self._url, self._name = database_url, key

    @property
    def _key(self) -> str:
        return self._name()

    @cached_property
    def producer(self) -> Producer:
        return Producer(database_url=self._url)

    def is_kept(self) -> bool:
        try:
            self.producer.status(self._key)
        except JobNotFound:
            return False
        return True

    def rows(self, after: str | None = None) -> Iterator[tuple[str, Row]]:
        table = Table(self.spec)
        return (
            (one.cursor, table.row(one.outcome))
            for one in self.producer.outcomes(self._key, after=after)
        )

    def latest(self, number: int) -> list[str]:
        endpoint = str(self.spec["endpoint"])
        return [
            f"{one.key.doc_id}: {' '.join((text_of(endpoint, one.body) or '').split())}"
            for one in self.producer.latest(self._key, number)
        ]

    def status(self) -> Status:
        found = self.producer.status(self._key)
        counts = found.counts
        cost = None if counts.unpriced else counts.cost_microusd / 1_000_000
        job = found.job
        waits = job.state == "paused" and job.resume_at is None
        reason = (job.reason or "no reason was recorded") if waits else None
        return Status(
            str(job.state), job.total, counts.succeeded, counts.dead, cost, waits_for=reason
        )

    def report(self) -> dict[str, Any]:
        """Return the figures that a report begins with."""
        return {"job": self._key, **self.status()._asdict()}

    def source(self, keep: str) -> Source:
        """Return ids and rows of what the engine has read itself, in its order.

        Rows are None where they have no columns to keep, ids too where the source cannot be read
        again: a warning says so.
        """
        try:
            kept = self.producer.source_rows(self._key, keep_columns=keep)
            if kept is None:
                return Source(None, None)
            read = list(kept)
        except SourceError as error:
            warnings.warn(f"the source's own columns are left out: {error}", stacklevel=2)
            return Source(None, None)
        names = [column.name for column in kept.columns]
        records = [dict(zip(names, one.values, strict=True)) for one in read]
        return Source(ListRows(records) if names else None, [one.doc_id for one in read])

    @property
    def spec(self) -> Mapping[str, Any]:
        return self._spec

    @cached_property
    def _spec(self) -> Mapping[str, Any]:
        return self.producer.status(self._key).job.spec


class Job(ABC):
    """A job that goes on, or has ended; iterated, it yields each answer as it comes."""

    def __init__(self, key: str, where: str, books: Books, given: Given) -> None:
        self._key = key
        self.place = where
        self._books, self._given = books, given

    @property
    def key(self) -> str:
        return self._key

    # -- of each kind of job

    @abstractmethod
    def _ended(self, timeout_s: float) -> bool:
        """Wait for a change, at most so long; return whether the job has come to its end."""

    @abstractmethod
    def _conclude(self) -> None:
        """Raise what the job ended with, where that is no list of answers."""

    @abstractmethod
    def _view(self) -> progress.View: ...

    def _report(self) -> Mapping[str, Any]:
        return self._books.report()

    @abstractmethod
    def stop(self) -> None:
        """Stop the job in an orderly way; the same call goes on."""

    @abstractmethod
    def leave(self, draw: Callable[[], None] = lambda: None) -> None:
        """Do what an interrupt of the call does to the job, and return once that is done."""

    @abstractmethod
    def left(self) -> str:
        """Return what to say after that."""

    @abstractmethod
    def forget(self) -> None:
        """Remove all that is kept of the job."""

    # -- of all

    @property
    def status(self) -> Status:
        return self._books.status()

    @property
    def answers(self) -> Answers:
        """Return the answers that there are so far."""
        return Answers(
            job=self.key,
            place=self.place,
            source=self._source,
            spec=self._books.spec,
            outcomes=lambda: (row for _, row in self._books.rows()),
            report=self._report(),
            model=self._given.model,
            forget=self.forget,
        )

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> Answers:
        """Wait until the job has ended, and return its answers.

        Raises TimeoutError, RunStopped, RunFailed and BadCall. An interrupt ends the waiting, not
        the job.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with _Drawn(self, progress) as drawn:
            while not self._ended(POLL_S):
                drawn.draw()
                if until is not None and time.monotonic() >= until:
                    raise TimeoutError(f"job {self.key} has not ended within {timeout:g} s")
        self._conclude()
        return self.answers

    def waited_or_left(self, *, progress: bool) -> Answers:
        """Wait as ``wait`` does; an interrupt ends what this process does for the job, too."""
        try:
            with _Drawn(self, progress) as drawn:
                try:
                    while not self._ended(POLL_S):
                        drawn.draw()
                except KeyboardInterrupt:
                    self.leave(drawn.draw)
                    raise
            self._conclude()
            return self.answers
        except KeyboardInterrupt:
            self.leave()  # at once, where that is done
            raise KeyboardInterrupt(self.left()) from None

    def __await__(self) -> Generator[Any, None, Answers]:
        return self.awaited(progress=False).__await__()

    async def awaited(self, *, progress: bool) -> Answers:
        with _Drawn(self, progress) as drawn:
            while not self._ended(0):
                drawn.draw()
                await asyncio.sleep(POLL_S)
        self._conclude()
        return await asyncio.to_thread(lambda: self.answers)

    def __iter__(self) -> Iterator[Answer]:
        cursor: str | None = None
        numbers: Mapping[str, int] = {}
        while True:
            has_ended = self._ended(POLL_S)
            if has_ended:
                self._conclude()
            if not self._is_kept():
                continue
            numbers = numbers or {name: number for number, name in enumerate(self._given.ids or ())}
            table = Table(self._books.spec)
            at = {column.name: place for place, column in enumerate(table.columns)}
            for place_behind, row in self._books.rows(cursor):
                cursor = place_behind
                yield self._answer(row, at, numbers)
            if has_ended:
                return

    def _is_kept(self) -> bool:
        """Return whether there are books of the job to look at by now."""
        return True

    def _source(self) -> Source:
        return Source(self._given.rows, self._given.ids)

    def _answer(self, row: Row, at: Mapping[str, int], numbers: Mapping[str, int]) -> Answer:
        rows, number = self._given.rows, numbers.get(row[0], -1)
        return Answer(
            number,
            row[0],
            at,
            row,
            lambda: None if rows is None else rows.record(number),
            self._given.model,
        )

    def __repr__(self) -> str:
        if not self._is_kept():
            return f"<Job {self.key}: starting>"
        now = self.status
        of = "?" if now.total is None else f"{now.total:,}"
        return f"<Job {self.key}: {now.state}, {now.succeeded + now.dead:,} of {of} rows>"


class LocalJob(Job):
    """A job that a process of this one works on."""

    def __init__(self, folder: Path, key: str, given: Given, child: Child | None) -> None:
        """Follow the run of ``child``; without one the job has ended, and is only read."""
        self._ledger = Ledger(_url(folder), lambda: self.key)
        super().__init__(key, str(folder), self._ledger, given)
        self._folder, self._child = folder, child

    @property
    def status(self) -> Status:
        found = super().status
        works = self._child is not None and self._child.status is None
        return found if works or found.state in FINAL else found._replace(state="interrupted")

    @property
    def has_ended(self) -> bool:
        """Return whether an earlier call has brought it to its end."""
        return self._is_kept() and self.status.state in FINAL

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()

    def forget(self) -> None:
        place.forget(self._folder)

    def leave(self, draw: Callable[[], None] = lambda: None) -> None:
        """Stop it and wait until its processes are gone; another interrupt makes it hurry."""
        child = self._child
        while child is not None and child.status is None:
            try:
                child.stop()
                while not child.wait(POLL_S):
                    draw()
            except KeyboardInterrupt:
                continue

    def left(self) -> str:
        if not self._is_kept():
            return f"stopped before anything was paid; job {self.key}"
        now = self.status
        cost = "" if now.cost_usd is None else f", for ${now.cost_usd:.4f}"
        return (
            f"stopped: {now.succeeded + now.dead:,} of {now.total:,} rows are finished and kept in "
            f"{self.place}{cost}. The same call goes on (run the cell again); "
            f"penstock.forget({self.place!r}) begins anew"
        )

    def _ended(self, timeout_s: float) -> bool:
        return self._child is None or self._child.wait(timeout_s)

    @property
    def key(self) -> str:
        """Return the key of the sample, where one is asked for and was drawn, else the job's."""
        return (self._child and self._child.job) or super().key

    def _source(self) -> Source:
        if self._given.keep is not None:
            return self._ledger.source(self._given.keep)
        if self.key == super().key or self._given.rows is None or self._given.ids is None:
            return super()._source()
        drawn = set(self._ledger.source("none").ids or ())
        numbers = [at for at, doc_id in enumerate(self._given.ids) if doc_id in drawn]
        ids = [self._given.ids[at] for at in numbers]
        return Source(self._given.rows.take(numbers), ids)

    def _conclude(self) -> None:
        child = self._child
        if child is None or child.report is not None:
            return
        error = child.error
        if error is None:
            raise RunFailed(self.left() if child.stopped else child.failure())
        if error["kind"] == "usage":
            if not self._database.is_file():  # what was refused leaves nothing behind
                shutil.rmtree(self._folder, ignore_errors=True)
            raise BadCall(error["message"])
        if error["kind"] == "stopped":
            raise RunStopped(error["message"], self.answers)
        raise RunFailed(error["message"])

    def _is_kept(self) -> bool:
        child = self._child
        if child is not None and child.status is None and not child.figures:
            return False  # it may still make the tables
        return self._database.is_file() and self._books.is_kept()

    @property
    def _database(self) -> Path:
        return self._folder / STATE / "penstock.db"

    def _view(self) -> progress.View:
        child = self._child
        if child is None:
            return progress.View(self.key, {}, None)
        figures = child.figures
        if figures and child.report is not None:  # the last look was before the last answers
            report = child.report
            figures = {**figures, **{name: report[name] for name in _OF_REPORT}}
            figures["cost_microusd"] = round((report["known_usd"] or 0) * 1_000_000)
            figures["unpriced"] = report["cost_usd"] is None
        elif figures and child.status is not None:
            now = self.status
            figures = {**figures, "succeeded": now.succeeded, "dead": now.dead}
        return progress.View(self.key, figures, child.note, (), child.said)

    def _report(self) -> Mapping[str, Any]:
        if self._child is not None and self._child.report is not None:
            return self._child.report
        if self._child is None:
            with suppress(OSError, ValueError):
                kept: dict[str, Any] = json.loads((self._folder / "report.json").read_bytes())
                return kept
        return super()._report()


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / STATE / 'penstock.db'}"


class _Drawn:
    """The bar of a job while someone waits for it."""

    def __init__(self, job: Job, wanted: bool) -> None:
        self._job, self._wanted = job, wanted
        self._next = 0.0
        self._latest: Sequence[str] = ()
        self._bar = progress.bar(wanted)

    def __enter__(self) -> _Drawn:
        return self

    def draw(self) -> None:
        if not self._wanted:
            return
        view = self._job._view()
        if view.figures.get("succeeded") and time.monotonic() >= self._next:
            self._next = time.monotonic() + progress.LATEST_EVERY_S
            found = self._job._books.latest(progress.LATEST)
            self._latest = [text[: progress.LATEST_CHARS] for text in found]
        self._bar.show(view._replace(latest=self._latest))

    def __exit__(self, *_: object) -> None:
        self.draw()
        self._bar.close()
