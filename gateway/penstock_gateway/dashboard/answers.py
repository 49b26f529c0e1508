"""A sample of what a job has answered, beside what was asked.

A result keeps no request. The first documents of a job's source are cheap to read, so those are
shown with their answers; of a document that is asked for by name the answer is shown alone, or with
the request that its dead letter keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from penstock_gateway.dashboard.foreign import Shown, Turn, answer_of, prompt_of
from penstock_gateway.for_tenants import error_for
from penstock_ledger import Database, DeadLetter, Job, JobStore, OutcomeStore, PenstockError, Result
from penstock_producer.reporting.text import count, one_line
from penstock_producer.reporting.words import milliseconds
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import Document
from penstock_producer.sources.of_feed import source_of

__all__ = ["Answered", "Sample", "answered", "sample"]

SAMPLE: Final = 10
# documents of the source that are read for it: some of them have no answer yet
READ_MAX: Final = 40
ID_CHARS: Final = 512


class Answered(NamedTuple):
    """One document. ``prompt`` is empty where what was asked is not at hand."""

    doc_id: str
    name: str
    prompt: Sequence[Turn]
    answer: Shown
    facts: Sequence[str]
    failed: bool


class Sample(NamedTuple):
    """``why`` says why the prompts are missing."""

    documents: Sequence[Answered]
    why: str


def sample(database: Database, job: Job, settings: ProducerSettings) -> Sample:
    """Return the first documents of the source that have an outcome.

    Where the source cannot be read, some results are returned without what was asked.
    """
    outcomes = OutcomeStore(database)
    try:
        documents = _first(database, job, settings)
    # the last of a pin that another release wrote
    except (PenstockError, OSError, ValueError, LookupError) as error:
        said = one_line(error_for(job, str(error)), 300)
        why = f"What was asked is not shown, as the source cannot be read from here: {said}"
        return Sample(_without_prompts(outcomes, job), why)
    found = list[Answered]()
    for document in documents:
        outcome = outcomes.get(job.job_id, document.doc_id)
        if outcome is not None:
            found.append(answered(outcome, document.body))
        if len(found) == SAMPLE:
            break
    if found:
        return Sample(found, "")
    return Sample(
        _without_prompts(outcomes, job),
        "What was asked is not shown: the first documents have no answer yet.",
    )


def answered(outcome: Result | DeadLetter, request: bytes = b"") -> Answered:
    doc_id = outcome.key.doc_id
    body = request or (outcome.request if isinstance(outcome, DeadLetter) else b"")
    facts = [f"{count(outcome.attempts)} {'try' if outcome.attempts == 1 else 'tries'}"]
    if outcome.latency_ms:
        facts.append(milliseconds(outcome.latency_ms))
    if outcome.prompt_tokens is not None or outcome.completion_tokens is not None:
        facts.append(
            f"{count(outcome.prompt_tokens or 0)} tokens in, "
            f"{count(outcome.completion_tokens or 0)} out"
        )
    if isinstance(outcome, Result):
        facts += [one_line(name) for name in (outcome.model, outcome.finish_reason) if name]
        answer = answer_of(outcome.body)
    else:
        facts.append(one_line(outcome.reason))
        answer = answer_of(outcome.last_error.encode("utf-8", "replace"))
    prompt = prompt_of(body) if body else ()
    return Answered(
        doc_id, one_line(doc_id, ID_CHARS), prompt, answer, facts, isinstance(outcome, DeadLetter)
    )


def _first(database: Database, job: Job, settings: ProducerSettings) -> list[Document]:
    feeds = JobStore(database).feeds(job.job_id)
    source = source_of(database, job, min(feeds, key=lambda feed: feed.generation), settings)
    return [one for one in islice(source.documents({}), READ_MAX) if isinstance(one, Document)]


def _without_prompts(outcomes: OutcomeStore, job: Job) -> list[Answered]:
    return [
        answered(result) for result in islice(outcomes.results(job.job_id, page=SAMPLE), SAMPLE)
    ]
