"""The one history of the schema, for SQLite and PostgreSQL, run by ``Database.migrate()``."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, MetaData


def upgrade(connection: Connection, tables: MetaData) -> None:
    """Bring the schema to the newest revision inside the transaction of ``connection``.

    ``tables`` are what it has then."""
    command.upgrade(alembic_config(connection, tables), "head")


def alembic_config(connection: Connection | None = None, tables: MetaData | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, tables=tables)
    return config
