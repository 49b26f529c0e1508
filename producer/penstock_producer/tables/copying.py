"""Rows into PostgreSQL by COPY: into a table of texts that goes with the transaction, and from
there by one upsert.

It costs less than half of an upsert for each row, here and in the server. A user may lack the right
to temporary tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from penstock_producer.tables.statements import Statements, Target

__all__ = ["is_allowed", "upsert"]

_MAY: Final = text("SELECT has_database_privilege(current_database(), 'TEMPORARY')")


def is_allowed(connection: Connection) -> bool:
    return bool(connection.execute(_MAY).scalar())


def upsert(
    connection: Connection,
    statements: Statements,
    targets: Sequence[Target],
    values: Sequence[Sequence[Any]],
) -> None:
    """``values`` are texts, or None. Raises SQLAlchemy's errors."""
    import psycopg

    connection.exec_driver_sql(statements.given(targets))
    statement = statements.copy(targets)
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for line, row in enumerate(values):
                copy.write_row((*row, line))
    except psycopg.Error as error:
        raise OperationalError(statement, None, error, hide_parameters=True) from error
    connection.exec_driver_sql(statements.upsert_given(targets))
