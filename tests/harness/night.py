"""Control processes that look after schedules step by step, with a clock that is set by hand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock_ledger import (
    Database,
    Firing,
    FiringOutcome,
    JobStore,
    NoticedStore,
    Schedule,
    ScheduleStore,
    open_database,
)
from penstock_producer import Producer, ProducerSettings, Schedules
from penstock_producer.accepting.remote_limits import RemoteLimits
from penstock_workers.control.schedules.comparing import Comparing
from penstock_workers.control.schedules.schedule_steps import LOOK_S, ScheduleSteps
from penstock_workers.control.schedules.start_job import start_job
from penstock_workers.control.schedules.starts import Started

SPEC = {"prompt": "Summarise: {text}", "model": "m"}
DAY = 86_400.0
NOON = datetime(2026, 3, 9, 12, tzinfo=UTC).timestamp()
ONE = datetime(2026, 3, 10, 1, tzinfo=UTC).timestamp()  # the first night


@contextmanager
def ledger_of(request: pytest.FixtureRequest, folder: Path) -> Iterator[Database]:
    """A ledger on the database that the parameter names."""
    url = (
        f"sqlite:///{folder}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    database = open_database(url, pool_size=8)
    database.migrate()
    try:
        yield database
    finally:
        database.close()


class Night:
    """A ledger, a clock that is set by hand, a source, and any number of control processes."""

    def __init__(
        self, db: Database, folder: Path, settings: ProducerSettings | None = None
    ) -> None:
        self.now = NOON
        self.db = db
        self.store = ScheduleStore(db, clock=lambda: self.now)
        self.jobs = JobStore(db)
        self.producer = Producer(settings or ProducerSettings(), database=db)
        self.remote = Producer(
            settings or ProducerSettings(),
            database=db,
            remote_limits=RemoteLimits(names_tenants=False),
        )
        self.noticed = NoticedStore(db)
        self.schedules = Schedules(
            self.store,
            self.noticed,
            lambda spec: self.producer._new.accepted(spec),
            self.producer._probe.check,
        )
        self.source = folder / "tickets.jsonl"
        self.write("first")

    def write(self, text: str, source: Path | None = None) -> None:
        (source or self.source).write_text(f'{{"id": 1, "text": "{text}"}}\n')

    def add(self, name: str = "nightly", cron: str = "0 1 * * *", **more: object) -> Schedule:
        source = more.pop("source", self.source)
        return self.schedules.add(name, cron, source, SPEC, **more)  # type: ignore[arg-type]  # as each test says

    def control(self, owner: str, start: Callable[[Schedule], Started] | None = None) -> Process:
        return Process(self, owner, start or self.start)

    def start(self, schedule: Schedule) -> Started:
        """What a control process does at a planned time."""
        return start_job(self.producer, self.remote, self.jobs, self.store, self.noticed, schedule)

    def firings(self, name: str = "nightly") -> list[Firing]:
        return self.schedules.firings(name, 100)

    def outcomes(self, name: str = "nightly") -> list[FiringOutcome]:
        """Oldest first."""
        return [firing.outcome for firing in reversed(self.firings(name))]


class Process:
    """One control process's part in schedules."""

    def __init__(self, night: Night, owner: str, start: Callable[[Schedule], Started]) -> None:
        self._clock = 0.0
        self.firings: Counter[FiringOutcome] = Counter()
        self.compared: Counter[str] = Counter()
        self.steps = ScheduleSteps(
            night.store,
            start,
            owner=owner,
            on_ended=lambda: None,
            firings=self.firings,
            comparing=Comparing(night.db, self.compared),
            clock=lambda: self._clock,
        )

    def look(self) -> None:
        """One look; what it starts goes on in a thread."""
        self._clock += LOOK_S
        self.steps.look()

    def turn(self, looks: int = 4) -> None:
        """Look some times, each time until what was started has ended."""
        for _ in range(looks):
            self.look()
            join_starts()
        self.look()


def join_starts() -> None:
    for thread in threading.enumerate():
        if thread.name in ("schedule-start", "schedule-compare"):
            thread.join(30)
