"""Files of the HTTP doors: a row each. The bytes lie below gateway.files.

A row is written before the first byte, as one that is deleted already; it appears when the bytes
are complete and durable. So no reader finds half a file, and what a crash leaves behind has a row
by which it is found and removed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from penstock_ledger.door_stores.whose import EVERYONE, Whose
from penstock_ledger.model import JobState
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import door_batches, door_files, jobs
from penstock_ledger.stores.jobs import LIVE

__all__ = ["DoorFile", "DoorFiles", "FileDetails", "needed_by"]

# they may read their input again
BATCHES_AT_WORK: Final = ("validating", "in_progress", "finalizing", "cancelling")
# likewise, each row of it
_JOBS_AT_WORK: Final = tuple(str(state) for state in JobState if not state.final)
_UNFINISHED: Final = ""  # the sha256 of a row whose bytes are not complete
_TOGETHER: Final = 500  # rows that one statement names


@dataclass(frozen=True, slots=True)
class DoorFile:
    file_id: str
    tenant: str | None
    filename: str
    purpose: str
    bytes: int
    sha256: str
    place: str  # below gateway.files
    created_at: float
    expires_at: float | None
    job_id: str | None  # whose answers it holds; None: it was uploaded
    lines: int | None


@dataclass(frozen=True, slots=True)
class FileDetails:
    """The facts of a file once its last byte is written."""

    filename: str
    purpose: str
    bytes: int
    sha256: str
    lives_s: float | None = None  # None: until it is deleted
    job_id: str | None = None
    lines: int | None = None


@dataclass(frozen=True, slots=True)
class FilePage:
    files: Sequence[DoorFile]
    has_more: bool


class DoorFiles:
    """The table of files."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def begin(self, file_id: str, tenant: str | None, place: str) -> None:
        """Note where bytes will be written, before the first of them."""
        now = time.time()
        values = {
            "file_id": file_id,
            "tenant": tenant,
            "filename": "",
            "purpose": "",
            "bytes": 0,
            "sha256": _UNFINISHED,
            "place": place,
            "created_at": now,
            "deleted_at": now,
        }
        self._db.write(lambda connection: connection.execute(insert(door_files).values(values)))

    def finish(self, file_id: str, details: FileDetails) -> DoorFile | None:
        """Show the file. None where its upload took so long that cleaning has removed it."""
        now = time.time()
        values = {
            "filename": details.filename,
            "purpose": details.purpose,
            "bytes": details.bytes,
            "sha256": details.sha256,
            "created_at": now,
            "expires_at": None if details.lives_s is None else now + details.lives_s,
            "job_id": details.job_id,
            "lines": details.lines,
            "deleted_at": None,
        }
        begun = and_(door_files.c.file_id == file_id, door_files.c.sha256 == _UNFINISHED)

        def show(connection: Connection) -> Row[Any] | None:
            if connection.execute(update(door_files).where(begun).values(values)).rowcount != 1:
                return None
            return connection.execute(
                select(door_files).where(door_files.c.file_id == file_id)
            ).one()

        row = self._db.write(show)
        return None if row is None else _file_of(row)

    def get(self, file_id: str, whose: Whose) -> DoorFile | None:
        """Return the file, or None for one that a caller cannot have.

        It is not there, another tenant's, deleted, or expired and no longer read."""
        query = select(door_files).where(door_files.c.file_id == file_id, *_there(whose))
        row = self._db.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _file_of(row)

    def written(self, job_id: str, filename: str) -> DoorFile | None:
        """Return what was written of a job's answers under this name already."""
        there = _there(EVERYONE)
        query = select(door_files).where(
            door_files.c.job_id == job_id, door_files.c.filename == filename, *there
        )
        row = self._db.read(lambda connection: connection.execute(query.limit(1)).one_or_none())
        return None if row is None else _file_of(row)

    def page(
        self,
        whose: Whose,
        *,
        limit: int,
        after: str | None = None,
        newest_first: bool = True,
        purposes: Collection[str] | None = None,
    ) -> FilePage | None:
        """Return a page of files behind ``after``, also where that file was deleted meanwhile.

        It is None when it is unknown."""
        made, name = door_files.c.created_at, door_files.c.file_id
        query = select(door_files).where(*_there(whose)).limit(limit + 1)
        query = (
            query.order_by(made.desc(), name.desc()) if newest_first else query.order_by(made, name)
        )
        if purposes is not None:
            query = query.where(door_files.c.purpose.in_(purposes))

        def look(connection: Connection) -> FilePage | None:
            chosen = query
            if after is not None:
                own = select(made).where(name == after, whose.holds(door_files.c.tenant))
                place = connection.execute(own).scalar_one_or_none()
                if place is None:
                    return None
                chosen = chosen.where(_beyond(place, after, newest_first))
            rows = connection.execute(chosen).all()
            return FilePage([_file_of(row) for row in rows[:limit]], len(rows) > limit)

        return self._db.read(look)

    def bytes_of(self, tenant: str) -> int:
        """Return the bytes of a tenant's files that were not deleted."""
        query = select(func.coalesce(func.sum(door_files.c.bytes), 0))
        query = query.where(door_files.c.tenant == tenant, door_files.c.deleted_at.is_(None))
        return self._db.read(lambda connection: int(connection.execute(query).scalar_one()))

    def in_use(self, file_id: str) -> str | None:
        """Return the id of a batch at work, or of a job that has not ended, whose input this is."""
        of_batch = select(door_batches.c.batch_id).where(_batch_reads(file_id)).limit(1)
        of_job = select(jobs.c.job_id).where(_job_reads(file_id)).limit(1)

        def look(connection: Connection) -> str | None:
            batch: str | None = connection.execute(of_batch).scalar_one_or_none()
            return batch or connection.execute(of_job).scalar_one_or_none()

        return self._db.read(look)

    def delete(self, file_id: str, whose: Whose) -> bool:
        """Hide it from all readers.

        It is False when it was not there, or work that has not ended reads it (see ``in_use``)."""
        query = (
            update(door_files)
            .where(door_files.c.file_id == file_id, *_there(whose), *_unread(file_id))
            .values(deleted_at=time.time())
        )
        return self._db.write(lambda connection: connection.execute(query).rowcount) == 1

    def expire(self, most: int) -> Sequence[DoorFile]:
        """Delete files whose time is over and that nothing at work reads.

        Returns those whose bytes are to be removed."""
        over = (
            select(door_files)
            .where(
                door_files.c.expires_at <= time.time(),
                door_files.c.deleted_at.is_(None),
                *_unread(door_files.c.file_id),
            )
            .limit(most)
        )

        def hide(connection: Connection) -> Sequence[DoorFile]:
            found = [_file_of(row) for row in connection.execute(over)]
            for start in range(0, len(found), _TOGETHER):
                ids = [file.file_id for file in found[start : start + _TOGETHER]]
                connection.execute(
                    update(door_files)
                    .where(door_files.c.file_id.in_(ids))
                    .values(deleted_at=time.time())
                )
            return found

        return self._db.write(hide)

    def deleted_before(self, when: float, most: int) -> Sequence[DoorFile]:
        """Return files deleted, or begun and never finished, before a Unix time.

        Their bytes can go."""
        query = (
            select(door_files)
            .where(door_files.c.deleted_at < when)
            .order_by(door_files.c.deleted_at)
            .limit(most)
        )
        return [_file_of(row) for row in self._db.rows(query)]

    def forget(self, file_ids: Sequence[str]) -> None:
        """Forget the rows of deleted files whose bytes are gone."""
        gone = door_files.c.file_id.in_(file_ids), door_files.c.deleted_at.is_not(None)
        self._db.write(lambda connection: connection.execute(delete(door_files).where(*gone)))


