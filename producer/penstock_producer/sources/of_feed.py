"""A feed reads a source, a shard of one, an open job's spool, or dead letters again.

A shard ends at one of its source's own cursors. It asks of a source what resuming asks, too: a row
has the same cursor each time it is read, and no other row has it. Where the row at the end is gone,
the shard goes on to the end of the source; what other shards have fed is dropped by the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from penstock_ledger import Database, JobStore, OutcomeStore, SourceKeys, Spool
from penstock_ledger.model import DeadLetter, Feed, FeedKind, Job
from penstock_producer.errors import BadReference, RowChanged, SourceChanged, SourceError, seen
from penstock_producer.job.endpoints import UPLOADS
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import BadRow, Cursor, Document, FiniteSource, Source
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.databases.address import KIND as TABLE
from penstock_producer.sources.databases.source import accepted
from penstock_producer.sources.forms.strict_json import RowFault
from penstock_producer.sources.open import open_source
from penstock_producer.sources.outcomes import KIND as OUTCOMES
from penstock_producer.sources.outcomes import OutcomesSource
from penstock_producer.sources.overrides import Overrides

__all__ = ["open_feed_source", "source_of"]


class Around:
    """A source that answers as the one inside, but for what a subclass says."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def pin(self) -> dict[str, Any]:
        return self._source.pin()

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        return self._source.documents(cursor)

    def fetch(self, position: str) -> Document:
        return self._source.fetch(position)

    def ended(self) -> bool:
        return self._source.ended()

    def mark_published(self, documents: Sequence[Document]) -> None:
        self._source.mark_published(documents)


class Until(Around):
    """The rows of ``source`` up to and with the one whose cursor is ``ends_at``."""

    def __init__(self, source: Source, ends_at: Mapping[str, Any]) -> None:
        super().__init__(source)
        self._ends_at = dict(ends_at)

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        if cursor == self._ends_at:
            return
        for row in self._source.documents(cursor):
            yield row
            if row.cursor == self._ends_at:
                return


# behind a position: the digest of the files in its document's request
_OF_FILES: Final = re.compile(r"(?s)(.*)#([0-9a-f]{16})")
_FILE: Final = b";base64,"  # before the content of each of them


class PinnedFiles(Around):
    """Documents whose requests hold files: their positions say which content these had.

    An address may have another file at the next look, and what is sent must be what was fed."""

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        for row in self._source.documents(cursor):
            if isinstance(row, Document):
                row = row._replace(position=f"{row.position}#{_digest_of_files(row.body)}")
            yield row

    def fetch(self, position: str) -> Document:
        """Read one document; raise RowChanged where its files are not those that were fed."""
        fed = _OF_FILES.fullmatch(position)
        if fed is None:  # by a release that noted no digests
            return self._source.fetch(position)
        document = self._source.fetch(fed[1])
        if fed[2] != _digest_of_files(document.body):
            raise RowChanged(
                f"a file of {seen(document.doc_id)} is not the one that it was when the document "
                "was fed; restore it, or submit the new content as a new job"
            )
        return document._replace(position=position)


def _digest_of_files(body: bytes) -> str:
    found, view, end = sha256(), memoryview(body), 0
    while (begin := body.find(_FILE, end)) >= 0:
        end = max(body.find(b'"', begin), begin + 1)
        found.update(view[begin:end])
    return found.hexdigest()[:16]


SPOOL = "spool"
SPOOL_PIN = {"kind": SPOOL}
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_ROWS_PER_TAKE = 500  # a few megabytes of bodies at most in memory, one query for each


class SpoolSource:
    """The documents in the spool of one job that are not yet fed."""

    def __init__(self, job_id: str, spool: Spool, jobs: JobStore) -> None:
        self._job_id = job_id
        self._spool = spool
        self._jobs = jobs
        self._ended = False

    def pin(self) -> dict[str, Any]:
        return dict(SPOOL_PIN)

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        """Yield one group of rows.

        Ask again once they are marked as published: until then they would come again.
        """
        # In this order: a job that was closed before the rows were counted gets no more of them.
        closed = self._jobs.get(self._job_id).total is not None
        rows = self._spool.take(self._job_id, _ROWS_PER_TAKE)
        for row in rows:
            yield Document(row.doc_id, row.body, str(row.seq), row.seq, {})
        self._ended = closed and len(rows) < _ROWS_PER_TAKE

    def ended(self) -> bool:
        return self._ended

    def fetch(self, position: str) -> Document:
        if _NUMBER.fullmatch(position) is None:
            raise BadReference(f"{seen(position)} is not a row of the spool of {self._job_id}")
        row = self._spool.fetch(self._job_id, int(position))
        if row is None:
            raise SourceChanged(
                f"row {position} of the spool of {self._job_id} is gone; restore the database"
            )
        return Document(row.doc_id, row.body, position, row.seq, {})

    def mark_published(self, documents: Sequence[Document]) -> None:
        self._spool.mark_fed(self._job_id, [document.line for document in documents])


