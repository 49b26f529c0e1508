"""What came of the times of schedules, as Celery's events: Flower shows each as a task, as it shows
those of Celery beat.

A task `penstock.schedule` has the key of the time's job as its id. One whose time passed without a
job is revoked (expired), which is what Celery calls a task that was not run in time.
"""

from __future__ import annotations

from typing import Any

from penstock_ledger import Decision, FiringOutcome, Schedule
from penstock_ledger.log_lines import several_lines
from penstock_ledger.redaction import redact
from penstock_producer.schedules.marks import job_key
from penstock_workers.celery_app.shown.reports import ERROR_MAX_CHARS
from penstock_workers.decided_times import DecidedTimes

TASK = "penstock.schedule"
TELL_EACH_S = 1.0


def tell_firings(consumer: Any, decided: DecidedTimes) -> None:
    """To be called once per broker connection: each has a dispatcher of its own, and ends its
    timers."""
    dispatcher = consumer.event_dispatcher
    if dispatcher is None:
        return

    def tell() -> None:
        """What is decided while events are off is not sent later: it is in `penstock schedule
        list`."""
        while decided:
            schedule, decision = decided.popleft()
            if dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups):
                _send(dispatcher, schedule, decision)

    consumer.timer.call_repeatedly(TELL_EACH_S, tell)


def _send(dispatcher: Any, schedule: Schedule, decision: Decision) -> None:
    task_id, why = job_key(schedule), _shown(decision.reason or "")
    told = {"schedule": schedule.name}
    if decision.outcome is FiringOutcome.SKIPPED:
        told["skipped"] = why
    dispatcher.send(
        "task-received",
        uuid=task_id,
        name=TASK,
        args="()",
        kwargs=repr(told),
        root_id=task_id,
        parent_id=None,
        retries=schedule.tries,
    )
    match decision.outcome:
        case FiringOutcome.STARTED:
            dispatcher.send(
                "task-succeeded", uuid=task_id, result=f"started {decision.job_id}", runtime=0.0
            )
        case FiringOutcome.NOTHING_NEW:
            dispatcher.send(
                "task-succeeded", uuid=task_id, result=f"nothing new: {why}", runtime=0.0
            )
        case FiringOutcome.FAILED:
            dispatcher.send("task-failed", uuid=task_id, exception=why, traceback="")
        case FiringOutcome.SKIPPED:
            dispatcher.send(
                "task-revoked", uuid=task_id, terminated=False, signum=None, expired=True
            )


def _shown(reason: str) -> str:
    text = several_lines(redact(reason))
    return text if len(text) <= ERROR_MAX_CHARS else text[: ERROR_MAX_CHARS - 1] + "…"
