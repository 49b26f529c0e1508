"""Files that notifications have named, until a job takes them: each once.

The job is one of their schedule, however often it is named."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, delete, func, select, tuple_

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import noticed_files

__all__ = ["NOTICED_MAX", "Noted", "NoticedFile", "NoticedStore"]

NOTICED_MAX: Final = 100_000  # of one schedule, that wait: a hundred jobs of a thousand files
_AT_ONCE: Final = 100  # rows of one statement
_KEY_BYTES: Final = 16


class NoticedFile(NamedTuple):
    """A file as a notification named it, and when the last one did, on the database's clock."""

    name: str  # below the watched place
    noticed_at: float


class Noted(NamedTuple):
    """The fates of some names: each is new, waited already, or found no room."""

    new: list[str]
    repeated: list[str]
    no_room: list[str]


class NoticedStore:
    def __init__(self, db: Database) -> None:
        self._db = db

    def note(self, schedule_id: str, names: Sequence[str]) -> Noted:
        """Keep names until ``forget``.

        Beyond ``NOTICED_MAX`` those that do not wait yet are left out."""
        return self._db.write(lambda connection: self._note(connection, schedule_id, names))

    def has_room(self, schedule_id: str) -> bool:
        return self._db.read(lambda connection: _waiting(connection, schedule_id)) < NOTICED_MAX

    def waiting(self, schedule_id: str, most: int) -> list[NoticedFile]:
        """Return the files that have waited longest."""
        query = (
            select(noticed_files.c.name, noticed_files.c.noticed_at)
            .where(noticed_files.c.schedule_id == schedule_id)
            .order_by(noticed_files.c.noticed_at, noticed_files.c.name)
            .limit(most)
        )
        return [NoticedFile(*row) for row in self._db.rows(query)]

    def forget(self, schedule_id: str, files: Sequence[NoticedFile]) -> None:
        """Forget files that a job has, or that are gone.

        One that was named again since then stays.
        """

        def remove(connection: Connection) -> None:
            for first in range(0, len(files), _AT_ONCE):
                some = [(_key(one.name), one.noticed_at) for one in files[first : first + _AT_ONCE]]
                place = tuple_(noticed_files.c.file, noticed_files.c.noticed_at)
                of_it = noticed_files.c.schedule_id == schedule_id
                connection.execute(delete(noticed_files).where(of_it, place.in_(some)))

        self._db.write(remove)

    def _note(self, connection: Connection, schedule_id: str, names: Sequence[str]) -> Noted:
        now, room = self._db.now(connection), NOTICED_MAX - _waiting(connection, schedule_id)
        noted = Noted([], [], [])
        wanted = list(dict.fromkeys(names))
        for first in range(0, len(wanted), _AT_ONCE):
            some = {_key(name): name for name in wanted[first : first + _AT_ONCE]}
            known = _known(connection, schedule_id, list(some))
            fresh = [key for key in some if key not in known]
            kept, left_out = fresh[: max(0, room)], fresh[max(0, room) :]
            room -= len(kept)
            rows = [
                {"schedule_id": schedule_id, "file": key, "name": some[key], "noticed_at": now}
                for key in (*kept, *known)
            ]
            if rows:
                query = self._db.insert(noticed_files)
                same = [noticed_files.c.schedule_id, noticed_files.c.file]
                latest = {"noticed_at": query.excluded.noticed_at}
                connection.execute(
                    query.on_conflict_do_update(index_elements=same, set_=latest), rows
                )
            noted.new.extend(some[key] for key in kept)
            noted.repeated.extend(some[key] for key in known)
            noted.no_room.extend(some[key] for key in left_out)
        return noted


def _known(connection: Connection, schedule_id: str, keys: Sequence[bytes]) -> set[bytes]:
    query = select(noticed_files.c.file).where(
        noticed_files.c.schedule_id == schedule_id, noticed_files.c.file.in_(keys)
    )
    return set(connection.execute(query).scalars())


def _waiting(connection: Connection, schedule_id: str) -> int:
    some = (
        select(noticed_files.c.file)
        .where(noticed_files.c.schedule_id == schedule_id)
        .limit(NOTICED_MAX)
    )
    return int(connection.execute(select(func.count()).select_from(some.subquery())).scalar_one())


def _key(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:_KEY_BYTES]
