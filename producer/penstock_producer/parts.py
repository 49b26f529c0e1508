"""The results of a job in a bucket while it runs: parts, and `parts.json`, which lists them.

It is replaced by one request, after the part that it names is there. So whatever a process that
dies leaves behind, the index names whole parts without a gap between them."""

from __future__ import annotations

import contextlib
import logging
import secrets
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import orjson

from penstock_ledger import Database, PlaceLost
from penstock_ledger.model import Job
from penstock_producer.bucket.place import ABSENT, Condition, Place
from penstock_producer.bucket.stores import writer_of
from penstock_producer.errors import SinkError, SinkTaken
from penstock_producer.outputs import OUTPUT_NAME
from penstock_producer.storage import discarded_on_error
from penstock_producer.tables.reading import Lines

__all__ = ["PARTS", "GrowingOutput", "Index", "Part"]

INDEX_NAME: Final = "parts.json"
# A part is two PUTs, with the index; so one PUT is for 200 results or more.
RESULTS_MIN: Final = 400
# A part has at least this share of all that came before it, so that a job of a hundred million has
# some hundred parts.
SHARE: Final = 50
_VERSION: Final = 1


class Part(NamedTuple):
    """Output lines in one object."""

    name: str
    results: int
    bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Index:
    """Of one job.

    ``etag`` is that of the object it was read from, or written to; "" where there is none yet."""

    job_id: str
    parts: tuple[Part, ...] = ()
    cursor: str | None = None  # behind the last result of the last part
    etag: str = ""

    @property
    def results(self) -> int:
        return sum(part.results for part in self.parts)

    def is_due(self, results: int) -> bool:
        """Return whether a job with so many results has enough of them for another part."""
        return results - self.results >= max(RESULTS_MIN, self.results // SHARE)

    @classmethod
    def read(cls, bucket: Place, job_id: str) -> Self:
        """Read the index of a job's parts, empty where there is none. Raises SinkError."""
        found = bucket.read(INDEX_NAME)
        if found is None:
            return cls(job_id)
        content, etag = found
        try:
            kept: Any = orjson.loads(content)
            if kept["version"] != _VERSION or kept["job"] != job_id:
                raise ValueError(f"it is of version {kept['version']}, job {kept['job']}")
            parts = tuple(
                Part(one["name"], int(one["results"]), int(one["bytes"]), one["etag"])
                for one in kept["parts"]
            )
            return cls(job_id, parts, kept["cursor"], etag)
        except (ValueError, TypeError, LookupError) as error:
            raise SinkError(
                f"{bucket.uri(INDEX_NAME)} is no index of parts ({error}): remove it"
            ) from None

    def write(
        self, bucket: Place, *, parts: tuple[Part, ...], cursor: str | None, conditional: bool
    ) -> Self:
        """Write an index with these parts in the place of this one, and return it.

        Raises SinkTaken where another process has replaced it. It is this process where the answer
        was lost and the client has asked again: no other writes the same, for parts have names by
        chance.
        """
        content = {
            "version": _VERSION,
            "job": self.job_id,
            "results": sum(part.results for part in parts),
            "cursor": cursor,
            "parts": [part._asdict() for part in parts],
        }
        condition = {"IfMatch": self.etag} if self.etag else ABSENT
        body = orjson.dumps(content, option=orjson.OPT_INDENT_2)
        try:
            etag = bucket.put(INDEX_NAME, body, condition=condition if conditional else None)
        except SinkTaken:
            there = bucket.read(INDEX_NAME)
            if there is None or there[0] != body:
                raise
            etag = there[1]
        return type(self)(self.job_id, parts, cursor, etag)


PARTS: Final = "parts/"
PART_BYTES_MAX: Final = 256 * 1024 * 1024  # a process that dies has to send so much again, at most
# from then on parts may be larger, so that 2,000 of them hold more than a terabyte
PARTS_PER_SIZE: Final = 500

log = logging.getLogger(__name__)


class GrowingOutput:
    """The results of one job below one prefix. Not thread-safe.

    Any process may go on where another one stopped, and of two at the same time one stops: the
    index is replaced only where it is the one that was read, in stores that have conditional writes
    (AWS S3, MinIO, R2, Google Cloud Storage, Azure). In others the last one to write it counts,
    whose parts are as whole.
    """

    def __init__(self, bucket: Place, database: Database, job: Job, *, conditional: bool) -> None:
        self._bucket, self._database, self._job = bucket, database, job
        self._conditional = conditional
        # it was complete before: what a replay adds is written at the end
        self._is_replayed: bool | None = None
        # None until it was read, and after a write of it that has failed or was another process's
        self._index: Index | None = None

    def grow(self, results: int) -> None:
        """Write parts of what is new, where that is enough; ``results`` is how many the job has.

        Raises SinkError, SinkTaken where another process is at it.
        """
        index = self._current()
        if self._is_replayed is None and index.is_due(results):
            self._is_replayed = not index.parts and self._bucket.head(OUTPUT_NAME) is not None
        while index.is_due(results) and not self._is_replayed:
            try:
                more = self._add_part(index)
                if more is None:
                    return
                index = more
            except PlaceLost:
                log.warning(
                    "job %s: the database was restored from a copy; its parts are written anew",
                    self._job.job_id,
                )
                index = self._replaced(index, (), None)

    def complete(self, results: int, *, keep: bool) -> str:
        """Make `output.jsonl` once all outcomes are there; return its place.

        ``keep`` leaves the parts where they are.

        May be repeated after any failure. Raises SinkError, SinkTaken, OutcomesHeldBack.
        """
        metadata = {"penstock-job": self._job.job_id, "penstock-results": str(results)}
        there = self._bucket.head(OUTPUT_NAME)
        if there is None or any(
            there.metadata.get(name) != value for name, value in metadata.items()
        ):
            condition = ABSENT if there is None else {"IfMatch": there.etag}
            self._assemble(self._current(), metadata, condition if self._conditional else None)
        self._remove_parts(keep=keep)
        return self._bucket.uri(OUTPUT_NAME)

    def _current(self) -> Index:
        """Return the index as this process knows it.

        A process that begins ends what another one has left unfinished.
        """
        if self._index is None:
            ended = sum(map(self._bucket.abort_uploads, (PARTS, OUTPUT_NAME)))
            if ended:
                log.info(
                    "job %s: %d unfinished uploads of an earlier process were ended",
                    self._job.job_id,
                    ended,
                )
            self._index = Index.read(self._bucket, self._job.job_id)
        return self._index

    def _add_part(self, index: Index) -> Index | None:
        """Add a part; None when there is not enough yet, after all."""
        name = f"{PARTS}{len(index.parts) + 1:06d}-{secrets.token_hex(4)}.jsonl"
        lines = Lines(self._database, self._job, index.cursor)
        most = PART_BYTES_MAX * (1 + len(index.parts) // PARTS_PER_SIZE)
        with discarded_on_error(writer_of(self._bucket, name)) as writer:
            for line in lines:
                writer.write(line)
                if writer.bytes >= most and lines.number >= RESULTS_MIN:
                    break
            if lines.number < RESULTS_MIN:
                writer.discard()
                return None
            writer.finish()
            writer.publish()
        part = Part(name, lines.number, writer.bytes, writer.etag)
        try:
            return self._replaced(index, (*index.parts, part), lines.cursor)
        except SinkTaken:
            with contextlib.suppress(SinkError):
                self._bucket.delete(name)
            raise

    def _replaced(self, index: Index, parts: tuple[Part, ...], cursor: str | None) -> Index:
        self._index = None  # read again after a failure: it may have been written all the same
        self._index = index.write(
            self._bucket, parts=parts, cursor=cursor, conditional=self._conditional
        )
        return self._index

    def _assemble(
        self, index: Index, metadata: dict[str, str], condition: Condition | None
    ) -> None:
        try:
            self._write(index, metadata, condition)
        except SinkTaken:
            self._index = None
            raise
        except (SinkError, PlaceLost) as error:
            if not index.parts:
                raise
            log.warning(
                "job %s: %s could not be made of its parts, and is written from the ledger: %s",
                self._job.job_id,
                OUTPUT_NAME,
                error,
            )
            self._write(Index(self._job.job_id), metadata, condition)
            self._replaced(index, (), None)

    def _write(self, index: Index, metadata: dict[str, str], condition: Condition | None) -> None:
        """Write the parts, and what came after them, as the one file of results."""
        writing = writer_of(self._bucket, OUTPUT_NAME, metadata=metadata, condition=condition)
        with discarded_on_error(writing) as writer:
            for part in index.parts:
                writer.append(part.name, part.etag, part.bytes)
            for line in Lines(self._database, self._job, index.cursor, whole=True):
                writer.write(line)
            writer.finish()
            writer.publish()

    def _remove_parts(self, *, keep: bool) -> None:
        """Remove all parts, or those that do not count.

        The index goes first: what a process that dies leaves of the parts counts no more.
        """
        counted = {part.name for part in self._current().parts} if keep else set[str]()
        if not keep:
            self._bucket.delete(INDEX_NAME)
            self._index = None
        for name in self._bucket.names(PARTS):
            if name not in counted:
                self._bucket.delete(name)
