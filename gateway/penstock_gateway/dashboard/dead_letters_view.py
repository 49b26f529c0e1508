"""Pages show single documents: dead letters, and a sample of what was answered.

A dead letter is one line, or one of a group whose errors are alike; by itself it says why it failed
and what was asked and answered, and holds the request to be corrected. A result keeps no request:
the first documents of a job's source are cheap to read, so those are shown with their answers; of a
document that is asked for by name the answer is shown alone, or with the request that its dead
letter keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.callers.caller import error_for
from penstock_gateway.dashboard.foreign import (
    MOST_CHARS,
    Shown,
    Turn,
    answer_of,
    json_text,
    prompt_of,
    shown,
)
from penstock_gateway.dashboard.viewer import JobHead, Viewer, head_of, page
from penstock_gateway.refused import Refused, not_found
from penstock_gateway.render import Part, parts
from penstock_ledger import (
    Database,
    DeadLetter,
    DeadLetterLine,
    Job,
    JobStore,
    OutcomeStore,
    PenstockError,
    Result,
    dead_letter_lines,
)
from penstock_producer.reporting.advice import FIXES, on_page
from penstock_producer.reporting.text import count, counted, one_line
from penstock_producer.reporting.words import milliseconds, moment
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources import Document
from penstock_producer.sources.of_feed import source_of

__all__ = [
    "EDIT_MAX",
    "GROUPED_MAX",
    "Answered",
    "Group",
    "Sample",
    "alike",
    "answered",
    "dead_letter_of",
    "dead_letter_page",
    "dead_letter_rows",
    "groups",
    "members",
    "sample",
]


EDIT_MAX: Final = MOST_CHARS  # bytes of a request that is edited in a browser

# dead letters that are read to be grouped: without their bodies some megabytes
GROUPED_MAX: Final = 5_000
GROUPS_SHOWN: Final = 50
ERROR_CHARS: Final = 300
ALIKE_CHARS: Final = 160  # of what two errors have in common; what differs behind that is details
ID_CHARS: Final = 512

# What differs between errors that are alike: ids, hashes, addresses, quoted values and numbers. A
# status is none of these, and stays. Each pattern is linear.
_VALUES: Final = re.compile(
    r"(?P<status>\bHTTP [1-5][0-9]{2}\b)"
    r"|(?P<id>\b(?:[a-z]{2,12}[-_])?(?=[0-9A-Za-z-]*[0-9])[0-9A-Za-z]{8,64}(?:-[0-9A-Za-z]{2,64}){0,6}\b)"
    r"|(?P<quoted>\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|`[^`\n]{1,200}`)"
    r"|(?P<number>\d[\d.,:]{0,30})"
)
_NAMES: Final = {"id": "ID", "quoted": "“…”", "number": "N"}


async def dead_letter_page(
    request: Request,
    viewer: Viewer,
    job: Job,
    doc_id: str,
    *,
    refused: Refused | None = None,
    typed: str | None = None,
) -> Response:
    """Show one letter; ``refused`` says what is wrong with ``typed``, which the form has again.

    Raises Refused for no such letter."""

    def read() -> tuple[DeadLetter, bool, JobHead]:
        dead = viewer.desk.outcomes.counts(job.job_id).dead
        letter = dead_letter_of(viewer, job, doc_id)
        lines = dead_letter_lines(viewer.desk.database, job.job_id, only=letter.key, limit=1)
        replayable = any(line.replayable for line in lines)
        return letter, replayable, head_of(viewer.desk, job, dead)

    letter, replayable, head = await viewer.backend.run(read)
    values = _values(job, letter, replayable) | ({} if typed is None else {"body": typed})
    return page(
        "dead_letter.html.jinja",
        viewer,
        request,
        status=200 if refused is None else refused.status,
        job=head,
        fault="" if refused is None else refused.message,
        **values,
    )


def dead_letter_of(viewer: Viewer, job: Job, doc_id: str) -> DeadLetter:
    """Return the visible dead letter of a document. Raises Refused where there is none."""
    outcome = viewer.desk.outcomes.get(job.job_id, doc_id)
    if not isinstance(outcome, DeadLetter):
        raise not_found("dead letter", doc_id)
    return outcome


def _values(job: Job, letter: DeadLetter, replayable: bool) -> dict[str, Any]:
    row = DeadLetterRow(
        letter.key.doc_id,
        one_line(letter.key.doc_id, 512),
        letter.reason,
        count(letter.attempts),
        "" if letter.status_code is None else str(letter.status_code),
        "",
        replayable,
    )
    tries = "1 try" if letter.attempts == 1 else f"{count(letter.attempts)} tries"
    facts = [tries, counted(letter.calls, "call"), f"generation {letter.key.generation}"]
    if letter.line:
        facts.append(f"line {count(letter.line)} of the source")
    if letter.created_at is not None:
        facts.append(moment(letter.created_at))
    return {
        "letter": row,
        "error": shown(error_for(job, letter.last_error)),
        "facts": " · ".join(facts),
        "fix": on_page(FIXES.get(letter.reason, "")),
        "prompt": prompt_of(letter.request) if letter.replayable else [],
        "response": shown(json_text(letter.response)),
        "body": json_text(letter.request) if len(letter.request) <= EDIT_MAX else None,
    }


class DeadLetterRow(NamedTuple):
    doc_id: str  # as it is, for links
    name: str
    reason: str
    tries: str
    status: str
    error: str
    replayable: bool


class Group(NamedTuple):
    """Dead letters of one reason whose errors differ in values only."""

    reason: str
    alike: str
    number: str
    share: Sequence[Part]
    example: str  # a document
    replayable: int
    fix: str


def dead_letter_rows(job: Job, lines: Iterable[DeadLetterLine]) -> list[DeadLetterRow]:
    return [
        DeadLetterRow(
            line.doc_id,
            one_line(line.doc_id, ID_CHARS),
            line.reason,
            count(line.attempts),
            "" if line.status_code is None else str(line.status_code),
            one_line(error_for(job, line.last_error), ERROR_CHARS),
            line.replayable,
        )
        for line in lines
    ]


def alike(error: str) -> str:
    """Return what is left of an error without its values: equal for errors that are alike."""
    cut = one_line(error, ERROR_CHARS)
    return _VALUES.sub(lambda found: _NAMES.get(str(found.lastgroup), found[0]), cut)[
        :ALIKE_CHARS
    ].strip()


def groups(lines: Iterable[DeadLetterLine]) -> list[Group]:
    """Group dead letters by reason and by error, the largest group first."""
    found: dict[tuple[str, str], list[DeadLetterLine]] = {}
    for line in lines:
        found.setdefault((line.reason, alike(line.last_error)), []).append(line)
    ordered = sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    most = max((len(same) for same in found.values()), default=1)
    return [
        Group(
            reason,
            same_words,
            count(len(same)),
            parts([("bad", len(same))], most),
            same[0].doc_id,
            sum(line.replayable for line in same),
            on_page(FIXES.get(reason, "")),
        )
        for (reason, same_words), same in ordered[:GROUPS_SHOWN]
    ]


def members(lines: Iterable[DeadLetterLine], reason: str, same_words: str) -> list[str]:
    """Return the documents of one group that can be sent again."""
    return [
        line.doc_id
        for line in lines
        if line.replayable and line.reason == reason and alike(line.last_error) == same_words
    ]


SAMPLE: Final = 10
# documents of the source that are read for it: some of them have no answer yet
READ_MAX: Final = 40


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
