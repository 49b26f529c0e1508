"""Alembic runs this file for every command.

The connection and its transaction belong to the caller."""

from __future__ import annotations

from alembic import context

given = context.config.attributes
context.configure(connection=given["connection"], target_metadata=given["tables"])
with context.begin_transaction():
    context.run_migrations()
