"""Batches at the provider of a world, and the workers of the `batch` lane.

Each call may be refused, or happen and not be answered, like calls to stores; a batch ends after a
while, with lines that have failed or have no answer at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import orjson

from explore.actors import Provider, Sent, answer_about, cost_of, outside
from explore.scheduler import FATES, FROZEN_S, Call, Fate, Process, World
from penstock_ledger import DatabaseUnavailable
from penstock_workers.lanes.batch import engine as engine_module
from penstock_workers.lanes.batch import leader, led_batch, watching
from penstock_workers.lanes.batch.apis import provider as apis
from penstock_workers.lanes.batch.apis.provider import (
    BatchAnswer,
    BatchLimits,
    BatchSeen,
    NewBatch,
    UnreadableLine,
)
from penstock_workers.lanes.batch.engine import BatchEngine
from penstock_workers.lanes.batch.records import NoQueue
from penstock_workers.settings import WorkerSettings

DISCOUNT: Final = 0.5
LISTED_AFTER_S: Final = 20.0  # a batch is in the provider's list this long after it was created
PER_BATCH: Final = 3

# a look is some calls to stores, and the collector of Python is not what is explored
setattr(leader, "LOOK_S", 4.0)  # noqa: B010  # for mypy it is a constant
setattr(leader, "FREE_EACH_S", 1e9)  # noqa: B010
setattr(led_batch, "CAP_WAIT_S", 5.0)  # noqa: B010
setattr(watching, "CANCEL_TAKES_S", 120.0)  # noqa: B010


@dataclass
class Batch:
    """One batch at the provider."""

    tag: str
    by: Process
    lines: list[tuple[str, Sent]]
    made_at: float
    ends_at: float
    cancelled_at: float | None = None
    deleted: bool = False
    file_id: str | None = None


@dataclass
class Batches:
    """All batches of one account. What each line comes to is decided when its batch is made."""

    world: World
    provider: Provider
    odds: tuple[float, float, float] = (0.0, 0.0, 0.0)  # no answer, fails, expires; of a thousand
    hides: float = 0.0  # of a thousand looks: a 404; of readings of an output: its second half
    loses: float = 0.0  # of a thousand batches: the output, for good
    made: list[Batch] = field(default_factory=list)

    def make(self, new: NewBatch, process: Process) -> int:
        lines = []
        for text in new.path.read_bytes().splitlines():
            line = orjson.loads(text)
            prompt = line["body"]["messages"][-1]["content"]
            sent = Sent(
                prompt,
                process,
                self.world.now,
                cost=round(cost_of(prompt) * DISCOUNT),
                batch=new.tag,
            )
            self.provider.sent.append(sent)
            lines.append((line["custom_id"], sent))
        takes = self.world.choices.chance(f"batch {len(self.made)}").uniform(5.0, 40.0)
        now = self.world.now
        self.made.append(Batch(new.tag, process, lines, now, now + takes, file_id=new.file_id))
        return len(self.made) - 1

    def seen(self, number: int) -> BatchSeen:
        batch = self.made[number]
        stopped = batch.cancelled_at is not None and self.world.now > batch.cancelled_at + 3.0
        ended = self.world.now >= batch.ends_at or stopped
        status = "cancelled" if stopped else "completed" if ended else "in_progress"
        counts = None
        if ended:
            some = [self.comes_to(batch, name) for name, _ in batch.lines]
            counts = apis.Counts(len(some), some.count(0), len(some) - some.count(0))
        return BatchSeen(
            str(number), status, ended, counts, cancelled=stopped, outputs=("out",),
            file_id=batch.file_id,
        )  # fmt: skip

    def bill(self, number: int) -> None:
        """Bill what a batch has answered, whether it was read or not."""
        batch = self.made[number]
        for custom_id, sent in batch.lines:
            sent.billed = self.comes_to(batch, custom_id) == 0

    def is_lost(self, number: int) -> bool:
        """Return whether the output of a batch is gone for good; then its lines are asked again."""
        if not self.loses:
            return False
        if not self.world.choices.choose(f"output {number}", [1000.0 - self.loses, self.loses]):
            return False
        for _, sent in self.made[number].lines:
            if not sent.is_gone:
                sent.is_gone = True
                self.provider.again[sent.document] += not sent.heard
        return True

    def is_waited_for_no_longer(self, tag: str, remote_id: str | None, ended: set[str]) -> None:
        """Let what has not ended of a batch be asked again, whatever it still comes to."""
        of_tag = (
            batch
            for number, batch in enumerate(self.made)
            if batch.tag == tag and remote_id in (None, str(number))
        )
        for batch in islice(of_tag, 1):
            for custom_id, sent in batch.lines:
                has_answer = self.comes_to(batch, custom_id) == 0
                if sent.document in ended or (sent.heard and not has_answer):
                    continue  # else it is known already that it is asked again
                sent.heard |= not has_answer
                self.provider.again[sent.document] += 1

    def comes_to(self, batch: Batch, custom_id: str) -> int:
        """Return what a line has come to: 0 an answer, 1 none at all, 2 a failure, 3 expired."""
        if batch.cancelled_at is not None and batch.cancelled_at + 3.0 < batch.ends_at:
            begun = self.world.choices.chance(f"{batch.tag} {custom_id}").random()
            if batch.cancelled_at < batch.made_at + begun * (batch.ends_at - batch.made_at):
                return 1
        return self.world.choices.choose(
            f"line {batch.made_at:.3f} {custom_id}", [1000.0 - sum(self.odds), *self.odds]
        )


class BatchApi:
    """The account as one process sees it."""

    limits = BatchLimits(requests=PER_BATCH, total_bytes=100_000, line_bytes=10_000)

    def __init__(self, batches: Batches, process: Process) -> None:
        self._batches, self._process, self._world = batches, process, batches.world

    def line(self, custom_id: str, endpoint: str, body: bytes) -> bytes:
        request = {"custom_id": custom_id, "url": endpoint, "body": orjson.loads(body)}
        return orjson.dumps(request) + b"\n"

    async def upload(self, batch: NewBatch) -> str | None:
        async with self._call("upload"):
            return f"file-{batch.tag}"

    async def find_upload(self, tag: str) -> str | None:
        async with self._call("find_upload"):
            return None

    async def create(self, batch: NewBatch) -> BatchSeen:
        async with self._call("create"):
            return self._batches.seen(self._batches.make(batch, self._process))

    async def find(self, tag: str, since: float) -> BatchSeen | None:
        async with self._call("find"):
            for number, batch in enumerate(self._batches.made):
                if batch.tag == tag and self._world.now > batch.made_at + LISTED_AFTER_S:
                    return self._batches.seen(number)
            return None

    async def look(self, batch_id: str) -> BatchSeen:
        async with self._call("look"):
            if self._hides("look"):
                raise apis.BatchGone(404, "not_found", "no such batch")
            return self._batches.seen(int(batch_id))

    async def answers(self, seen: BatchSeen) -> AsyncIterator[BatchAnswer | UnreadableLine]:
        batch = self._batches.made[int(seen.batch_id)]
        async with self._call("answers"):
            if self._batches.is_lost(int(seen.batch_id)):
                raise apis.BatchGone(404, "not_found", "no such output")
            shown = len(batch.lines) // 2 if self._hides("output") else len(batch.lines)
        for number, (custom_id, sent) in enumerate(batch.lines):
            comes_to = self._batches.comes_to(batch, custom_id)
            # what the counts do not have is asked again, shown or not
            if comes_to and not sent.heard:
                sent.heard = True
                self._batches.provider.again[sent.document] += 1
            if number >= shown:
                continue
            if comes_to == 0:
                sent.heard = True
                yield BatchAnswer(custom_id, 200, answer_about(sent.document), f"req {sent.at}")
            elif comes_to == 2:
                yield BatchAnswer(custom_id, 500, b'{"error":{"message":"no"}}', f"req {sent.at}")
            elif comes_to == 3:
                yield BatchAnswer(custom_id, None, b"", error="batch_expired")

    async def cancel(self, batch_id: str) -> BatchSeen:
        async with self._call("cancel"):
            batch = self._batches.made[int(batch_id)]
            if batch.cancelled_at is None and self._world.now < batch.ends_at:
                batch.cancelled_at = self._world.now
            return self._batches.seen(int(batch_id))

    async def delete(self, seen: BatchSeen) -> None:
        async with self._call("delete"):
            if seen.batch_id:  # else of an upload that no batch came of
                self._batches.made[int(seen.batch_id)].deleted = True

    async def close(self) -> None:
        """Close nothing."""

    def _hides(self, what: str) -> bool:
        """Return whether the provider does not show for a moment what it has."""
        world, hides = self._world, self._batches.hides
        if world.is_peaceful or not hides:
            return False
        name = f"{self._process.name} {self._process.calls} {what}"
        if not world.choices.choose(name, [1000.0 - hides, hides]):
            return False
        world.fault("hides", "provider", what)
        return True

    @contextlib.asynccontextmanager
    async def _call(self, what: str) -> AsyncIterator[None]:
        """Make a call, which may come to nothing, or happen and not be answered."""
        world, process = self._world, self._process
        await asyncio.sleep(0.2)
        fate, name = Fate.ANSWERED, f"{process.name} {process.calls + 1}"
        if not world.is_peaceful:
            process.calls += 1
            fate = FATES[world.choices.choose(name, world.odds.weights(Call("provider", what)))]
        if fate is not Fate.ANSWERED:
            world.faults[fate.value] += 1
        world.note(process.name, f"provider {what}", fate.value)
        if fate is Fate.REFUSED:
            raise apis.TryLater(None, "not now")
        if fate is Fate.DIES_BEFORE:
            await self._death()
        if fate is Fate.FREEZES:
            world.freeze(process, world.choices.chance(name).uniform(*FROZEN_S))
            await asyncio.sleep(0)
        yield
        await asyncio.sleep(0.2)
        if fate is Fate.DIES_AFTER:
            await self._death()
        if fate is Fate.LOST:
            raise apis.Unclear("the answer is lost")

    async def _death(self) -> None:
        self._world.loop.call_soon(self._world.kill, self._process, context=outside())
        await asyncio.sleep(3600)


class NoControl:
    """Nothing runs beside this worker."""

    def figures(self) -> Any:
        return iter(())


class BatchWorker(Process):
    """A worker of the `batch` lane."""

    def __init__(self, world: World, name: str, settings: WorkerSettings, batches: Batches) -> None:
        super().__init__(world, name)
        of_batch = settings.batch.model_copy(update={"folder": settings.batch.folder / name})
        self._settings = settings.model_copy(update={"lane": "batch", "batch": of_batch})
        self._api = BatchApi(batches, self)

    def start(self) -> None:
        self.act("starts", lambda: self.world.loop.call_soon(self._begin))

    def _begin(self) -> None:
        self.world.loop.create_task(self._run()).add_done_callback(self.world.loop.see)

    async def _run(self) -> None:
        of_engine: Any = engine_module
        before, of_engine.open_batches = of_engine.open_batches, lambda name, settings: self._api
        engine = BatchEngine(self._settings, lambda _: contextlib.nullcontext(NoControl()))
        for name in self._settings.providers:
            engine._provider(name)
        of_engine.open_batches = before
        try:
            await engine.start(NoQueue())
        except DatabaseUnavailable:  # as it starts: its supervisor starts another one
            self.world.loop.call_soon(self.world.kill, self, context=outside())
