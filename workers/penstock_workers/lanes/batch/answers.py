"""Reads the answers of a provider batch and settles them by the table of fates.

Answers are streamed, in any order, and settled a group at a time. Reading them again after a crash
changes nothing. No line costs the batch: what cannot be read, names no document of the batch, or
names one twice is counted and logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import orjson
import redis

from penstock_ledger import (
    AnswerBook,
    BatchFailure,
    ItemKey,
    OutcomeStore,
    ProviderBatch,
    RemainderStore,
)
from penstock_ratelimit import Signal
from penstock_workers.errors import JobCannotRun
from penstock_workers.failpoints import Failpoints
from penstock_workers.failure_log import FailureLog
from penstock_workers.item.answer import Answer, kept
from penstock_workers.item.attempt import Settled
from penstock_workers.item.failures import Failure, Reply, failure_of, name_failure
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Dead, Outcome, Retry
from penstock_workers.item.run.fates import RetryPolicy, decide
from penstock_workers.item.run.follow_ups import GOES_ON, note_escalated, wanting
from penstock_workers.item.run.job_code import JobCode
from penstock_workers.item.settling.rows import charge, dead_letter
from penstock_workers.item.settling.settle import Settler
from penstock_workers.lanes.batch.apis.provider import (
    BatchAnswer,
    BatchProvider,
    BatchSeen,
    LineProblem,
    UnreadableLine,
)
from penstock_workers.lanes.batch.equal import keep_answers
from penstock_workers.lanes.batch.packed import PackedBatch, PackedDocument
from penstock_workers.lanes.batch.records import BatchAttempt, attempt_of

log = logging.getLogger(__name__)

# Errors of lines that got no HTTP answer, by the names that failures have here.
_WITHOUT_STATUS: Final = {
    "batch_expired": "batch_expired",
    "batch_cancelled": "batch_cancelled",
    "request_timeout": "timeout",
}
_NO_STATUS: Final = 500  # of an error without a status: the code in its body decides


class Parting(NamedTuple):
    """On which terms the answers of a batch are taken whose job has left the lane."""

    # then a cancel at the provider was asked for here, and costs no document a try
    has_left: bool = False
    # its documents are in another lane, too: the first answer counts, and each was paid for
    is_handed_over: bool = False
    # at any time: what the job had in flight then may have answered some of its documents first
    has_moved: bool = False

    @property
    def takes_every_answer(self) -> bool:
        """Return whether each answer counts, whichever lane has its document now.

        What was paid for is stored or counted, whatever came of the document there."""
        return self.has_left or self.is_handed_over or self.has_moved


USUAL: Final = Parting()


class Judge:
    """Decides what answers of batches come to, on the event loop; a group is settled on return."""

    def __init__(
        self,
        outcomes: OutcomeStore,
        remainders: RemainderStore,
        code: JobCode,
        settler: Settler,
        policy: RetryPolicy,
        book: AnswerBook,
    ) -> None:
        self._outcomes, self._remainders = outcomes, remainders
        self._code, self._settler, self._policy = code, settler, policy
        self._book, self._failures = book, FailureLog(log)

    async def answers(
        self,
        batch: ProviderBatch,
        job: JobView,
        packed: PackedBatch,
        group: Sequence[tuple[PackedDocument, BatchAnswer | Failure]],
        parting: Parting = USUAL,
    ) -> None:
        """Settle documents by what they came to.

        Those that have an outcome or went on to another batch are left alone, as long as the job
        has not moved between lanes.

        Raises JobCannotRun, and then nothing of ``group`` is settled.
        """
        keys = [ItemKey(batch.job_id, batch.generation, document.doc_id) for document, _ in group]
        done = (
            set[ItemKey]()
            if parting.takes_every_answer
            else await asyncio.to_thread(self._left_alone, keys, batch.tag)
        )
        fresh = [pair for key, pair in zip(keys, group, strict=True) if key not in done]
        bodies = await asyncio.to_thread(packed.bodies, [document for document, _ in fresh])
        has_left = parting.takes_every_answer
        attempts = [
            attempt_of(
                document.before(ItemKey(batch.job_id, batch.generation, document.doc_id)),
                job,
                body,
                batch=batch.tag,
                beside=batch.requests,
                has_left=has_left,
                step=batch.step,
            )
            for (document, _), body in zip(fresh, bodies, strict=True)
        ]
        settled = await asyncio.gather(
            *(
                self._settled(attempt, said, parting)
                for attempt, (_, said) in zip(attempts, fresh, strict=True)
            )
        )
        await self._keep(job, settled)
        for one in settled:
            self._settler.put(one)
        await self._settler.flush()

    async def _keep(self, job: JobView, settled: Sequence[Settled]) -> None:
        """Keep results for later jobs; a Redis that is away costs them calls and nothing else."""
        try:
            await asyncio.to_thread(keep_answers, self._book, job, settled)
        except redis.RedisError as error:
            self._failures.tell("answers cannot be kept for later jobs", error, "they are stored")

    def _left_alone(self, keys: Sequence[ItemKey], tag: str) -> set[ItemKey]:
        """Return those that have an outcome, or went on to another batch; in a thread."""
        return self._outcomes.terminal(keys) | self._remainders.elsewhere(keys, tag)

    async def _settled(
        self, attempt: BatchAttempt, said: BatchAnswer | Failure, parting: Parting
    ) -> Settled:
        try:
            if isinstance(said, Failure) and said.name in PAID:
                attempt.calls = 1
            happened = said if isinstance(said, Failure) else await self._happened(attempt, said)
            if (
                parting.has_left
                and isinstance(happened, Failure)
                and happened.name == "batch_cancelled"
            ):
                happened = without_answer(BatchFailure("lane_left"))
            return Settled(attempt, self._outcome(attempt, happened))
        except JobCannotRun:
            # a hook that cannot be imported, a schema that cannot be used: the answers stay where
            # they are
            raise
        except Exception as error:
            log.exception("item %s: unexpected error in Penstock; it is tried again", attempt.tag)
            return Settled(attempt, self._outcome(attempt, failure_of(error)))

    async def _happened(self, attempt: BatchAttempt, answer: BatchAnswer) -> Failure | Reply:
        happened = _named(attempt, answer)
        charge(attempt, happened)
        spec = attempt.job.spec
        if isinstance(happened, Reply) and (spec.postprocess or spec.response_schema is not None):
            await self._code.ready(attempt)
            happened = await self._code.accept(attempt, happened)
        happened = wanting(attempt, happened)
        if happened is GOES_ON:  # into a batch for the better model
            note_escalated(attempt)
        return happened

    def _outcome(self, attempt: BatchAttempt, happened: Failure | Reply) -> Outcome:
        """Return the outcome; a try that costs none in other lanes counts here.

        A batch takes hours, so a document's tries must come to an end."""
        outcome = decide(attempt, happened, self._policy)
        if (
            not isinstance(outcome, Retry)
            or not isinstance(happened, Failure)
            or happened.name in NOT_ITS_FAULT
        ):
            return outcome
        if attempt.number >= attempt.job.spec.max_attempts:
            return Dead(dead_letter(attempt, happened))
        return replace(outcome, counted=True, to=None)


