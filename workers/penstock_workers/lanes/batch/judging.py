"""What each answer of a provider batch means for its document: by the same table of failures as in
every lane."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from penstock_ledger import ItemKey, OutcomeStore, ProviderBatch, RemainderStore
from penstock_producer.feed.queues import queue_name
from penstock_producer.feed.wire import CALLS_HEADER, SPENT_HEADER, ItemMessage, item_tag
from penstock_ratelimit import Signal
from penstock_workers.errors import JobCannotRun
from penstock_workers.item.answer import Answer, kept
from penstock_workers.item.attempt import JobView, Settled
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.failures import Failure, Reply, name_failure
from penstock_workers.item.outcome import Dead, Outcome, Retry
from penstock_workers.item.run.fates import decide
from penstock_workers.item.run.job_code import JobCode
from penstock_workers.item.run.retry_policy import RetryPolicy
from penstock_workers.item.settling.rows import dead_letter, spent_on
from penstock_workers.item.settling.settle import Settler
from penstock_workers.item.turned_away import failure_of
from penstock_workers.lanes.batch.packing.packed import PackedBatch, PackedDocument
from penstock_workers.lanes.batch.provider import BatchAnswer
from penstock_workers.lanes.batch.records import BatchAttempt

log = logging.getLogger(__name__)

# Errors of lines that got no HTTP answer, by the names that failures have here.
_WITHOUT_STATUS: Final = {
    "batch_expired": "batch_expired",
    "batch_cancelled": "batch_cancelled",
    "request_timeout": "timeout",
}
NO_REQUEST: Final = b"{}"  # what hooks see of a request that is lost
_NO_STATUS: Final = 500  # of an error without a status: the code in its body decides


class Parting(NamedTuple):
    """On which the answers of a batch are taken whose job has left the lane."""

    has_left: bool = (
        False  # then a cancel at the provider was asked for here, and costs no document a try
    )
    # its documents are in another lane, too: the first answer counts, and each was paid for
    is_handed_over: bool = False
    # at any time: what the job had in flight then may have answered some of its documents first
    has_moved: bool = False

    @property
    def takes_every_answer(self) -> bool:
        """Whichever lane has its documents now, and whatever came of them there: what was paid for
        is stored or counted."""
        return self.has_left or self.is_handed_over or self.has_moved


USUAL: Final = Parting()


class Judge:
    """Used on the event loop; groups are settled by the time a call returns."""

    def __init__(
        self,
        outcomes: OutcomeStore,
        remainders: RemainderStore,
        code: JobCode,
        settler: Settler,
        policy: RetryPolicy,
    ) -> None:
        self._outcomes, self._remainders = outcomes, remainders
        self._code, self._settler, self._policy = code, settler, policy

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
            _attempt(batch, job, document, body, has_left)
            for (document, _), body in zip(fresh, bodies, strict=True)
        ]
        settled = await asyncio.gather(
            *(
                self._settled(attempt, said, parting)
                for attempt, (_, said) in zip(attempts, fresh, strict=True)
            )
        )
        for one in settled:
            self._settler.put(one)
        await self._settler.flush()

    def _left_alone(self, keys: Sequence[ItemKey], tag: str) -> set[ItemKey]:
        """In a thread: those that have an outcome, or went on to another batch."""
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
                happened = without_answer("lane_left")
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
        attempt.spent = spent_on(attempt, happened)
        spec = attempt.job.spec
        if isinstance(happened, Reply) and (spec.postprocess or spec.response_schema is not None):
            await self._code.ready(attempt)
            return await self._code.accept(attempt, happened)
        return happened

    def _outcome(self, attempt: BatchAttempt, happened: Failure | Reply) -> Outcome:
        """A batch takes hours, so that a try which costs none in other lanes counts here: a
        document's tries come to an end."""
        outcome = decide(attempt, happened, self._policy)
        if (
            not isinstance(outcome, Retry)
            or not isinstance(happened, Failure)
            or happened.name in NOT_ITS_FAULT
        ):
            return outcome
        if attempt.number >= attempt.job.spec.max_attempts:
            return Dead(dead_letter(attempt, happened))
        return Retry(
            outcome.after_s, outcome.error, counted=True, rate_limited=outcome.rate_limited
        )


NOT_ITS_FAULT: Final = frozenset({"batch_refused", "batch_stuck", "lane_left"})
"""Failures of a document whose batch the provider did not run, or whose job has left the lane: they
cost no try."""


PAID: Final = frozenset({"answer_too_large"})
"""Failures of a document that the provider has answered; what the answer cost is not known."""


def without_answer(why: str) -> Failure:
    """Of a document that its batch has ended without.

    ``why`` is the name of the failure, maybe with more words."""
    name, _, detail = why.partition(": ")
    return Failure(name, detail or _WORDS.get(name, name), None, Signal.REFUSED)


_WORDS: Final = {
    "batch_expired": "the batch's time was over before the provider came to it",
    "batch_cancelled": "the batch was cancelled before the provider came to it",
    "batch_lost": "the provider gave no answer to it, and the batch has ended",
    "batch_refused": "the provider refused the batch for other lines of it",
    "batch_stuck": "its batch never came to an end",
    "lane_left": "its job has gone on to another lane",
}


def _attempt(
    batch: ProviderBatch, job: JobView, document: PackedDocument, body: bytes, has_left: bool
) -> BatchAttempt:
    key = ItemKey(batch.job_id, batch.generation, document.doc_id)
    spent = [document.prompt_tokens, document.completion_tokens, document.cost_microusd]
    headers = {CALLS_HEADER: document.calls, SPENT_HEADER: spent}
    delivery = Delivery(
        item_tag(key), None, headers, retries=document.attempts, queue=queue_name(job.spec.lane)
    )
    message = ItemMessage(key, body, None, job.named_endpoint)
    return BatchAttempt(
        delivery,
        message,
        key,
        job=job,
        given=body,
        body=body or NO_REQUEST,
        batch=batch.tag,
        position=document.position,
        beside=batch.requests,
        has_left=has_left,
    )


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
