"""Facts about this database as a whole."""

from __future__ import annotations

import secrets
import uuid

from sqlalchemy import Connection, select

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import meta

_EPOCH = "epoch"
_SESSION_SECRET = "session_secret"  # noqa: S105  # the name of a row


class Meta:
    """Facts about this database: its epoch is the sentinel that Redis holds for it.

    A Redis without it has lost what it held."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def epoch(self) -> str:
        """Return the epoch; the first caller creates it."""
        return self._made_once(_EPOCH, uuid.uuid4().hex)

    def session_secret(self) -> str:
        """Return what the HTTP doors sign sessions with, all processes the same."""
        return self._made_once(_SESSION_SECRET, secrets.token_urlsafe(32))

    def _made_once(self, name: str, new: str) -> str:
        return self._read(name) or self._db.write(
            lambda connection: self._create(connection, name, new)
        )

    def _read(self, name: str) -> str | None:
        query = select(meta.c.value).where(meta.c.name == name)
        return self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())

    def _create(self, connection: Connection, name: str, value: str) -> str:
        connection.execute(
            self._db.insert(meta).values(name=name, value=value).on_conflict_do_nothing()
        )
        return str(connection.execute(select(meta.c.value).where(meta.c.name == name)).scalar_one())
