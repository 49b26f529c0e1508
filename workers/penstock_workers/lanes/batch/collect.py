"""Reads the answers of a provider batch that has ended, and gives each document what it came to.

Answers are streamed, in any order, and settled a group at a time. Reading them again after a crash
changes nothing. No line costs the batch: what cannot be read, names no document of the batch, or
names one twice is counted and logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock_ledger import ProviderBatch
from penstock_ratelimit import Signal
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.attempt import JobView
from penstock_workers.item.failures import Failure
from penstock_workers.lanes.batch.judging import USUAL, Judge, Parting, without_answer
from penstock_workers.lanes.batch.packing.packed import PackedBatch, PackedDocument
from penstock_workers.lanes.batch.provider import (
    BatchAnswer,
    BatchProvider,
    BatchSeen,
    LineProblem,
    UnreadableLine,
)

log = logging.getLogger(__name__)

GROUP: Final = 400  # documents that are settled together
GROUP_BYTES: Final = (
    16 * 1024 * 1024
)  # of their requests and answers; one document more is in it at most
TOLD_MAX: Final = 3  # odd lines of a batch that are in the log one by one

Pair = tuple[PackedDocument, BatchAnswer | Failure]


@dataclass(slots=True)
class Group:
    """Documents that are settled together."""

    pairs: list[Pair] = field(default_factory=list)
    size: int = 0

    def add(self, document: PackedDocument, said: BatchAnswer | Failure) -> bool:
        """Whether it is full."""
        self.pairs.append((document, said))
        self.size += document.size + (len(said.body) if isinstance(said, BatchAnswer) else 0)
        return len(self.pairs) >= GROUP or self.size >= GROUP_BYTES


def _groups(pairs: Iterable[Pair]) -> Iterator[Group]:
    group = Group()
    for document, said in pairs:
        if group.add(document, said):
            yield group
            group = Group()
    yield group


@dataclass(slots=True)
class Collected:
    """What the outputs of one batch held."""

    answers: int = 0  # of different documents, good or not
    good: int = 0  # of these: what the provider counts as succeeded
    documents: int = 0  # of the batch, as far as they are known here
    left: int = 0  # documents without one
    odd: Counter[str] = field(default_factory=Counter)  # unreadable, unknown, repeated

    def is_short(self, batch: ProviderBatch, seen: BatchSeen) -> bool:
        """Whether the provider has counted more answers than its outputs held; where it does not
        count, whether a batch that came to its end has left out documents."""
        if seen.counts is None:
            return self.left > 0 and not seen.expired and not seen.cancelled
        counted = min(
            seen.counts.succeeded + seen.counts.failed, self.documents
        )  # some count what failed twice
        return self.good < seen.counts.succeeded and self.answers < counted

    def note_odd(self, batch: ProviderBatch, kind: str, what: str) -> None:
        self.odd[kind] += 1
        if self.odd[kind] <= TOLD_MAX:
            log.warning(
                "provider batch %s of job %s: a line of its output is left out: %s",
                batch.tag,
                batch.job_id,
                what,
            )


class Collector:
    """Used on the event loop."""

    def __init__(self, judge: Judge, failpoints: Failpoints) -> None:
        self._judge, self._failpoints = judge, failpoints

    async def answers(
        self,
        batch: ProviderBatch,
        job: JobView,
        packed: PackedBatch,
        provider: BatchProvider,
        seen: BatchSeen,
        parting: Callable[[], Parting],
        collected: Collected,
    ) -> None:
        """Every answer becomes an outcome, or its document waits for the next batch.

        ``parting`` is asked for each group: the job may leave while they are read. ``collected``
        says how far it came, also where it raises as the provider does."""
        left = await asyncio.to_thread(packed.by_id)
        known = frozenset(left)
        collected.documents = collected.left = len(left)
        group = Group()
        async with contextlib.aclosing(provider.answers(seen)) as answers:
            async for answer in answers:
                if isinstance(answer, UnreadableLine):
                    collected.note_odd(
                        batch, "unreadable", f"{answer.output} line {answer.line}: {answer.why}"
                    )
                custom_id = answer.custom_id
                if custom_id is None:
                    continue
                document = left.pop(custom_id, None)
                if document is None:
                    kind = "repeated" if custom_id in known else "unknown"
                    collected.note_odd(batch, kind, f"its custom_id {custom_id[:80]!r} is {kind}")
                    continue
                collected.answers, collected.left = collected.answers + 1, len(left)
                collected.good += isinstance(answer, UnreadableLine) or answer.status == 200
                if group.add(
                    document, _too_large(answer) if isinstance(answer, UnreadableLine) else answer
                ):
                    await self._settle(batch, job, packed, group, parting())
                    group = Group()
        await self._settle(batch, job, packed, group, parting())

    async def refused(
        self,
        batch: ProviderBatch,
        job: JobView,
        packed: PackedBatch,
        problems: Sequence[LineProblem],
    ) -> int:
        """Documents whose lines the provider's validation refused; returns how many.

        There is one problem at least."""
        found = await asyncio.to_thread(_at_lines, packed, batch, problems)
        for group in _groups(found):
            await self._settle(batch, job, packed, group)
        return len(found)

    async def unanswered(
        self, batch: ProviderBatch, job: JobView, packed: PackedBatch, why: str
    ) -> int:
        """Every document of the batch that has no outcome yet goes on to another one; returns how
        many were looked at."""
        failure = without_answer(why)
        documents = await asyncio.to_thread(lambda: list(packed.documents()))
        for group in _groups((document, failure) for document in documents):
            await self._settle(batch, job, packed, group)
        return len(documents)

    async def _settle(
        self,
        batch: ProviderBatch,
        job: JobView,
        packed: PackedBatch,
        group: Group,
        parting: Parting = USUAL,
    ) -> None:
        if group.pairs:
            await self._judge.answers(batch, job, packed, group.pairs, parting)
            self._failpoints.hit("batch_collecting")


def _too_large(line: UnreadableLine) -> Failure:
    """It was paid for, and would be as long again."""
    return Failure(
        "answer_too_large", f"the line of its answer in {line.output} is not read: {line.why}", None
    )


def _at_lines(
    packed: PackedBatch, batch: ProviderBatch, problems: Sequence[LineProblem]
) -> list[Pair]:
    """Nothing where the files were packed again with other lines than the provider has seen.

    The only document of a batch is meant whatever the provider names."""
    documents = list(packed.documents())
    if len(documents) != batch.requests:
        return []
    by_line = {problem.line: problem for problem in problems if problem.line is not None}
    if len(documents) == 1:
        by_line[1] = problems[0]
    return [
        (
            document,
            Failure("bad_request", f"{problem.code}: {problem.message}", None, Signal.REFUSED),
        )
        for line, document in enumerate(documents, start=1)
        if (problem := by_line.get(line)) is not None
    ]
