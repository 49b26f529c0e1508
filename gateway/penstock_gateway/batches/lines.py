"""The lines of a batch's two files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec
import orjson

from penstock_gateway.backend import Backend
from penstock_gateway.batches.figures import CANCELLED, DEADLINE, ended_by_deadline
from penstock_gateway.batches.specs import input_path, spec_of_batch
from penstock_gateway.callers.caller import dead_letter_for
from penstock_ledger import DoorBatch, DoorBatchState, OutcomeStore
from penstock_ledger.lone_surrogates import dump_json, parse_json
from penstock_ledger.model import Counts, DeadLetter, ItemKey, Job, Result
from penstock_producer import SourceError, SourceUnavailable
from penstock_producer.dialects.translation import Untranslatable, answer_for
from penstock_producer.outputs import error_line, output_line
from penstock_producer.reporting.advice import over_http
from penstock_producer.sources import Document, FileSource, open_source

__all__ = [
    "JOB_FAILED",
    "Details",
    "NotReached",
    "errors_of",
    "in_words_of",
    "not_begun",
    "outputs_of",
    "why_failed",
]


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Reasoned(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Chat has the first two, responses the last two."""

    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Reasoned | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Reasoned | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


_READ: Final = msgspec.json.Decoder(_Body).decode


class Details:
    """Adds up what only the answers themselves say.

    The other figures are the ledger's: they count what was paid for, answers to requests that
    failed in the end too."""

    def __init__(self) -> None:
        self._cached = self._reasoning = 0

    def add(self, body: bytes) -> None:
        """Add the usage of an answer.

        A body that is no such answer adds nothing, and takes nothing from the others.
        """
        try:
            usage = _READ(body).usage
        except msgspec.DecodeError:
            return
        if usage is not None:
            cached = usage.prompt_tokens_details or usage.input_tokens_details
            reasoned = usage.completion_tokens_details or usage.output_tokens_details
            self._cached += (cached and cached.cached_tokens) or 0
            self._reasoning += (reasoned and reasoned.reasoning_tokens) or 0

    def usage(self, counts: Counts) -> dict[str, Any]:
        return {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": counts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning},
            "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        }


JOB_FAILED = "job_failed"


def why_failed(job: Job) -> str:
    return job.reason or "The job has failed."


class NotReached:
    """Read from the batch's file.

    Its ids are in memory meanwhile: as many as one batch may have requests."""

    def __init__(
        self, backend: Backend, batch: DoorBatch, job: Job, ended: Collection[str] | None = None
    ) -> None:
        """Read which requests have no line yet.

        ``ended`` are the documents that have a line elsewhere; None means those that have an
        outcome.
        """
        self._backend, self._batch, self._job = backend, batch, job
        self._ended = ended
        # why the file could not be read to its end; known once it was tried
        self.unread: str | None = None

    def ids(self) -> Iterator[str]:
        """Yield the ids of the documents.

        Raises SourceUnavailable while the batch's window is open: the file may come back.
        """
        ended = self._with_outcome() if self._ended is None else self._ended
        path = input_path(self._backend, self._batch)
        if path is None:
            self.unread = f"Cannot find file {self._batch.input_file_id}."
            return
        try:
            spec = spec_of_batch(self._backend.settings, self._batch, self._batch.window_s)
            for row in open_source(path, spec, self._backend.settings).documents({}):
                if isinstance(row, Document) and row.doc_id not in ended:
                    yield row.doc_id
        except SourceError as error:
            if isinstance(error, SourceUnavailable) and time.time() < self._batch.expires_at:
                raise
            self.unread = over_http(error.public_message).replace(path, "the input file")

    def lines(self) -> Iterator[bytes]:
        """Yield the requests as the error file has them."""
        for doc_id in self.ids():
            key = ItemKey(self._job.job_id, self._job.generation, doc_id)
            yield error_line(
                DeadLetter(
                    key=key,
                    reason=JOB_FAILED,
                    attempts=0,
                    calls=0,
                    last_error=why_failed(self._job),
                    status_code=None,
                    request=b"",
                    response=None,
                )
            )

    def _with_outcome(self) -> Collection[str]:
        pages = OutcomeStore(self._backend.database).terminal_docs(
            self._job.job_id, self._job.generation
        )
        return {doc_id for page in pages for doc_id, _ in page}


def in_words_of(batch: DoorBatch, job: Job, result: Result) -> Result:
    """Return an answer in the words of the batch's endpoint, where its provider has others.

    One of no API that is known stays as it is.
    """
    if job.spec["endpoint"] == batch.endpoint:
        return result
    with contextlib.suppress(Untranslatable):
        body = answer_for(batch.endpoint, result.body, batch.created_at)
        return msgspec.structs.replace(result, body=body)
    return result


def _in_openais_words(batch: DoorBatch, job: Job, letter: DeadLetter) -> DeadLetter:
    """Return a dead letter whose provider's error is in OpenAI's shape, where it has another."""
    if job.spec["endpoint"] == batch.endpoint:
        return letter
    try:
        given = parse_json(letter.response or b"")
    except orjson.JSONDecodeError:
        return letter
    error = given.get("error") if isinstance(given, dict) else None
    if not isinstance(error, dict):
        return letter
    told = {"message": error.get("message"), "type": error.get("type", error.get("status"))}
    return replace(letter, response=dump_json({"error": {**told, "param": None, "code": None}}))


EXPIRED: Final = "This request could not be executed before the completion window expired."
STOPPED: Final = "This request was not executed: the batch was cancelled."


def outputs_of(
    outcomes: OutcomeStore, batch: DoorBatch, job: Job, details: Details | None = None
) -> Iterator[bytes]:
    """Yield the lines of the output file, in the words of the batch's endpoint."""
    for stored in outcomes.results(job.job_id):
        result = in_words_of(batch, job, stored)
        if details is not None:
            details.add(result.body)
        yield output_line(result)


def errors_of(outcomes: OutcomeStore, batch: DoorBatch, job: Job) -> Iterator[bytes]:
    """Yield the lines of the error file.

    A request that was not executed says why: the window was over, or the batch was cancelled.
    """
    late = batch.state is not DoorBatchState.CANCELLING and ended_by_deadline(job)
    for letter in outcomes.dead_letters(job.job_id):
        if letter.reason not in (CANCELLED, DEADLINE):
            yield error_line(_in_openais_words(batch, job, dead_letter_for(job, letter)))
        elif late:
            yield error_line(replace(letter, reason=DEADLINE, last_error=EXPIRED, status_code=None))
        else:
            yield error_line(
                replace(letter, reason=CANCELLED, last_error=STOPPED, status_code=None)
            )


def not_begun(batch: DoorBatch, source: FileSource) -> Iterator[bytes]:
    """Yield every line that was a request, of a batch that was cancelled before it was a job."""
    for row in source.documents({}):
        if isinstance(row, Document):
            key = ItemKey(batch.batch_id, 1, row.doc_id)
            yield error_line(
                DeadLetter(
                    key=key,
                    reason=CANCELLED,
                    attempts=0,
                    calls=0,
                    last_error=STOPPED,
                    status_code=None,
                    request=b"",
                    response=None,
                )
            )
