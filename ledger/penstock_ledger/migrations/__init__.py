"""The one history of the schema, for SQLite and PostgreSQL, run by ``Database.migrate()``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from penstock_ledger.sql.postgres import Waits, wait_longer

# Serialises migrations of several processes on PostgreSQL; any number that no other program uses ("penstock" on a keypad).
ADVISORY_LOCK: Final = 73678625
OTHERS_S: Final = 600.0  # that another process may take to migrate; an index over millions of rows takes minutes


def upgrade(connection: Connection) -> None:
    """Bring the schema to the newest revision inside the transaction of ``connection``.

    SQLite's write lock is held already; on PostgreSQL an advisory lock makes others wait, and then find nothing to do.
    It is the transaction's, as a pooler wants it. A table that is in use is waited for no longer than by others:
    all other statements on it would queue up behind the migration.
    """
    if connection.dialect.name == "postgresql":
        wait_longer(connection, statement_s=0, lock_s=OTHERS_S)
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
        wait_longer(connection, statement_s=0, lock_s=Waits().lock_s)
    command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