NOT_ITS_FAULT: Final = frozenset(
    {"batch_refused", "batch_stuck", "lane_left", "gave_way", GOES_ON.name}
)
"""Failures of a document whose batch the provider did not run, whose job has left the lane or given
way, or whose answer goes on to a better model: they cost no try."""


PAID: Final = frozenset({"answer_too_large"})
"""Failures of a document that the provider has answered; what the answer cost is not known."""


def without_answer(why: BatchFailure) -> Failure:
    """Return the failure of a document that its batch has ended without."""
    detail = why.detail or _WORDS.get(why.name, why.name)
    return Failure(why.name, detail, None, Signal.REFUSED)


_WORDS: Final = {
    "batch_expired": "the batch's time was over before the provider came to it",
    "batch_cancelled": "the batch was cancelled before the provider came to it",
    "batch_lost": "the provider gave no answer to it, and the batch has ended",
    "batch_refused": "the provider refused the batch for other lines of it",
    "batch_stuck": "its batch never came to an end",
    "lane_left": "its job has gone on to another lane",
    "gave_way": "its job has given way before the batch was created",
}


def _named(attempt: BatchAttempt, answer: BatchAnswer) -> Failure | Reply:
    if answer.status is None:
        name = _WITHOUT_STATUS.get(answer.error or "")
        if name is not None:
            return Failure(name, answer.message or _WORDS.get(name, name), None, Signal.REFUSED)
        error = {"error": {"code": answer.error, "message": answer.message}}
        return name_failure(Answer(_NO_STATUS, {}, orjson.dumps(error), 0), time.time())
    attempt.calls = 1
    body = kept(answer.status, answer.body)
    attempt.last_answer = body
    headers = {} if answer.request_id is None else {"x-request-id": answer.request_id}
    return name_failure(Answer(answer.status, headers, body, 0), time.time())


