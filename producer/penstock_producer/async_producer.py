"""The producer for services that run an event loop: the same doors, none of which blocks it.

    async with AsyncProducer() as producer:
        live = await producer.open_job(spec, job_key="live-tickets")
        await live.enqueue("ticket-17", {"text": "The invoice is wrong."})
        await live.flush()  # from here on it is durable; without it, within a second

SQL runs in a few threads that belong to the producer. Memory and durability are those of the
blocking form.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock_ledger import MadeWith
from penstock_ledger.model import DeadLetter, ItemKey, Job, Result
from penstock_ledger.vectors import Vectors
from penstock_producer.job.spec import JobSpec
from penstock_producer.open_job import OpenJob
from penstock_producer.producer import JobStatus, Producer
from penstock_producer.settings import ProducerSettings
from penstock_producer.tables.reading import Committed

THREADS: Final = 4  # as many as the producer has connections by default
PAGE: Final = 100  # outcomes that one step of an asynchronous iteration reads

T = TypeVar("T")


class AsyncProducer:
    """``Producer`` with coroutines.

    Make it where the loop runs; as an async context manager it closes at the end.

    Each method does what that of ``Producer`` does, and raises the same.
    """

    def __init__(
        self, settings: ProducerSettings | None = None, *, database_url: str | None = None
    ) -> None:
        self._make: Callable[[], Producer] = lambda: Producer(settings, database_url=database_url)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-producer")
        self._opening = asyncio.Lock()
        self._opened: Producer | None = None  # on first use: a file of SQLite may be migrated then

    async def __aenter__(self) -> Self:
        await self._producer()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Flush the open jobs and end the connections and the threads."""
        try:
            if self._opened is not None:
                await self._run(self._opened.close)
        finally:
            self._threads.shutdown(wait=False)

    async def submit(
        self, source: str | Path, spec: JobSpec | Mapping[str, Any], *, job_key: str | None = None
    ) -> Job:
        producer = await self._producer()
        return await self._run(lambda: producer.submit(source, spec, job_key=job_key))

    async def submit_from(
        self,
        job: str,
        spec: JobSpec | Mapping[str, Any],
        *,
        where: Sequence[str] = (),
        job_key: str | None = None,
    ) -> Job:
        producer = await self._producer()
        return await self._run(
            lambda: producer.submit_from(job, spec, where=where, job_key=job_key)
        )

    async def open_job(
        self, spec: JobSpec | Mapping[str, Any], *, job_key: str | None = None
    ) -> AsyncOpenJob:
        producer = await self._producer()
        return AsyncOpenJob(
            await self._run(lambda: producer.open_job(spec, job_key=job_key)), self._run
        )

    async def status(self, job: str) -> JobStatus:
        producer = await self._producer()
        return await self._run(lambda: producer.status(job))

    async def wait(
        self, job: str, *, timeout_s: float | None = None, look_every_s: float = 1.0
    ) -> JobStatus:
        async with asyncio.timeout(timeout_s):
            while True:
                found = await self.status(job)
                if found.has_stopped:
                    return found
                await asyncio.sleep(look_every_s)

    async def results(self, job: str) -> AsyncIterator[Result]:
        """Yield every visible result so far, in flat memory.

        Use it as ``async for result in producer.results(job)``.
        """
        producer = await self._producer()
        async for result in self._pages(lambda: producer.results(job)):
            yield result

    async def outcomes(
        self, job: str, *, after: str | None = None, dead_letters: bool = True
    ) -> AsyncIterator[Committed]:
        producer = await self._producer()
        async for one in self._pages(
            lambda: producer.outcomes(job, after=after, dead_letters=dead_letters)
        ):
            yield one

    async def made_with(self, job: str) -> list[MadeWith]:
        producer = await self._producer()
        return await self._run(lambda: producer.made_with(job))

    async def vectors(self, job: str) -> AsyncIterator[tuple[ItemKey, Vectors]]:
        producer = await self._producer()
        async for found in self._pages(lambda: producer.vectors(job)):
            yield found

    async def dead_letters(
        self, job: str, *, reason: str | None = None
    ) -> AsyncIterator[DeadLetter]:
        producer = await self._producer()
        async for letter in self._pages(lambda: producer.dead_letters(job, reason=reason)):
            yield letter

    async def pause(self, job: str, *, reason: str = "paused by its producer") -> bool:
        producer = await self._producer()
        return await self._run(lambda: producer.pause(job, reason=reason))

    async def resume(self, job: str) -> bool:
        producer = await self._producer()
        return await self._run(lambda: producer.resume(job))

    async def cancel(self, job: str) -> bool:
        producer = await self._producer()
        return await self._run(lambda: producer.cancel(job))

    async def limit(
        self,
        job: str,
        *,
        budget_usd: float | None,
        deadline_s: float | None,
        stops: Mapping[str, Any] | None = None,
    ) -> bool:
        producer = await self._producer()
        return await self._run(
            lambda: producer.limit(job, budget_usd=budget_usd, deadline_s=deadline_s, stops=stops)
        )

    async def replay(
        self,
        job: str,
        *,
        reason: str | None = None,
        doc_ids: Sequence[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> int:
        producer = await self._producer()
        return await self._run(
            lambda: producer.replay(job, reason=reason, doc_ids=doc_ids, overrides=overrides)
        )

    async def _producer(self) -> Producer:
        async with self._opening:
            if self._opened is None:
                self._opened = await self._run(self._make)
            return self._opened

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _pages(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        iterator = await self._run(begin)
        while page := await self._run(lambda: list(islice(iterator, PAGE))):
            for one in page:
                yield one


class AsyncOpenJob:
    """``OpenJob`` with coroutines, made by ``AsyncProducer.open_job``."""

    def __init__(self, job: OpenJob, run: Callable[[Callable[[], Any]], Any]) -> None:
        self.job = job.job
        self.job_id = job.job_id
        self._job = job
        self._run = run

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._run(lambda: self._job.__exit__(kind, error, trace))

    async def enqueue(self, doc_id: str | int, document: Mapping[str, Any] | bytes | str) -> None:
        """Take one document, at once unless the buffer is full and has to be written first.

        Raises as ``OpenJob.enqueue``."""
        while not self._job.offer(doc_id, document):
            await self._run(self._job.make_room)

    async def flush(self) -> int:
        """Make everything enqueued so far durable.

        Calls that come together share their transactions."""
        flushed: int = await self._run(self._job.flush)
        return flushed

    async def close(self) -> int:
        """Flush and close the job; returns how many documents it has."""
        total: int = await self._run(self._job.close)
        return total
