"""Each run of a schedule is compared with the one before, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from night import DAY, ONE, Night, ledger_of
from sqlalchemy import select

from penstock_ledger import (
    DeadLetter,
    ItemKey,
    Job,
    JobState,
    OutcomeStore,
    Result,
    RunStore,
    Schedule,
    purge_job,
)
from penstock_ledger.door_stores.webhooks import NewEndpoint, WebhookStore
from penstock_ledger.sql.tables import webhook_deliveries
from penstock_producer.reporting.account import gathered
from penstock_producer.reporting.forms import plain_text
from penstock_workers.control.schedules import comparing


class Runs(Night):
    """A schedule whose runs are compared, and their outcomes."""

    def rule(self, drift: str = "report", field: str | None = "label", **more: Any) -> Schedule:
        return self.add(drift=drift, drift_field=field, **more)

    def run(self, nth: int, labels: str, dead: int = 0) -> Job:
        """Start the job of a night and end it: a document for each label, and dead letters."""
        self.now = ONE + nth * DAY + 1
        control = self.control("a")
        control.turn()
        job = self.jobs.get(f"nightly@2026-03-1{nth}T01:00Z")
        results = [
            Result(key(job, f"r{n}"), 200, answer(label), None, "m", "stop", 10, 5, 300, 1, 1, 1)
            for n, label in enumerate(labels)
        ]
        letters = [
            DeadLetter(key(job, f"d{n}"), "bad_request", 1, 1, "no", 400, b"{}", None)
            for n in range(dead)
        ]
        OutcomeStore(self.db).settle(results, letters)
        assert self.jobs.set_state(job.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
        control.turn()
        return self.jobs.get(job.job_id)

    def compared(self, job: Job) -> dict[str, Any]:
        return RunStore(self.db).comparison_of(job.job_id) or {}

    def report(self, job: Job) -> str:
        return plain_text(gathered(self.db, job, stats={}), dlq_command="dlq")

    def events(self) -> list[str]:
        query = select(webhook_deliveries.c.payload).where(
            webhook_deliveries.c.type == "job.drifted"
        )
        return [orjson.loads(row.payload)["data"]["id"] for row in self.db.rows(query)]


def key(job: Job, doc_id: str) -> ItemKey:
    return ItemKey(job.job_id, 1, doc_id)


def answer(label: str) -> bytes:
    text = orjson.dumps({"label": label}).decode()
    return orjson.dumps({"choices": [{"message": {"content": text}}]})


@pytest.fixture(params=["sqlite", "postgresql"])
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runs]:
    with ledger_of(request, tmp_path) as database:
        hook = NewEndpoint("we_1", None, "https://example.com/hooks", "whsec_1", ["job.drifted"])
        WebhookStore(database).add(hook)
        yield Runs(database, tmp_path)


def test_a_run_that_has_moved_is_told_everywhere(runs: Runs) -> None:
    """In the list of times, the report, an event and the log; the next run starts all the same. The
    first has nothing before it, and one like the last has not moved."""
    runs.rule()
    first = runs.run(0, "a" * 150 + "b" * 150)
    assert runs.compared(first) == {"before": None, "skipped": "first"}
    same = runs.run(1, "a" * 155 + "b" * 145)
    assert runs.compared(same) == {"before": first.job_id, "moved": []}
    assert f"nothing has moved away from the run before, job {first.job_id}" in runs.report(same)
    other = runs.run(2, "a" * 250 + "b" * 20, dead=60)
    found = runs.compared(other)
    assert found["before"] == same.job_id
    assert [(one["figure"], one["label"]) for one in found["moved"]] == [
        ("dead", None),
        ("label", "a"),
        ("label", "b"),
    ]
    assert "dead letters: 0.0% before, now 18.2%" in runs.report(other)
    assert runs.events() == [other.job_id]
    assert runs.firings()[0].drift == found
    assert not runs.store.get("nightly").paused
    assert runs.run(3, "a" * 250 + "b" * 20, dead=60).state is JobState.COMPLETED


def test_a_schedule_is_paused_once_its_run_has_moved(runs: Runs) -> None:
    """No job starts until it is resumed, and then it is compared with the run that had moved."""
    runs.rule("pause")
    runs.run(0, "a" * 300)
    moved = runs.run(1, "b" * 300)
    assert runs.store.get("nightly").paused
    assert runs.compared(moved)["paused"]
    runs.now = ONE + 2 * DAY + 1
    runs.control("b").turn()
    assert len(runs.firings()) == 2
    assert runs.schedules.resume("nightly")
    assert runs.compared(runs.run(3, "b" * 300)) == {"before": moved.job_id, "moved": []}


def test_the_next_run_waits_for_the_comparison(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where runs follow one another closely, a schedule that may be paused starts no job before
    that is decided."""
    monkeypatch.setattr(comparing.Comparing, "look", lambda self: None)
    runs.rule("pause")
    job = runs.run(0, "a" * 300)
    runs.now = ONE + DAY + 1
    runs.control("a").turn()
    assert len(runs.firings()) == 1
    assert f"job {job.job_id} is being compared" in str(runs.store.get("nightly").waits_for)
    monkeypatch.undo()
    for _ in range(2):
        runs.now += 60
        runs.control("a").turn()
    assert len(runs.firings()) == 2


def test_runs_that_say_nothing_are_passed_over(runs: Runs) -> None:
    """One that was cancelled, one of few documents, one whose predecessor was purged: said so, and
    the schedule goes on."""
    runs.rule("pause")
    first = runs.run(0, "a" * 300)
    runs.now = ONE + DAY + 1
    control = runs.control("a")
    control.turn()
    cancelled = runs.jobs.get("nightly@2026-03-11T01:00Z")
    runs.jobs.set_state(cancelled.job_id, JobState.CANCELLED, expect=[JobState.RUNNING])
    control.turn()
    assert runs.compared(cancelled) == {"before": first.job_id, "skipped": "cancelled"}
    few = runs.run(2, "b" * 20)
    assert runs.compared(few) == {"before": first.job_id, "skipped": "few_documents"}
    for job in (first, few):
        purge_job(runs.db, job.job_id)
    assert runs.compared(runs.run(3, "b" * 300)) == {"before": None, "skipped": "first"}
    assert not runs.store.get("nightly").paused


def test_a_run_is_compared_once(runs: Runs) -> None:
    """Two control processes look at the same moment: one event."""
    runs.rule()
    runs.run(0, "a" * 300)
    runs.now = ONE + DAY + 1
    control = runs.control("a")
    control.turn()
    job = runs.jobs.get("nightly@2026-03-11T01:00Z")
    OutcomeStore(runs.db).settle(
        [
            Result(key(job, f"r{n}"), 200, answer("b"), None, "m", "stop", 10, 5, 300, 1, 1, 1)
            for n in range(300)
        ],
        [],
    )
    runs.jobs.set_state(job.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    run = RunStore(runs.db).next_to_compare()
    assert run is not None
    both = [control.steps._comparing, runs.control("b").steps._comparing]
    for one in both:
        one._run(run)
    assert runs.events() == [job.job_id]
    assert RunStore(runs.db).next_to_compare() is None


def test_a_schedule_without_the_rule_compares_nothing(runs: Runs) -> None:
    """Its times have no comparison, and its reports no line of it."""
    runs.add()
    for job in [runs.run(nth, labels) for nth, labels in enumerate(("a" * 300, "b" * 300))]:
        assert runs.compared(job) == {}
        assert "run before" not in runs.report(job)
