"""The door for services that have a Celery client and nothing of ours: `send_task("penstock.submit", …)`.

    app.send_task("penstock.submit", args=["s3://corpora/tickets.jsonl", {"prompt": "Summarise: {text}", "model": "m"}],
                  kwargs={"job_key": "tickets-2026-11-21"}, queue="penstock.control")

There is no result backend: ask for the job by its key (`penstock status KEY`). A job that cannot be accepted fails the task,
with the reason in the worker's log and in Flower.
"""

from __future__ import annotations

from typing import Any

from celery import Task

SUBMIT = "penstock.submit"


class SubmitTask(Task):  # type: ignore[misc]  # Celery is untyped
    """Accept a job. Sending it twice with the same ``job_key`` is one job."""

    name = SUBMIT
    Request = "penstock_workers.requests:QuietRequest"
    acks_late = True  # a worker that dies while it surveys a source leaves the task to another
    ignore_result = True

    def run(self, source: str, spec: dict[str, Any], job_key: str | None = None) -> str:
        """Returns the job id. Raises SpecError, SourceError and JobConflict."""
        from penstock_producer.producer import Producer

        with Producer(self.app.parts.settings) as producer:
            return producer.submit(source, spec, job_key=job_key or self.request.id).job_id
