"""Alembic runs this file for every command. The connection and its transaction belong to the caller."""

from __future__ import annotations

from alembic import context

from penstock_ledger.sql.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