GROUP: Final = 400  # documents that are settled together
# of their requests and answers; one document more is in it at most
GROUP_BYTES: Final = 16 * 1024 * 1024
TOLD_MAX: Final = 3  # odd lines of a batch that are in the log one by one

Pair = tuple[PackedDocument, BatchAnswer | Failure]


@dataclass(slots=True)
class Group:
    """Documents that are settled together."""

    pairs: list[Pair] = field(default_factory=list)
    size: int = 0

    def add(self, document: PackedDocument, said: BatchAnswer | Failure) -> bool:
        """Add a document; return whether the group is full."""
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
    """The content of one batch's outputs."""

    answers: int = 0  # of different documents, good or not
    good: int = 0  # of these: what the provider counts as succeeded
    documents: int = 0  # of the batch, as far as they are known here
    left: int = 0  # documents without one
    odd: Counter[str] = field(default_factory=Counter)  # unreadable, unknown, repeated

    def is_short(self, batch: ProviderBatch, seen: BatchSeen) -> bool:
        """Return whether the outputs held fewer answers than the provider has counted.

        Where it does not count: whether a batch that came to its end has left out documents."""
        if seen.counts is None:
            return self.left > 0 and not seen.expired and not seen.cancelled
        # some count what failed twice
        counted = min(seen.counts.succeeded + seen.counts.failed, self.documents)
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
    """Reads the answers of one batch, on the event loop."""

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
        """Make every answer an outcome, or leave its document to the next batch.

        ``parting`` is asked for each group: the job may leave while they are read. ``collected``
        says how far it came, also where it raises as the provider does.
        """
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
        """Settle documents whose lines the provider's validation refused; return how many.

        There is one problem at least."""
        found = await asyncio.to_thread(_at_lines, packed, batch, problems)
        for group in _groups(found):
            await self._settle(batch, job, packed, group)
        return len(found)

    async def unanswered(
        self, batch: ProviderBatch, job: JobView, packed: PackedBatch, why: BatchFailure
    ) -> int:
        """Send every document without an outcome into another batch.

        Returns how many were looked at."""
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
    """Return the failure of an answer that was paid for and would be as long again."""
    return Failure(
        "answer_too_large", f"the line of its answer in {line.output} is not read: {line.why}", None
    )


def _at_lines(
    packed: PackedBatch, batch: ProviderBatch, problems: Sequence[LineProblem]
) -> list[Pair]:
    """Return the documents whose lines have a problem.

    None where the files were packed again with other lines than the provider has seen. The only
    document of a batch is meant whatever the provider names.
    """
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