def _there(whose: Whose) -> tuple[ColumnElement[bool], ...]:
    """Return the condition of files that are there.

    Work that has not ended finds its file behind ``expires_at`` as well: it may come to read it
    only then."""
    read = (
        exists().where(_batch_reads(door_files.c.file_id)),
        exists().where(_job_reads(door_files.c.file_id)),
    )
    alive = or_(door_files.c.expires_at.is_(None), door_files.c.expires_at > time.time(), *read)
    return whose.holds(door_files.c.tenant), door_files.c.deleted_at.is_(None), alive


def _beyond(made_at: float, file_id: str, newest_first: bool) -> ColumnElement[bool]:
    made, name = door_files.c.created_at, door_files.c.file_id
    if newest_first:
        return or_(made < made_at, and_(made == made_at, name < file_id))
    return or_(made > made_at, and_(made == made_at, name > file_id))


def _unread(file_id: Any) -> tuple[ColumnElement[bool], ...]:
    return ~exists().where(_batch_reads(file_id)), ~exists().where(_job_reads(file_id))


def _batch_reads(file_id: Any) -> ColumnElement[bool]:
    return and_(door_batches.c.input_file_id == file_id, door_batches.c.state.in_(BATCHES_AT_WORK))


def _job_reads(file_id: Any) -> ColumnElement[bool]:
    """Return the condition of files that a job reads.

    The name of an uploaded file is its id, which is in the place that its job's source is read
    from."""
    return and_(jobs.c.state.in_(_JOBS_AT_WORK), jobs.c.source.contains(file_id))


def _file_of(row: Row[Any]) -> DoorFile:
    return DoorFile(
        file_id=row.file_id,
        tenant=row.tenant,
        filename=row.filename,
        purpose=row.purpose,
        bytes=row.bytes,
        sha256=row.sha256,
        place=row.place,
        created_at=row.created_at,
        expires_at=row.expires_at,
        job_id=row.job_id,
        lines=row.lines,
    )


def needed_by(database: Database, job_id: str) -> str | None:
    """Return the id of a job or batch that has not ended and reads this job's outcomes."""
    live = jobs.c.state.in_(map(str, LIVE))
    reads = jobs.c.source.contains(job_id, autoescape=True), jobs.c.job_id != job_id
    readers = select(jobs.c.job_id).where(live, *reads).limit(1)
    written = door_batches.c.job_id == job_id, door_batches.c.state.in_(BATCHES_AT_WORK)
    batches = select(door_batches.c.batch_id).where(*written).limit(1)

    def look(connection: Connection) -> str | None:
        found = connection.execute(readers).scalar() or connection.execute(batches).scalar()
        return None if found is None else str(found)

    return database.read(look)
