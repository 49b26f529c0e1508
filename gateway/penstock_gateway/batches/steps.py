"""One step of a batch: each can be done again from its beginning, whatever came of it before.

What makes it so: the job's key is the batch's id, so that a second submit finds the job of the
first; the ids of its files are written down before the files are; and a row moves only from the
state, and with the fence, that the step began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock_gateway.backend import Backend
from penstock_gateway.batches.figures import DEADLINE, final_counts
from penstock_gateway.batches.finish import Finish
from penstock_gateway.batches.specs import input_path, spec_of_batch
from penstock_gateway.batches.validation import LineChecks, faults_in, of_the_batch, one_model
from penstock_gateway.news import REST_S, News, rest
from penstock_gateway.refused import Refused
from penstock_ledger import (
    DoorBatch,
    DoorBatchState,
    DoorBatchStore,
    JobNotFound,
    JobStore,
    LeasedBatch,
    OutcomeStore,
    PenstockError,
)
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import By, Reason
from penstock_producer import JobRefused, SourceError, SourceUnavailable, SpecError, TooManyBadRows
from penstock_producer.reporting.advice import over_http

__all__ = ["BatchStates", "Steps", "Stopped"]

LEAST_S: Final = 1.0  # of a deadline, where its window was nearly over when it was checked
LIVE: Final = (JobState.RUNNING, JobState.PAUSED)


class Stopped(Exception):
    """This process ends, or has lost the batch to another one."""


class Steps:
    """Blocking work, for one batch."""

    def __init__(self, backend: Backend, stopping: threading.Event) -> None:
        self._backend = backend
        self._settings = backend.settings
        self._store = DoorBatchStore(backend.database)
        self._jobs = JobStore(backend.database)
        self._outcomes = OutcomeStore(backend.database)
        self._stopping = stopping
        self._lost = threading.Event()

    def give_up(self) -> None:
        self._lost.set()

    def step(self, leased: LeasedBatch) -> None:
        """Do the next step. Raises Stopped, and PenstockError where it cannot be done now."""
        batch = leased.batch
        job = self._job_of(batch)
        if batch.state is DoorBatchState.VALIDATING:
            self._validate(leased, job)
        elif job is None and batch.job_id is not None:
            self._fail(
                leased,
                "job_purged",
                f"Job {batch.job_id} of this batch was purged by the operator.",
            )
        elif (
            job is not None and not job.state.final and batch.state is not DoorBatchState.FINALIZING
        ):
            self._end_job(batch, job)
        else:
            self._finish(leased, job)

    def _job_of(self, batch: DoorBatch) -> Job | None:
        try:
            return self._jobs.get(batch.job_id or batch.batch_id)
        except JobNotFound:
            return None

    def _validate(self, leased: LeasedBatch, job: Job | None) -> None:
        batch, path = leased.batch, input_path(self._backend, leased.batch)
        if path is None:
            self._fail(
                leased,
                "invalid_request",
                f"Cannot find file {batch.input_file_id}.",
                "input_file_id",
            )
            return
        model = self._model_of(batch, path)
        job = job or self._submitted(leased, path, model)
        if job is not None:
            counts = {**batch.counts, "total": job.total or 0}
            self._store.move(
                leased, DoorBatchState.IN_PROGRESS, job_id=job.job_id, counts=counts, model=model
            )

    def _model_of(self, batch: DoorBatch, path: str) -> str | None:
        try:
            return one_model(
                path,
                spec_of_batch(self._settings, batch, batch.window_s),
                self._settings,
                self._go_on,
            )
        except SpecError:
            return None  # which the submit says

    def _submitted(self, leased: LeasedBatch, path: str, model: str | None) -> Job | None:
        """Submit the batch's file as a job; None for a file that is refused.

        The batch says then what was refused. ``model`` is the one that all lines name; budget and
        prices are those of it.
        """
        batch, checks = leased.batch, LineChecks(self._settings, leased.batch.endpoint)
        left_s = max(LEAST_S, batch.expires_at - time.time())
        check = None if batch.of_anthropic else checks.check
        errors: list[dict[str, Any]]
        try:
            spec = spec_of_batch(self._settings, batch, left_s)
            # a model of our own has no price, and answers whatever lines name
            if model is not None and spec.asks_a_provider:
                spec = spec_of_batch(self._settings, batch, left_s, model)
            try:
                return self._backend.producer.submit(
                    path, spec, job_key=batch.batch_id, progress=self._go_on, check=check
                )
            except TooManyBadRows:
                errors = faults_in(path, spec, self._settings)
        except SourceUnavailable:
            raise  # its place does not answer now
        except SourceError as error:
            errors = [of_the_batch(error, path)]
        except SpecError as error:
            errors = [
                {
                    "code": error.problems[0].code,
                    "line": None,
                    "message": over_http(error.public_message),
                    "param": None,
                }
            ]
        self._store.move(leased, DoorBatchState.FAILED, errors=errors)
        return None

    def _end_job(self, batch: DoorBatch, job: Job) -> None:
        """Cancel the job of a batch that was cancelled or whose time is over.

        A job that is paused does not look at its deadline."""
        if batch.state is DoorBatchState.CANCELLING:
            with contextlib.suppress(JobRefused):  # it has ended meanwhile
                self._backend.operations.cancel(job, "cancelled by its caller")
        elif batch.expires_at <= time.time():
            why = Reason(DEADLINE, By.CONTROL, {"window_s": batch.window_s})
            self._jobs.set_state(job.job_id, JobState.CANCELLING, why=why, expect=LIVE)

    def _finish(self, leased: LeasedBatch, job: Job | None) -> None:
        if job is None:  # cancelled before it was one
            Finish(self._backend, self._go_on).without_job(leased)
            return
        counts = self._outcomes.counts(job.job_id)
        shown = final_counts(leased.batch, job, counts)
        Finish(self._backend, self._go_on).of_job(leased, job, counts, shown)

    def _fail(self, leased: LeasedBatch, code: str, message: str, param: str | None = None) -> None:
        errors = [{"code": code, "line": None, "message": message, "param": param}]
        self._store.move(leased, DoorBatchState.FAILED, errors=errors)

    def _go_on(self, _: int = 0) -> None:
        if self._stopping.is_set() or self._lost.is_set():
            raise Stopped


log = logging.getLogger("penstock.gateway.batches")

LOOK_MAX: Final = 100  # batches that one look finds
PAUSE_S: Final = 5.0  # after a step that failed, as where files cannot be written


class BatchStates:
    """One of them in each process of the doors; they share the batches by their leases."""

    async def run(self, backend: Backend) -> None:
        door = backend.settings.gateway.batches
        news = backend.part(News)
        store, stopping = DoorBatchStore(backend.database), threading.Event()
        threads = ThreadPoolExecutor(door.steps, thread_name_prefix="batches")
        owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._under_way: dict[str, asyncio.Task[None]] = {}
        is_live = is_new = False
        try:
            while True:
                coming = news.coming
                if is_new or not is_live:
                    is_live = await backend.run(store.any_live)
                due = await backend.run(store.due, LOOK_MAX) if is_live else []
                for batch_id in due:
                    if len(self._under_way) >= door.steps:
                        break
                    if batch_id in self._under_way:
                        continue
                    leased = await backend.run(store.lease, batch_id, owner, door.lease_s)
                    if leased is not None:
                        step = self._step(backend, store, Steps(backend, stopping), leased, threads)
                        self._under_way[batch_id] = asyncio.create_task(step)
                backend.round_done(self)
                # a live batch may have its time, or that of a lease, to wait for
                is_new = await rest(coming, door.interval_s if is_live else REST_S)
        finally:
            stopping.set()
            await asyncio.to_thread(threads.shutdown)
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _step(
        self,
        backend: Backend,
        store: DoorBatchStore,
        steps: Steps,
        leased: LeasedBatch,
        threads: ThreadPoolExecutor,
    ) -> None:
        batch, ttl_s = leased.batch, backend.settings.gateway.batches.lease_s
        done, pause_s = asyncio.get_running_loop().run_in_executor(threads, steps.step, leased), 0.0
        result = "failed"
        try:
            while not done.done():
                await asyncio.wait([done], timeout=ttl_s / 3)
                if not done.done() and not await backend.run(store.renew, leased, ttl_s):
                    steps.give_up()  # another process has it: what this one still writes is refused
            await done
            result = "done"
        except Stopped:
            result = "stopped"
        except (PenstockError, Refused) as error:
            pause_s = PAUSE_S
            log.warning("batch %s stays %s for now: %s", batch.batch_id, batch.state, error)
        except Exception:
            pause_s = PAUSE_S
            log.exception(
                "a step of batch %s, which is %s, has failed; it is tried again",
                batch.batch_id,
                batch.state,
            )
        finally:
            self._under_way.pop(batch.batch_id, None)
            backend.metrics.tasks.batch_steps.labels(batch.state.value, result).inc()
        await backend.run(store.release, leased, pause_s)
