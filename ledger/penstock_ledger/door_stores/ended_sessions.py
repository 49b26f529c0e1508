"""Sessions of the dashboard that were ended before their time, as all doors see them.

A session itself is a signed cookie, of which nothing is stored, so that people can sign in while
nothing can be written. What is stored are the few that were ended: one row for each key, in the
table of facts.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from sqlalchemy import Connection, delete, select

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import meta
from penstock_ledger.stored_values import json_text

__all__ = ["EndedSessions", "forget_sessions_of"]

ENDED_MAX: Final = 100
"""Ended sessions of one key that are listed one by one, until their time is over anyhow. With one
more all sessions end that the key has: who signs in and out in a loop must not fill the table."""


class EndedSessions:
    """Each row holds ``ended`` (session to when its cookie ends) and ``until``: every session is
    over that ends until then."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def end(
        self, key_id: str, session_id: str, ends_at: int, *, now: float, lasts_s: float
    ) -> None:
        """End a session, whose cookie would have ended at ``ends_at``.

        A session lasts ``lasts_s`` from its beginning."""

        def note(connection: Connection) -> None:
            self._db.lock(connection, _row_of(key_id))
            row = self._read(connection, key_id)
            ended = {name: ends for name, ends in row["ended"].items() if ends > now} | {
                session_id: ends_at
            }
            if len(ended) > ENDED_MAX:
                row["until"], ended = int(now + lasts_s), {}
            value = json_text({"until": row["until"], "ended": ended})
            new = self._db.insert(meta).values(name=_row_of(key_id), value=value)
            connection.execute(
                new.on_conflict_do_update(index_elements=["name"], set_={"value": value})
            )

        self._db.write(note)

    def is_ended(self, key_id: str, session_id: str, ends_at: int) -> bool:
        """Return whether this session was ended before its time."""
        row = self._db.read(lambda connection: self._read(connection, key_id))
        return session_id in row["ended"] or ends_at <= row["until"]

    def _read(self, connection: Connection, key_id: str) -> dict[str, Any]:
        found = connection.execute(
            select(meta.c.value).where(meta.c.name == _row_of(key_id))
        ).scalar_one_or_none()
        return {"until": 0, "ended": {}} if found is None else orjson.loads(found)


def forget_sessions_of(connection: Connection, key_id: str) -> None:
    """Forget the ended sessions of a key that is deleted: without it no cookie counts that names
    it."""
    connection.execute(delete(meta).where(meta.c.name == _row_of(key_id)))


def _row_of(key_id: str) -> str:
    return f"ended_sessions:{key_id}"
