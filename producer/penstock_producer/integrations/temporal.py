"""A Penstock job as an activity of Temporal.

    activities = PenstockActivities()
    Worker(client, task_queue="batches", workflows=[…], activities=[activities.run_job])

    await workflow.execute_activity(
        "penstock_run_job", JobRequest(source="s3://corpora/tickets.jsonl", spec={"prompt": "Sum up:
        {text}", "model": "m"}), start_to_close_timeout=timedelta(days=1),
        heartbeat_timeout=timedelta(minutes=2),
    )

The job's key is made of workflow, run and activity, so an attempt that follows a worker's death
finds the job and goes on waiting. A workflow that cancels the activity cancels the job.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from penstock_ledger.errors import DatabaseUnavailable, PenstockError
from penstock_producer.async_producer import AsyncProducer
from penstock_producer.errors import SourceUnavailable
from penstock_producer.integrations import POLL_S, failure_of, summary_of
from penstock_producer.settings import ProducerSettings

__all__ = ["JobRequest", "PenstockActivities"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The argument of `penstock_run_job`; Temporal carries it as JSON."""

    source: str
    spec: dict[str, Any] = field(default_factory=dict)
    job_key: str | None = None  # default: workflow id, run id and activity id
    max_dead: float = 1.0  # the share of documents that may end as dead letters
    poll_s: float = POLL_S


class PenstockActivities:
    """Settings are those of the worker's process, or ``settings``."""

    def __init__(self, settings: ProducerSettings | None = None) -> None:
        self._settings = settings

    @activity.defn(name="penstock_run_job")
    async def run_job(self, request: JobRequest) -> dict[str, Any]:
        """Submit, wait, and return the job's summary. Heartbeats carry the summary so far.

        Raises ApplicationError, not retryable where only an edit helps.
        """
        async with AsyncProducer(self._settings) as producer:
            submitted = asyncio.create_task(self._submitted(producer, request))
            try:
                return await self._ended(producer, await asyncio.shield(submitted), request)
            except asyncio.CancelledError:
                if activity.is_worker_shutdown():
                    # another worker submits again, which finds the job, and goes on waiting
                    submitted.cancel()
                else:
                    await asyncio.shield(_cancel(producer, submitted))
                raise

    async def _submitted(self, producer: AsyncProducer, request: JobRequest) -> str:
        info = activity.info()
        key = request.job_key or f"{info.workflow_id}.{info.workflow_run_id}.{info.activity_id}"
        # reading a source may take longer than a heartbeat's timeout
        beating = asyncio.create_task(_beat(request.poll_s))
        try:
            job = await producer.submit(request.source, request.spec, job_key=key)
        except (SourceUnavailable, DatabaseUnavailable) as error:
            raise ApplicationError(str(error), type=type(error).__name__) from error
        except PenstockError as error:
            raise ApplicationError(
                str(error), type=type(error).__name__, non_retryable=True
            ) from error
        finally:
            beating.cancel()
        return job.job_id

    async def _ended(
        self, producer: AsyncProducer, job_id: str, request: JobRequest
    ) -> dict[str, Any]:
        while True:
            try:
                status = await producer.status(job_id)
            # the job goes on; Temporal's timeouts bound the wait
            except DatabaseUnavailable as error:
                activity.logger.warning("job %s cannot be looked at: %s", job_id, error)
                activity.heartbeat({"job_id": job_id})
            else:
                summary = summary_of(status)
                activity.heartbeat(summary)
                if status.job.state.final:
                    why = failure_of(summary, request.max_dead)
                    if why is not None:
                        raise ApplicationError(why, summary, type="JobFailed", non_retryable=True)
                    return summary
            await asyncio.sleep(request.poll_s)


async def _cancel(producer: AsyncProducer, submitted: asyncio.Task[str]) -> None:
    """Cancel a job, also one that is being accepted at this moment.

    One that was refused needs nothing.
    """
    with contextlib.suppress(ApplicationError):
        await producer.cancel(await submitted)


async def _beat(poll_s: float) -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(poll_s)
