"""Facts about this database as a whole."""

from __future__ import annotations

import uuid

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import meta

_EPOCH = "epoch"


class Meta:
    """The epoch is the sentinel that Redis holds for this database: a Redis without it has lost what it held."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def epoch(self) -> str:
        """The epoch; the first caller creates it."""
        return self._read() or self._db.write(self._create)

    def _read(self) -> str | None:
        query = select(meta.c.value).where(meta.c.name == _EPOCH)
        return self._db.read(lambda connection: connection.execute(query).scalar_one_or_none())

    def _create(self, connection: Connection) -> str:
        dialect = sqlite if self._db.is_sqlite else postgresql
        row = {"name": _EPOCH, "value": uuid.uuid4().hex}
        connection.execute(dialect.insert(meta).values(row).on_conflict_do_nothing())
        return str(connection.execute(select(meta.c.value).where(meta.c.name == _EPOCH)).scalar_one())
