"""Schedules whose jobs read the outcomes of other jobs, on SQLite and on a real PostgreSQL, with a
played clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from night import DAY, ONE, Night, ledger_of

from penstock_ledger import (
    DeadLetter,
    FiringOutcome,
    ItemKey,
    Job,
    JobState,
    OutcomeStore,
    Result,
    Schedule,
    ScheduleNotFound,
    purge_job,
)
from penstock_producer import OutcomesOf, ScheduleError, SpecError
from penstock_producer.rows import Document
from penstock_producer.sources.of_feed import open_feed_source
from penstock_workers.control.schedules.schedule_steps import WAIT_S

AGAIN = {"model": "large"}
CHECK = {"prompt": "Is {answer} right?", "model": "judge"}


class Drafts(Night):
    """A schedule `nightly` at one o'clock, and one over its outcomes at four."""

    def over(
        self, spec: dict[str, Any] | None = None, name: str = "again", **more: Any
    ) -> Schedule:
        over = OutcomesOf(**{"schedule": "nightly", **more})
        return self.schedules.add(name, "0 4 * * *", over, spec or AGAIN, overlap=True)

    def nth_night(self, nth: int, *, hours: float = 0.0) -> None:
        self.now = ONE + nth * DAY + hours * 3600 + 1
        self.control("a").turn()

    def end(self, job: Job, *, dead: str = "1", generation: int = 1) -> None:
        """All that the job has left dies or, with ``dead`` empty, is answered."""
        key = ItemKey(job.job_id, generation, "1")
        body = orjson.dumps({"choices": [{"message": {"content": "yes"}}]})
        request = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "words"}]})
        results = [] if dead else [Result(key, 200, body, None, "m", "stop", 10, 5, 300, 1, 1, 1)]
        letters = (
            [DeadLetter(key, "context_overflow", 1, 1, "it was too long", 400, request, None)]
            if dead
            else []
        )
        OutcomeStore(self.db).settle(results, letters)
        self.jobs.set_state(job.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])

    def draft(self, nth: int = 0) -> Job:
        return self.jobs.get(f"nightly@2026-03-1{nth}T01:00Z")

    def second(self, nth: int = 0) -> Job:
        return self.jobs.get(f"again@2026-03-1{nth}T04:00Z")

    def models(self, job: Job) -> list[tuple[str, str]]:
        """The model that each document asks."""
        rows = open_feed_source(self.db, job.job_id, 1).documents({})
        return [
            (row.doc_id, orjson.loads(row.body)["model"])
            for row in rows
            if isinstance(row, Document)
        ]


@pytest.fixture(params=["sqlite", "postgresql"])
def drafts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Drafts]:
    with ledger_of(request, tmp_path) as database:
        made = Drafts(database, tmp_path)
        made.add(overlap=True)
        yield made


def test_each_night_what_died_is_asked_of_a_larger_model(drafts: Drafts) -> None:
    """Each time the job that ended since: its dead letters, with the second schedule's model, and
    its mark."""
    drafts.over(where=("status=dead",))
    for nth in range(2):
        drafts.nth_night(nth)
        drafts.end(drafts.draft(nth))
        drafts.nth_night(nth, hours=3)
        job = drafts.second(nth)
        assert drafts.models(job) == [("1", "large")]
        assert job.source["job_id"] == drafts.draft(nth).job_id
    assert drafts.outcomes("again") == [FiringOutcome.STARTED] * 2


def test_a_job_is_read_once(drafts: Drafts) -> None:
    """A night without a new job has nothing new, and says of which job the outcomes were read
    already."""
    drafts.over()
    drafts.nth_night(0)
    drafts.end(drafts.draft())
    drafts.schedules.pause("nightly")
    for nth in range(3):
        drafts.nth_night(nth, hours=3)
    assert drafts.outcomes("again") == [FiringOutcome.STARTED, FiringOutcome.NOTHING_NEW]
    assert "job nightly@2026-03-10T01:00Z were read" in str(drafts.firings("again")[0].reason)


def test_one_that_still_runs_is_waited_for(drafts: Drafts) -> None:
    """Not failed, however long it takes: the list says which job, and once that has ended the
    second one starts."""
    drafts.over()
    drafts.nth_night(0)
    drafts.nth_night(0, hours=3)
    assert drafts.firings("again") == []
    waits = drafts.store.get("again")
    assert waits.waits_for == "job nightly@2026-03-10T01:00Z, whose outcomes are read, is running"
    assert waits.tries == 0
    drafts.end(drafts.draft())
    drafts.now += WAIT_S + 1
    drafts.control("a").turn()
    assert drafts.outcomes("again") == [FiringOutcome.STARTED]


