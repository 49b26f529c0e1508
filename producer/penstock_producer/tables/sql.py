"""The two databases that rows are written into: how they are opened, and what they take for a value."""

from __future__ import annotations

from importlib import util
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from penstock_producer.errors import SinkError, seen
from penstock_producer.tables.csv_form import vector_text

__all__ = ["for_postgresql", "for_sqlite", "opened", "quoted"]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def for_sqlite(value: Any, _: str) -> Any:
    if isinstance(value, bytes):
        return vector_text(value)
    return f"[{','.join(map(vector_text, value))}]" if isinstance(value, list) else value


def for_postgresql(value: Any, type_: str) -> str | None:
    """All as text, which the statement casts to the column's own type: numeric, jsonb, uuid and pgvector's included."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | list):
        numbers = vector_text(value) if isinstance(value, bytes) else f"[{','.join(map(vector_text, value))}]"
        return numbers.replace("[", "{").replace("]", "}") if type_.endswith("[]") else numbers
    return value if isinstance(value, str) else repr(value)


def opened(url: str) -> Engine:
    parsed = _parsed(url)
    # Errors reach logs, and parameters are documents.
    engine = create_engine(parsed, hide_parameters=True, execution_options={"preserve_rowcount": True})
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _let_begin)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _let_begin(connection: Any, _: object) -> None:
    connection.isolation_level = None  # SQLAlchemy's recipe: pysqlite must not open transactions by itself


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SinkError(f"{seen(url)} is not the URL of a database: use sqlite:///file or postgresql://…") from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite") and parsed.database not in (None, "", ":memory:"):
        return parsed
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        if util.find_spec("psycopg") is None:
            raise SinkError(f"{parsed.drivername}:// needs psycopg: pip install 'penstock[postgres]'")
        return parsed.set(drivername="postgresql+psycopg")
    raise SinkError(f"results cannot be written into {parsed.drivername}://: use sqlite:///file or postgresql://…")
