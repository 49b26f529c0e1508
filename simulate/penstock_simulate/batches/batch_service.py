"""All batches of the provider, whatever their dialect.

It takes them in, and writes their results when asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock_simulate.answers.faults import Fates
from penstock_simulate.answers.refusals import Refusal, failed, invalid
from penstock_simulate.batches.batch import Batch, Dialect, Queue, Refused
from penstock_simulate.batches.folder import Folder, RequestAccount
from penstock_simulate.batches.intake import Index, Intake, Kept, Problem, read_input
from penstock_simulate.batches.results import Job, Results, ResultWriter, Undone
from penstock_simulate.batches.timeline import CANCELLABLE, BatchLuck, LineLuck, Timeline
from penstock_simulate.config import SimulatorConfig
from penstock_simulate.provider import Provider

MAX_BATCHES = 100_000  # that are remembered: a few kB each
MAX_SHOWN = 10_000  # batches of one `GET /batches`, the newest
BATCH_PRICE = 0.5  # of the price in real time, in every dialect

T = TypeVar("T")


class BatchService:
    """``wall`` gives Unix seconds: all times of batches are such."""

    def __init__(self, provider: Provider, wall: Callable[[], float] = time.time) -> None:
        self.now = wall
        self.folder = Folder()
        self._provider = provider
        self._account = RequestAccount()
        self._luck = BatchLuck()
        self._batches: dict[str, Batch] = {}
        self._calls: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._made = 0

    @property
    def config(self) -> SimulatorConfig:
        return self._provider.config

    def enter(self, call: str, key: str | None, *, spends: bool = False) -> None:
        """Check what every call meets first.

        That is the key, a refusal on demand, bad luck and, if it spends, an empty account.

        ``key`` as in an Authorization header. Raises Refused.
        """
        self._calls[call] += 1
        refusal = self._provider.turned_away(key, spends=spends)
        if refusal is None and self.strikes("batch call", self.config.batch_call_500_share):
            refusal = failed()
        if refusal is not None:
            raise Refused(refusal)

    def looked_at(self, batch: Batch) -> None:
        """Meet what a look at a batch meets. Raises Refused."""
        batch.looks += 1
        if batch.looks <= self.config.batch_look_403s:
            raise Refused(
                Refusal(
                    403,
                    "You have insufficient permissions for this operation.",
                    "invalid_request_error",
                    "forbidden",
                )
            )
        if batch.counts(self.now()).good:
            self._hide(batch, "batch", self.config.batch_look_404_s)

    def read(self, batch: Batch, output: str) -> bool:
        """Return whether a download of this output is whole.

        Raises Refused for one that is not found yet."""
        self._hide(batch, output, self.config.batch_file_404_s)
        batch.downloads[output] += 1
        return batch.downloads[output] > self.config.batch_short_reads

    def _hide(self, batch: Batch, what: str, seconds: float) -> None:
        if seconds and self.now() < batch.hidden_at.setdefault(what, self.now()) + seconds:
            raise Refused(invalid(f"No such {'batch' if what == 'batch' else 'file'}.", status=404))

    def strikes(self, what: str, share: float) -> bool:
        return self._luck.strikes(self.config, what, share)

    def submit(self, ident: str, dialect: Dialect, source: Path, tag: object = None) -> Batch:
        """Return a new batch, which is read and checked from now on.

        Raises Refused where there are too many."""
        batch = self._new(ident, dialect, source, tag)
        self.keep(batch)
        self._start(self._take_in(batch))
        return batch

    async def admit(self, ident: str, dialect: Dialect, source: Path, tag: object = None) -> Batch:
        """Return a batch whose input was read.

        It is not there until it is kept, which is for the caller to say."""
        batch = self._new(ident, dialect, source, tag)
        await asyncio.shield(self._start(self._take_in(batch)))
        return batch

    def keep(self, batch: Batch) -> None:
        self._batches[batch.id] = batch

    def cancel(self, batch: Batch) -> bool:
        """Return whether it could be cancelled."""
        now = self.now()
        if batch.timeline.status(now) not in CANCELLABLE:
            return False
        batch.timeline.cancel_at = now
        return True

    async def results(self, batch: Batch, now: float) -> Results | None:
        """Return what came of a batch that is over by ``now``.

        It is None while it is not, and for one that was refused."""
        if batch.results is None and batch.index is not None and batch.timeline.is_over(now):
            if batch.writing is None:
                batch.writing = self._start(self._write(batch, batch.index))
            await asyncio.shield(batch.writing)
        return batch.results

    def forget_results(self, batch: Batch) -> None:
        """Forget the results, which the client deleted, or the batch that has them."""
        batch.deleted = True
        for path in () if batch.results is None else (batch.results.answers, batch.results.errors):
            if path is not None:
                self.folder.remove(path)
        if batch.index is not None and batch.writing is None:
            batch.index.remove()
            batch.source.unlink()
            batch.index = None

    def stats(self) -> dict[str, Any]:
        """Return for `GET /stats` the calls, and batches and requests by what became of them."""
        now = self.now()
        statuses = Counter(batch.timeline.status(now).value for batch in self._batches.values())
        unread = sum(
            1 for batch in self._batches.values() if batch.reads == 0 and batch.counts(now).good
        )
        return {
            "calls": dict(sorted(self._calls.items())),
            "by_status": dict(sorted(statuses.items())),
            "unread": unread,
            "stored_bytes": self.folder.stored,
        } | self._account.summary()

    def shown(self) -> list[dict[str, Any]]:
        newest = list(self._batches.values())[-MAX_SHOWN:]
        return [batch.shown(self.now()) for batch in newest]

    def requests(self, least: int) -> dict[str, dict[str, int]]:
        return self._account.listed(least)

    def reset(self) -> None:
        """Begin accounts from nothing; batches and files stay, since clients hold their ids."""
        self._account.reset()
        self._calls.clear()

    async def close(self) -> None:
        """Wait for what is being read and written, then remove all files."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._account.close()
        self.folder.close()

    def _new(self, ident: str, dialect: Dialect, source: Path, tag: object) -> Batch:
        if len(self._batches) >= MAX_BATCHES:
            message = (
                f"This simulator remembers {MAX_BATCHES} batches and has as many: start it anew."
            )
            raise Refused(Refusal(429, message, "requests", "rate_limit_exceeded"))
        self._made += 1
        plan = self._luck.plan(self.config, self._made)
        return Batch(ident, dialect, source, Timeline(plan, self.now()), tag)

    async def _take_in(self, batch: Batch) -> None:
        """Validate a batch.

        That takes as long as the settings say, and as long as reading takes."""
        found = await asyncio.to_thread(
            read_input, batch.source, batch.dialect.reader, Fates(self.config)
        )
        batch.problems = found.problems or self._no_room(batch, found)
        if not batch.problems:
            batch.model, batch.requests, batch.tokens = found.model, len(found), found.tokens
            order = f"{self.config.seed} {batch.id}" if batch.dialect.shuffled else None
            kept = Kept(self.folder.new(".index"), order)
            batch.index = await asyncio.to_thread(found.index, self._account, kept)
        else:
            batch.source.unlink()
        batch.timeline.failed = bool(batch.problems)
        batch.timeline.ready_at = max(
            self.now(), batch.timeline.created_at + batch.timeline.plan.step_s
        )

    def _no_room(self, batch: Batch, found: Intake) -> Sequence[Problem]:
        """Return why there is no room; a batch takes its room until it is over."""
        waiting = [other for other in self._open() if other is not batch]
        tokens = sum(other.tokens for other in waiting if other.model == found.model)
        requests = sum(
            other.requests for other in waiting if other.dialect.name == batch.dialect.name
        )
        queue = Queue(found.model, tokens + found.tokens, requests + len(found))
        problem = batch.dialect.no_room(queue, self.config)
        return () if problem is None else (problem,)

    def _open(self) -> Iterator[Batch]:
        now = self.now()
        return (batch for batch in self._batches.values() if not batch.timeline.is_over(now))

    async def _write(self, batch: Batch, index: Index) -> None:
        """Write the results once, for the first who asks.

        Then the batch's input is needed no more."""
        rest = Undone.CANCELLED if batch.timeline.cancel_at is not None else Undone.EXPIRED
        job = Job(
            batch.id, batch.source, index, batch.timeline.done(batch.requests, self.now()), rest
        )
        share = self.config.batch_spoilt_share if batch.dialect.shuffled else 0.0
        luck = LineLuck(self.config.seed, share, batch.id)
        writer = ResultWriter(self.folder, self._account, batch.dialect.wording, luck)
        batch.results = await asyncio.to_thread(writer.write, job)
        self._provider.pay(batch.results.usage, BATCH_PRICE)
        batch.index = None
        index.remove()
        batch.source.unlink()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
