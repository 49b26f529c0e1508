"""A whole engine of the batch lane, and a provider in memory: tests say what that one does on bad
days."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock_ledger import BatchState, ProviderBatchStore
from penstock_ledger.model import Counts, Job
from penstock_producer import Producer
from penstock_workers.lanes.batch import engine as engine_module
from penstock_workers.lanes.batch import journey, leader, led_batch, troubles
from penstock_workers.lanes.batch.apis import provider
from penstock_workers.lanes.batch.apis.provider import (
    BatchAnswer,
    BatchLimits,
    BatchSeen,
    LineProblem,
    NewBatch,
    UnreadableLine,
)
from penstock_workers.lanes.batch.engine import BatchEngine
from penstock_workers.lanes.batch.records import NoQueue
from penstock_workers.metrics.samples import Sample
from penstock_workers.settings import WorkerSettings

USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
Answers = Callable[[str, int], BatchAnswer | None]  # of a custom_id in the n-th batch


def good(name: str, _nth: int = 0) -> BatchAnswer | None:
    choice = {"message": {"role": "assistant", "content": f"about {name}"}, "finish_reason": "stop"}
    return BatchAnswer(
        name, 200, json.dumps({"model": "m", "choices": [choice], "usage": USAGE}).encode(), "req-1"
    )


@dataclass
class Memory:
    """A provider that keeps its batches in memory.

    What is set makes it do what providers do on bad days."""

    limits = BatchLimits(requests=100, total_bytes=100_000, line_bytes=1_000)
    answer: Answers = good
    problems: Callable[[list[str], int], tuple[LineProblem, ...]] = lambda names, nth: ()
    odd: tuple[BatchAnswer | UnreadableLine, ...] = ()  # at the beginning of every output
    expired: Callable[[int], bool] = lambda nth: False
    # of calls, each raised once, in their order
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    late: int = 0  # looks at a batch that has ended which do not show its output yet
    counted: provider.Counts | None = None  # of every batch
    gone: set[int] = field(default_factory=set)  # batches that no look finds
    looks_at_gone: int = 0
    works_all_the_same: bool = False  # a create that raises has made its batch
    ended: bool = True
    made: list[NewBatch] = field(default_factory=list)
    names: list[list[str]] = field(default_factory=list)
    uploads: int = 0
    cancelled: set[str] = field(default_factory=set)
    never: set[int] = field(default_factory=set)  # batches that end for nothing
    deleted: list[str | None] = field(default_factory=list)

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        return (
            json.dumps({"custom_id": custom_id, "url": endpoint, "body": json.loads(body)}).encode()
            + b"\n"
        )

    async def upload(self, batch: NewBatch) -> str | None:
        self._raise("upload")
        self.uploads += 1
        return f"file-{batch.tag}"

    async def find_upload(self, tag: str) -> str | None:
        return None

    async def create(self, batch: NewBatch) -> BatchSeen:
        if not self.errors.get("create") or self.works_all_the_same:
            self.made.append(batch)
            self.names.append(
                [json.loads(line)["custom_id"] for line in batch.path.read_text().splitlines()]
            )
        self._raise("create")
        return self._seen(len(self.made) - 1)

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        self._raise("find")
        return next(
            (self._seen(nth) for nth, batch in enumerate(self.made) if batch.tag == tag), None
        )

    async def look(self, batch_id: str) -> BatchSeen:
        self._raise("look")
        if int(batch_id) in self.gone:
            self.looks_at_gone += 1
            raise provider.BatchGone(404, "not_found", "no such batch")
        seen = self._seen(int(batch_id))
        if self.late and seen.ended:
            self.late -= 1
            return seen._replace(outputs=(), counts=provider.Counts(4, 4, 0))
        return seen

    async def answers(self, seen: BatchSeen) -> AsyncIterator[BatchAnswer | UnreadableLine]:
        self._raise("answers")
        for line in self.odd:
            yield line
        nth = int(seen.batch_id)
        for name in reversed(self.names[nth]):
            found = None if seen.expired else self.answer(name, nth)
            if found is not None:
                yield found

    async def cancel(self, batch_id: str) -> BatchSeen:
        self._raise("cancel")
        self.cancelled.add(batch_id)
        return self._seen(int(batch_id))

    async def delete(self, seen: BatchSeen) -> None:
        self._raise("delete")
        self.deleted.append(seen.file_id)

    async def close(self) -> None:
        """Nothing is open."""

    def _seen(self, nth: int) -> BatchSeen:
        over, stopped = (
            self.ended and nth not in self.never,
            str(nth) in self.cancelled and nth not in self.never,
        )
        problems = self.problems(self.names[nth], nth)
        return BatchSeen(
            str(nth),
            "ended" if over else "runs",
            over or stopped,
            self.counted,
            expired=self.expired(nth),
            cancelled=stopped,
            problems=problems,
            outputs=("out",),
            file_id=self.made[nth].file_id,
        )

    def _raise(self, call: str) -> None:
        waiting = self.errors.get(call, [])
        if waiting:
            raise waiting.pop(0)


class NoControl:
    def figures(self) -> Iterator[Sample]:
        yield from ()


@dataclass
class House:
    settings: WorkerSettings
    producer: Producer
    folder: Path
    provider: Memory

    def submit(self, documents: int = 10, **spec: Any) -> Job:
        source = self.folder / "docs.jsonl"
        source.write_text("".join(f'{{"id": "d{n}", "text": "x{n}"}}\n' for n in range(documents)))
        return self.producer.submit(
            source, {"lane": "batch", "model": "m", "prompt": "{text}", **spec}
        )

    def counts(self, job: Job) -> Counts:
        return self.producer.status(job.job_id).counts

    @property
    def store(self) -> ProviderBatchStore:
        return ProviderBatchStore(self.producer._database)

    def provider_is_busy(self, job: Job) -> bool:
        """Whether a batch that was created is not settled."""
        return any(
            batch.created_at is not None and batch.state is not BatchState.SETTLED
            for batch in self.store.of_job(job.job_id)
        )

    def set_batch(self, **changes: Any) -> None:
        """Of the settings, without their limits."""
        changed = self.settings.batch.model_copy(update=changes)
        self.settings = self.settings.model_copy(update={"batch": changed})

    def set_provider(self, **changes: Any) -> None:
        """Likewise, of the one provider."""
        changed = self.settings.provider("default").model_copy(update=changes)
        self.settings = self.settings.model_copy(update={"providers": {"default": changed}})

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[BatchEngine]:
        engine = BatchEngine(self.settings, lambda settings: contextlib.nullcontext(NoControl()))
        await engine.start(NoQueue())
        try:
            yield engine
        finally:
            await engine.drain(5.0)
            await engine.stop()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # it is asked of a database
                await asyncio.sleep(0.02)

    async def all_settled(self, job: Job) -> Counts:
        total = job.total or 0

        def over() -> bool:
            counts = self.counts(job)
            return counts.succeeded + counts.dead == total and not self.store.is_busy(job.job_id)

        async with self.working():
            await self.until(over)
        return self.counts(job)


def quick(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> None:
    """Short waits, and ``memory`` in place of every provider."""
    monkeypatch.setattr(leader, "LOOK_S", 0.02)
    monkeypatch.setattr(troubles, "FAULT_BASE_S", 0.01)
    monkeypatch.setattr(journey, "LOOK_AT_JOB_S", 0.02)
    monkeypatch.setattr(led_batch, "LOOK_AT_JOB_S", 0.02)
    monkeypatch.setattr(led_batch, "CAP_WAIT_S", 0.05)
    monkeypatch.setattr(engine_module, "open_batches", lambda name, settings: memory)


@contextlib.contextmanager
def batch_house(
    redis_url: str, folder: Path, memory: Memory, database_url: str | None = None, **provider: Any
) -> Iterator[House]:
    settings = WorkerSettings.load(
        redis_url=redis_url,
        database_url=database_url or f"sqlite:///{folder}/ledger.db",
        lane="batch",
        control=False,
        batch={
            "folder": folder / "packed",
            "poll_first_s": 0.02,
            "poll_cap_s": 0.05,
            "unclear_s": 0.02,
            "lost_after_s": 0.1,
        },
        providers={
            "default": {
                "usd_per_mtok_in": 100,
                "usd_per_mtok_out": 200,
                "batch_discount": 0.5,
                "batch_enqueued_tokens": 1_000,
                **provider,
            }
        },
    )
    with Producer(settings) as producer:
        producer._database.migrate()
        yield House(settings, producer, folder, memory)
