"""Reads the answers of a provider batch that has ended, and gives each document what it came to.

Answers are streamed, in any order, and settled a group at a time. Reading them again after a crash changes nothing. No line
costs the batch: what cannot be read, names no document of the batch, or names one twice is counted and logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock_ledger import ProviderBatch
from penstock_ratelimit import Signal
from penstock_workers.failpoints import Failpoints
from penstock_workers.item.attempt import JobView
from penstock_workers.item.failures import Failure
from penstock_workers.lanes.batch.judging import USUAL, Judge, Parting, without_answer
from penstock_workers.lanes.batch.packed import PackedBatch, PackedDocument
from penstock_workers.lanes.batch.provider import BatchAnswer, BatchProvider, BatchSeen, LineProblem, UnreadableLine

log = logging.getLogger(__name__)

GROUP: Final = 200  # documents that are settled together
TOLD_MAX: Final = 3  # odd lines of a batch that are in the log one by one


@dataclass(slots=True)
class Collected:
    """What the outputs of one batch held."""

    answers: int = 0
    odd: Counter[str] = field(default_factory=Counter)  # unreadable, unknown, repeated

    def note_odd(self, batch: ProviderBatch, kind: str, what: str) -> None:
        self.odd[kind] += 1
        if self.odd[kind] <= TOLD_MAX:
            log.warning(
                "provider batch %s of job %s: a line of its output is left out: %s", batch.tag, batch.job_id, what
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
        parting: Parting = USUAL,
    ) -> Collected:
        """Every answer becomes an outcome, or its document waits for the next batch. Raises as the provider does."""
        left = await asyncio.to_thread(packed.by_id)
        known, collected = frozenset(left), Collected()
        group: list[tuple[PackedDocument, BatchAnswer | Failure]] = []
        async with contextlib.aclosing(provider.answers(seen)) as answers:
            async for answer in answers:
                if isinstance(answer, UnreadableLine):
                    collected.note_odd(batch, "unreadable", f"{answer.output} line {answer.line}: {answer.why}")
                    continue
                document = left.pop(answer.custom_id, None)
                if document is None:
                    kind = "repeated" if answer.custom_id in known else "unknown"
                    collected.note_odd(batch, kind, f"its custom_id {answer.custom_id[:80]!r} is {kind}")
                    continue
                collected.answers += 1
                group.append((document, answer))
                if len(group) >= GROUP:
                    await self._settle(batch, job, packed, group, parting)
                    group = []
        await self._settle(batch, job, packed, group, parting)
        return collected

    async def refused(
        self, batch: ProviderBatch, job: JobView, packed: PackedBatch, problems: Iterable[LineProblem]
    ) -> int:
        """Documents whose lines the provider's validation refused; returns how many."""
        by_line = {problem.line: problem for problem in problems if problem.line is not None}
        found = await asyncio.to_thread(_at_lines, packed, batch, by_line)
        for start in range(0, len(found), GROUP):
            await self._settle(batch, job, packed, found[start : start + GROUP])
        return len(found)

    async def unanswered(self, batch: ProviderBatch, job: JobView, packed: PackedBatch, why: str) -> int:
        """Every document of the batch that has no outcome yet goes on to another one; returns how many were looked at."""
        failure, looked_at = without_answer(why), 0
        documents = await asyncio.to_thread(lambda: list(packed.documents()))
        for start in range(0, len(documents), GROUP):
            group = documents[start : start + GROUP]
            await self._settle(batch, job, packed, [(document, failure) for document in group])
            looked_at += len(group)
        return looked_at

    async def _settle(
        self,
        batch: ProviderBatch,
        job: JobView,
        packed: PackedBatch,
        group: Sequence[tuple[PackedDocument, BatchAnswer | Failure]],
        parting: Parting = USUAL,
    ) -> None:
        if group:
            await self._judge.answers(batch, job, packed, group, parting)
            self._failpoints.hit("batch_collecting")


def _at_lines(
    packed: PackedBatch, batch: ProviderBatch, by_line: dict[int, LineProblem]
) -> list[tuple[PackedDocument, BatchAnswer | Failure]]:
    """Nothing where the files were packed again with other lines than the provider has seen."""
    documents = list(packed.documents())
    if len(documents) != batch.requests:
        return []
    return [
        (document, Failure("bad_request", f"{problem.code}: {problem.message}", None, Signal.REFUSED))
        for line, document in enumerate(documents, start=1)
        if (problem := by_line.get(line)) is not None
    ]