def test_an_older_job_is_read_while_a_newer_one_runs(drafts: Drafts) -> None:
    """A schedule whose jobs always overlap is followed, too."""
    drafts.over()
    for nth in range(2):
        drafts.nth_night(nth)
    drafts.end(drafts.draft(0))
    drafts.nth_night(1, hours=3)
    assert drafts.second(1).source["job_id"] == drafts.draft(0).job_id


def test_of_a_job_that_was_replayed_only_the_new_outcomes_are_read(drafts: Drafts) -> None:
    """A named job may be replayed and end again: what an earlier job of the schedule has is not
    read, and paid for, twice."""
    first = drafts.producer.submit(
        drafts.source, {"prompt": "{text}", "model": "m"}, job_key="first"
    )
    drafts.end(first)
    drafts.over(schedule=None, job="first")
    drafts.nth_night(0, hours=3)
    assert drafts.second(0).total == 1
    drafts.producer.replay("first")
    drafts.end(first, generation=2)
    drafts.nth_night(1, hours=3)
    job = drafts.second(1)
    rows = list(open_feed_source(drafts.db, job.job_id, 1).documents({}))
    assert [row.cursor["generation"] for row in rows] == [2]
    drafts.nth_night(2, hours=3)
    assert drafts.outcomes("again") == [
        FiringOutcome.STARTED,
        FiringOutcome.STARTED,
        FiringOutcome.NOTHING_NEW,
    ]


def test_conditions_that_nothing_satisfies_are_no_failure(drafts: Drafts) -> None:
    """A night in which nothing died has no second pass; the job is not looked through again."""
    drafts.over(where=("status=dead",))
    drafts.nth_night(0)
    drafts.end(drafts.draft(), dead="")
    for nth in range(2):
        drafts.schedules.pause("nightly")
        drafts.nth_night(nth, hours=3)
        said = str(drafts.firings("again")[0].reason)
        assert ("no outcome of job" in said) if nth == 0 else ("were read" in said)
    assert drafts.outcomes("again") == [FiringOutcome.NOTHING_NEW]


def test_what_is_gone_is_named(drafts: Drafts) -> None:
    """A schedule that was removed, and a job that was purged or never was: the time has failed,
    with a reason that names it."""
    drafts.over()
    first = drafts.producer.submit(
        drafts.source, {"prompt": "{text}", "model": "m"}, job_key="first"
    )
    drafts.end(first)
    drafts.over(name="of-job", schedule=None, job="first")
    purge_job(drafts.db, first.job_id)
    drafts.schedules.remove("nightly")
    drafts.nth_night(0, hours=3)
    for name, gone in (("again", "nightly"), ("of-job", "first")):
        assert drafts.outcomes(name) == [FiringOutcome.FAILED]
        assert gone in str(drafts.firings(name)[0].reason)


def test_a_process_that_dies_after_its_submit_reads_nothing_twice(drafts: Drafts) -> None:
    """What a job reads is written with it: the successor finds the job, and the next night the
    outcomes are taken."""
    schedule = drafts.over()
    drafts.nth_night(0)
    drafts.end(drafts.draft())
    drafts.now = schedule.next_at + 1
    drafts.start(schedule)
    drafts.schedules.pause("nightly")
    for nth in range(2):
        drafts.nth_night(nth, hours=3)
    assert drafts.outcomes("again") == [FiringOutcome.STARTED, FiringOutcome.NOTHING_NEW]
    assert len(drafts.jobs.list()) == 2


def test_what_could_never_work_is_refused_when_it_is_added(drafts: Drafts) -> None:
    """Conditions that are none, a schedule that is not there, one that reads itself, and a name
    that is a schedule's."""
    with pytest.raises(SpecError, match="/where"):
        drafts.over(where=("score",))
    with pytest.raises(ScheduleNotFound):
        drafts.over(schedule="absent")
    with pytest.raises(ScheduleError, match="its own outcomes"):
        drafts.over(name="again", schedule="again")
    with pytest.raises(ScheduleError, match="from_schedule=nightly"):
        drafts.over(schedule=None, job="nightly")
    with pytest.raises(ScheduleError, match="and not both"):
        drafts.over(job="first")
    with pytest.raises(ScheduleError, match="new files come to a folder"):
        drafts.schedules.add("x", "0 4 * * *", OutcomesOf(job="first"), AGAIN, new_files=True)


def test_a_circle_of_schedules_is_refused(drafts: Drafts) -> None:
    """Each would pay for the other's answers for ever: also where the circle is closed by one that
    was added again."""
    drafts.over(CHECK, name="b", schedule="nightly")
    drafts.over(CHECK, name="c", schedule="b")
    drafts.schedules.remove("nightly")
    with pytest.raises(ScheduleError, match="its own outcomes"):
        drafts.over(CHECK, name="nightly", schedule="c")
