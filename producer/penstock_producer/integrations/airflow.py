"""A Penstock job as a task of Apache Airflow 3: submitted once, awaited without a worker's slot.

    PenstockJobOperator(task_id="label", source="s3://corpora/tickets.jsonl", spec={"prompt": "Sum
    up: {text}", "model": "m"})

The job's key is made of DAG, task, map index and run, so a task that is retried finds its job and
goes on waiting. The task defers to the triggerer, which reads the job's state from the ledger;
settings (database_url and the rest) are those of the processes of Airflow: PENSTOCK_DATABASE_URL or
penstock.toml, in workers and triggerers alike. Nothing secret is in the trigger's row.
"""

# pyright: reportMissingImports=false
# Airflow is not among the packages of the tests: `make test-airflow` has it.
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from penstock_producer import (
    AsyncProducer,
    DatabaseUnavailable,
    JobNotFound,
    PenstockError,
    Producer,
    SourceUnavailable,
)
from penstock_producer.accepting.new_jobs import MAX_JOB_KEY_CHARS
from penstock_producer.integrations import POLL_S, failure_of, summary_of

__all__ = ["PenstockJobOperator"]


class PenstockJobTrigger(BaseTrigger):
    """Fires once when the job has ended, with its summary."""

    def __init__(self, job_id: str, poll_s: float = POLL_S, *, cancel_on_kill: bool = True) -> None:
        super().__init__()
        self.job_id = job_id
        self.poll_s = poll_s
        self.cancel_on_kill = cancel_on_kill

    def serialize(self) -> tuple[str, dict[str, Any]]:
        own = {"job_id": self.job_id, "poll_s": self.poll_s, "cancel_on_kill": self.cancel_on_kill}
        return f"{type(self).__module__}.{type(self).__qualname__}", own

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the end of the job.

        A database that is away is asked again: the job goes on meanwhile.

        Airflow's own timeout bounds the wait.
        """
        async with AsyncProducer() as producer:
            while True:
                try:
                    status = await producer.status(self.job_id)
                except DatabaseUnavailable as error:
                    self.log.warning("job %s cannot be looked at: %s", self.job_id, error)
                except JobNotFound as error:
                    yield TriggerEvent({"job_id": self.job_id, "error": str(error)})
                    return
                else:
                    if status.job.state.final:
                        yield TriggerEvent(summary_of(status))
                        return
                await asyncio.sleep(self.poll_s)

    async def on_kill(self) -> None:
        """Cancel the job when a person marks or clears the deferred task (Airflow 3.3 and later).

        A restart of the triggerer does not come here.
        """
        if self.cancel_on_kill:
            async with AsyncProducer() as producer:
                await producer.cancel(self.job_id)


class PenstockJobOperator(BaseOperator):
    """An operator that submits a job, waits for its end, and returns its summary (to XCom).

    The summary has counts, tokens and cost, and no document's text.

    ``max_dead`` is the share of documents that may end as dead letters (default: any number).
    ``wait`` false returns once the job is accepted. A task that is killed by a person cancels its
    job unless ``cancel_on_kill`` is false.
    """

    template_fields: Sequence[str] = ("source", "spec", "job_key")
    ui_color = "#dbe8f0"

    def __init__(
        self,
        *,
        source: str,
        spec: Mapping[str, Any],
        job_key: str = "{{ dag.dag_id }}.{{ task.task_id }}.{{ ti.map_index }}.{{ run_id }}",
        max_dead: float = 1.0,
        wait: bool = True,
        cancel_on_kill: bool = True,
        poll_s: float = POLL_S,
        timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.spec = dict(spec)
        self.job_key = job_key
        self.max_dead = max_dead
        self.wait = wait
        self.cancel_on_kill = cancel_on_kill
        self.poll_s = poll_s
        self.timeout = timeout
        self._job_id: str | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit the job and wait for it.

        Raises AirflowFailException for a job that no retry can make acceptable; other errors are
        retried by Airflow.
        """
        with Producer() as producer:
            try:
                job = producer.submit(
                    self.source, self.spec, job_key=self.job_key[-MAX_JOB_KEY_CHARS:]
                )
            except (SourceUnavailable, DatabaseUnavailable) as error:
                raise AirflowException(str(error)) from error
            except PenstockError as error:
                raise AirflowFailException(str(error)) from error
            self._job_id = job.job_id
            self.log.info("job %s (%s): %s documents", job.job_id, job.job_key, job.total)
            summary = summary_of(producer.status(job.job_id))
        if self.wait and not job.state.final:
            trigger = PenstockJobTrigger(
                job.job_id, self.poll_s, cancel_on_kill=self.cancel_on_kill
            )
            self.defer(trigger=trigger, method_name="resumed", timeout=self.timeout)
        return self._ended(summary) if self.wait else summary

    def resumed(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the summary, or raise the error, that the trigger found. Airflow calls this."""
        if "error" in event:
            raise AirflowFailException(event["error"])
        return self._ended(event)

    def on_kill(self) -> None:
        if self._job_id is not None and self.cancel_on_kill:
            with Producer() as producer:
                producer.cancel(self._job_id)

    def _ended(self, summary: dict[str, Any]) -> dict[str, Any]:
        why = failure_of(summary, self.max_dead)
        if why is not None:
            raise AirflowFailException(why)
        return summary
