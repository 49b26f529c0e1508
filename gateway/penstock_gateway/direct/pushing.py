"""Calls go into the spool in groups, one transaction after the other, and from there into the queue
at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from redis import RedisError

from penstock_gateway.backend import Backend
from penstock_gateway.direct.open_jobs import CallJob
from penstock_ledger import DoorCallStore, PushedCall, RedisForgot, in_words
from penstock_producer.feed.beside import Spooled

__all__ = ["Pushing"]

log = logging.getLogger("penstock.gateway")

GROUP_MAX: Final = 100  # calls in one transaction; those that come meanwhile make the next


class Pushing:
    """What comes while a group is written makes the next one. Belongs to the event loop."""

    def __init__(self, backend: Backend, store: DoorCallStore) -> None:
        self._backend = backend
        self._store = store
        self._waiting: dict[str, list[tuple[PushedCall, asyncio.Future[bool]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_told = False  # one line for an outage of Redis

    async def push(self, job: CallJob, call: PushedCall) -> bool:
        """Whether it is durable, and queued; False where its Idempotency-Key is taken by now.

        Raises errors of the ledger."""
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        group = self._waiting.get(job.job_id)
        if group is not None:
            group.append((call, stored))
        else:
            self._waiting[job.job_id] = [(call, stored)]
            task = asyncio.create_task(self._write_all(job), name=f"push {job.job_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await stored

    async def _write_all(self, job: CallJob) -> None:
        while waiting := self._waiting[job.job_id]:
            group, self._waiting[job.job_id] = waiting[:GROUP_MAX], waiting[GROUP_MAX:]
            try:
                stored = await self._backend.run(self._write, job, [call for call, _ in group])
            except Exception as error:
                for _, future in group:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), is_stored in zip(group, stored, strict=True):
                if not future.done():
                    future.set_result(is_stored)
        del self._waiting[job.job_id]

    def _write(self, job: CallJob, calls: Sequence[PushedCall]) -> list[bool]:
        rows = self._store.push(job.job_id, calls)
        documents = [
            Spooled(doc_id, body, numbers[doc_id])
            for call, numbers in zip(calls, rows, strict=True)
            for doc_id, body in call.documents
            if doc_id in numbers
        ]
        try:
            job.beside.publish(documents)
            self._is_told = False
        except (RedisError, RedisForgot) as error:  # they are in the spool: the feeder queues them
            if not self._is_told:
                log.warning(
                    "calls wait for the feeder of their job: Redis did not take them: %s",
                    in_words(error),
                )
            self._is_told = True
        return [bool(numbers) for numbers in rows]
