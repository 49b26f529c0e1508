"""What came of the times of schedules, as the events that Flower shows."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from celery.events.state import State

from penstock_ledger import CatchUp, Decision, FiringOutcome, Schedule
from penstock_workers.celery_app.events import TASK, tell_firings
from penstock_workers.decided_times import KEPT_MAX, DecidedTimes, decided_times

ONE = datetime(2026, 3, 10, 1, tzinfo=UTC).timestamp()


class Listened:
    """A consumer whose events are kept; ``turn`` lets its timers come."""

    def __init__(self, *, enabled: bool = True, groups: tuple[str, ...] = ()) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._timers: list[Any] = []
        self.event_dispatcher = SimpleNamespace(
            enabled=enabled,
            groups=groups,
            send=lambda kind, **fields: self.sent.append((kind, fields)),
        )
        self.timer = SimpleNamespace(
            call_repeatedly=lambda _seconds, work: self._timers.append(work)
        )

    def turn(self) -> None:
        for work in self._timers:
            work()


def decided(
    outcome: FiringOutcome, reason: str | None = None, job_id: str | None = None
) -> DecidedTimes:
    schedule = Schedule(
        "sched_1",
        "nightly",
        "0 1 * * *",
        "UTC",
        {},
        {"source": "x"},
        CatchUp.ONCE,
        False,
        False,
        ONE,
        ONE,
        0,
        None,
        None,
        None,
        None,
    )
    times = decided_times()
    times.append((schedule, Decision(ONE, outcome, ONE + 60, job_id=job_id, reason=reason)))
    return times


@pytest.mark.parametrize(
    ("outcome", "reason", "job_id", "kind", "field", "says"),
    [
        (FiringOutcome.STARTED, None, "job_1", "task-succeeded", "result", "started job_1"),
        (
            FiringOutcome.NOTHING_NEW,
            "no new file",
            None,
            "task-succeeded",
            "result",
            "nothing new: no new file",
        ),
        (FiringOutcome.FAILED, "no such file", None, "task-failed", "exception", "no such file"),
        (FiringOutcome.SKIPPED, "missed", None, "task-revoked", "expired", True),
    ],
)
def test_each_decided_time_is_a_task(
    outcome: FiringOutcome,
    reason: str | None,
    job_id: str | None,
    kind: str,
    field: str,
    says: object,
) -> None:
    """By the key that its job has, with the schedule's name; how it ended is the state that Flower
    shows."""
    consumer, times = Listened(), decided(outcome, reason, job_id)
    tell_firings(consumer, times)
    consumer.turn()
    (received, first), (ended, last) = consumer.sent
    assert (received, first["name"], first["uuid"]) == (
        "task-received",
        TASK,
        "nightly@2026-03-10T01:00Z",
    )
    assert "'schedule': 'nightly'" in first["kwargs"]
    assert (ended, last["uuid"], last[field]) == (kind, first["uuid"], says)
    consumer.turn()
    assert len(consumer.sent) == 2, "sent once"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (FiringOutcome.STARTED, "SUCCESS"),
        (FiringOutcome.NOTHING_NEW, "SUCCESS"),
        (FiringOutcome.FAILED, "FAILURE"),
        (FiringOutcome.SKIPPED, "REVOKED"),
    ],
)
def test_celery_reads_them_as_a_task(outcome: FiringOutcome, state: str) -> None:
    """What Flower keeps is Celery's own memory of events: it has the task, its name and its
    state."""
    consumer, memory = Listened(), State()
    tell_firings(consumer, decided(outcome, "words", "job_1"))
    consumer.turn()
    for clock, (kind, fields) in enumerate(consumer.sent):
        common = {
            "hostname": "control@host",
            "timestamp": ONE,
            "local_received": ONE,
            "clock": clock,
            "pid": 1,
            "utcoffset": 0,
        }
        memory.event({"type": kind, **common, **fields})
    task = memory.tasks["nightly@2026-03-10T01:00Z"]
    assert (task.name, task.state) == (TASK, state)


def test_a_missed_time_says_why() -> None:
    """Celery's event of a revoked task has no room for a reason: it stands among the arguments."""
    consumer = Listened()
    tell_firings(consumer, decided(FiringOutcome.SKIPPED, "no control process was there"))
    consumer.turn()
    assert "no control process was there" in consumer.sent[0][1]["kwargs"]


def test_reasons_hold_no_secret_and_are_cut() -> None:
    """They quote what a source or a database said."""
    consumer = Listened()
    reason = "postgresql://user:geheimnis@host/db is away " + "x" * 1000
    tell_firings(consumer, decided(FiringOutcome.FAILED, reason))
    consumer.turn()
    said = consumer.sent[1][1]["exception"]
    assert "geheimnis" not in said
    assert len(said) == 300


@pytest.mark.parametrize(("enabled", "groups"), [(False, ()), (True, ("worker",))])
def test_while_events_are_off_nothing__and_nothing_gathers(
    enabled: bool, groups: tuple[str, ...]
) -> None:
    """A Flower that is opened next month does not get a month of times."""
    consumer, times = (
        Listened(enabled=enabled, groups=groups),
        decided(FiringOutcome.STARTED, None, "job_1"),
    )
    tell_firings(consumer, times)
    consumer.turn()
    assert (consumer.sent, len(times)) == ([], 0)


def test_times_that_wait_to_be_shown_have_a_bound() -> None:
    """While the broker is away the oldest go first."""
    times = decided(FiringOutcome.STARTED, None, "job_1")
    times.extend(list(times) * (2 * KEPT_MAX))
    assert len(times) == KEPT_MAX