REPLAY = "replay"


class ReplaySource(FiniteSource):
    """The dead letters that one replay generation supersedes."""

    def __init__(self, feed: Feed, outcomes: OutcomeStore) -> None:
        self._feed = feed
        self._outcomes = outcomes
        self._overrides = Overrides.accepted(feed.overrides)

    def pin(self) -> dict[str, Any]:
        return {"kind": REPLAY, "job_id": self._feed.job_id, "generation": self._feed.generation}

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        before = str(cursor.get("after", ""))
        for letter in self._outcomes.replayable(
            self._feed.job_id, self._feed.generation, after=before
        ):
            yield self._read(letter, before)
            before = letter.key.doc_id

    def fetch(self, position: str) -> Document:
        letters = self._outcomes.replayable(
            self._feed.job_id, self._feed.generation, after=position, page=1
        )
        for letter in letters:
            document = self._read(letter, position)
            if isinstance(document, Document):
                return document
            break
        raise SourceChanged(
            f"the dead letter after {position!r} of {self._feed.job_id} is gone; restore the "
            "database"
        )

    def _read(self, letter: DeadLetter, position: str) -> Document | BadRow:
        doc_id = letter.key.doc_id
        cursor: Cursor = {"after": doc_id}
        try:
            if not letter.replayable:
                raise RowFault(
                    letter.reason, letter.last_error, fix="correct the row and submit it again"
                )
            body = self._overrides.apply(
                letter.request, self._original(doc_id) if self._overrides.restores else b""
            )
        except RowFault as fault:
            row = fault.row("replay", letter.line or 0, cursor)
            return replace(row, doc_id=doc_id, request=letter.request, endpoint=letter.endpoint)
        return Document(doc_id, body, position, letter.line or 0, cursor, letter.endpoint)

    def _original(self, doc_id: str) -> bytes:
        """Return the request before the first replay.

        A document that is replayed has a dead letter in the first generation.
        """
        first = self._outcomes.of_generation(self._feed.job_id, 1, doc_id)
        return first.request if isinstance(first, DeadLetter) else b""


def open_feed_source(
    database: Database, job_id: str, generation: int, settings: ProducerSettings | None = None
) -> Source:
    """Open the source of one generation of a job; a message's ``ref`` is fetched from it.

    Raises JobNotFound, and SourceError when the job has no such generation.
    """
    jobs = JobStore(database)
    job = jobs.get(job_id)
    for feed in jobs.feeds(job.job_id):
        if feed.generation == generation:
            return source_of(database, job, feed, settings)
    raise SourceError(
        "source_unavailable", f"job {job_id} has no generation {generation}; is this its database?"
    )


def source_of(
    database: Database,
    job: Job,
    feed: Feed,
    settings: ProducerSettings | None = None,
    spec: JobSpec | None = None,
) -> Source:
    """Return the source that ``feed`` reads, or the part of it that a shard is.

    Nothing is read yet. ``spec``: the job's, where the caller has parsed it.
    """
    whole = _whole(database, job, feed, settings, spec)
    return whole if feed.ends_at is None else Until(whole, feed.ends_at)


def _whole(
    database: Database,
    job: Job,
    feed: Feed,
    settings: ProducerSettings | None,
    spec: JobSpec | None,
) -> Source:
    if feed.kind is FeedKind.REPLAY:
        return ReplaySource(feed, OutcomeStore(database))
    if feed.kind is FeedKind.SPOOL:
        return SpoolSource(job.job_id, Spool(database), JobStore(database))
    if job.source.get("kind") == OUTCOMES:
        parsed = spec or JobSpec.accepted(job.spec)
        return OutcomesSource(job.source, parsed, JobStore(database), OutcomeStore(database))
    spec = spec or JobSpec.accepted(job.spec)
    source: Source
    if job.source.get("kind") == TABLE:
        chosen = settings or ProducerSettings.model_construct()
        source = accepted(job, spec, SourceKeys(database), chosen)
    else:
        source = open_source(job.source, spec, settings)
    return PinnedFiles(source) if spec.endpoint in UPLOADS else source
